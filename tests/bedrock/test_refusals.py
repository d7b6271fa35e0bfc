"""Which errors of botocore say that no model has run."""

import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.exceptions import NewConnectionError
from urllib3.exceptions import SSLError as Urllib3SSLError

from pricekeeper.bedrock.refusals import REFUSAL_CODES, is_refusal, was_never_sent

URL = "http://127.0.0.1:1"


def connector_error(kind: type[aiohttp.ClientConnectorError]) -> aiohttp.ClientConnectorError:
    """An error of aiohttp's while it connects."""
    key = ConnectionKey("127.0.0.1", 1, False, True, None, None, None)
    return kind(key, ConnectionRefusedError(111, "refused"))


CERTIFICATE = ssl.SSLCertVerificationError("certificate verify failed")
NEVER_SENT = [
    ConnectTimeoutError(endpoint_url=URL),
    ProxyConnectionError(proxy_url=URL),
    EndpointConnectionError(
        endpoint_url=URL,
        error=NewConnectionError(None, "refused"),  # type: ignore[arg-type]
    ),
    EndpointConnectionError(endpoint_url=URL, error=connector_error(aiohttp.ClientConnectorError)),
    EndpointConnectionError(
        endpoint_url=URL, error=connector_error(aiohttp.ClientConnectorDNSError)
    ),
    SSLError(endpoint_url=URL, error=Urllib3SSLError(CERTIFICATE)),
    SSLError(endpoint_url=URL, error=connector_error(aiohttp.ClientConnectorSSLError)),
]
MAYBE_SENT = [
    EndpointConnectionError(endpoint_url=URL),
    EndpointConnectionError(endpoint_url=URL, error=aiohttp.ClientOSError(104, "reset")),
    SSLError(endpoint_url=URL, error=Urllib3SSLError(ssl.SSLError("bad record mac"))),
    SSLError(endpoint_url=URL, error=Urllib3SSLError("?")),
    ReadTimeoutError(endpoint_url=URL),
    ConnectionClosedError(endpoint_url=URL),
    HTTPClientError(error=ValueError()),
    ConnectionResetError(),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", NEVER_SENT, ids=repr)
def test_a_connection_that_was_never_made_is_free(error: Exception) -> None:
    """Nothing was sent."""
    assert was_never_sent(error)


@pytest.mark.parametrize("error", MAYBE_SENT, ids=repr)
def test_a_connection_that_was_lost_is_not(error: BaseException) -> None:
    """A model may run for it, for any name of the error."""
    assert not was_never_sent(error)


@pytest.mark.parametrize("code", sorted(REFUSAL_CODES))
def test_what_bedrock_has_a_name_for_is_a_refusal(code: str) -> None:
    """Before any output."""
    assert is_refusal(code, 400)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ExpiredTokenException", 403, True),
        ("UnrecognizedClientException", 403, True),
        ("403", 403, True),
        ("", 429, True),
        ("", 307, True),
        ("InternalFailure", 500, True),
        ("InternalServerErrorException", 504, False),
        ("504", 504, False),
        ("", 502, False),
        ("", 303, False),
        ("408", 408, False),
        ("424", 424, False),
        ("ModelStreamErrorException", 424, False),
        ("", 200, False),
        ("", 600, False),
        ("", 0, False),
    ],
)
def test_without_a_name_of_bedrocks_the_status_decides(
    code: str, status: int, expected: bool
) -> None:
    """A proxy that answers 4xx has not sent the call on; with 5xx it may have given up on it."""
    assert is_refusal(code, status) is expected
