"""No secret leaves the process in a log line."""

import pytest

from pricekeeper.telemetry import logs
from pricekeeper.telemetry.logs import keep_secret, redacted, timestamp


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
    line = redacted(b'{"event":"x","value":"' + secret + b'","more":"kept"}')
    assert secret.split()[-1] not in line
    assert b'"more":"kept"' in line
    assert b"[redacted]" in line


def test_a_known_secret_is_hidden_whatever_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deployment's own key has no shape; JSON may spell it with escapes."""
    monkeypatch.setattr(logs, "_known", set())
    keep_secret('correct "horse" battery')
    line = redacted(rb'{"event":"correct \"horse\" battery","more":"kept"}')
    assert line == b'{"event":"[redacted]","more":"kept"}'
    assert redacted(b'correct "horse" battery') == b"[redacted]"


def test_an_ordinary_line_stays_as_it_is() -> None:
    line = b'{"event":"request","route":"/api/v1/orgs/{org_id}","request_id":"0af3"}'
    assert redacted(line) == line


@pytest.mark.parametrize(
    ("now_ns", "told"),
    [
        (1_768_000_000_000_000_000, "2026-01-09T23:06:40.000000Z"),
        (1_768_000_000_000_042_999, "2026-01-09T23:06:40.000042Z"),
        (1_768_000_000_999_999_999, "2026-01-09T23:06:40.999999Z"),
        (1_768_000_001_000_000_000, "2026-01-09T23:06:41.000000Z"),
    ],
)
def test_a_moment_is_told_to_the_microsecond(
    monkeypatch: pytest.MonkeyPatch, now_ns: int, told: str
) -> None:
    """In UTC, and always of the same length, so that lines sort as text."""
    monkeypatch.setattr("time.time_ns", lambda: now_ns)
    assert timestamp() == told
