"""No secret leaves the process in a log line."""

import pytest

from pricekeeper.telemetry.logs import redacted


@pytest.mark.parametrize(
    "secret",
    [
        b"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJvcmctMSJ9.c2lnbmF0dXJl",
        b"pks_0123456789abcdefghijABCDEFGHIJ0123456789abc",
        b"pkr_0123456789abcdefghijABCDEFGHIJ0123456789abc",
        b"Bearer 0123456789abcdef",
        b"Basic b3JnLTE6c2VjcmV0",
    ],
)
def test_what_looks_like_a_secret_is_hidden(secret: bytes) -> None:
    """Wherever in the line it stands."""
    line = redacted(b'{"event":"x","value":"' + secret + b'","more":"kept"}')
    assert secret.split()[-1] not in line
    assert b'"more":"kept"' in line
    assert b"[redacted]" in line


def test_an_ordinary_line_stays_as_it_is() -> None:
    """Ids and routes are not secrets."""
    line = b'{"event":"request","route":"/api/v1/orgs/{org_id}","request_id":"0af3"}'
    assert redacted(line) == line
