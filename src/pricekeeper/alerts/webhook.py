"""Alerts to a webhook: a signed POST of JSON, after the Standard Webhooks specification.

The headers ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` are that
specification's, so its libraries verify what we send. ``Idempotency-Key`` is the alert's id too: it
is the same for every attempt, and the body has the same bytes.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Mapping
from typing import Final

import aiohttp
import yarl

from pricekeeper.alerts.addresses import AddressNotAllowedError, Guard, GuardedResolver
from pricekeeper.alerts.channel import signing_key
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.clock import Clock
from pricekeeper.errors import DeliveryError, InvalidValueError
from pricekeeper.version import __version__

ATTEMPT_SECS: Final = 10
"""How long one attempt may take, from the name of the host to the status of the answer."""
CONNECTIONS_MAX: Final = 64
_OK: Final = range(200, 300)
_REFUSED: Final = range(300, 500)
_LATER: Final = frozenset({408, 425, 429})
_UNREACHABLE: Final = "can't be reached, or its address is not allowed"


class HttpSender:
    """Posts to addresses that tenants have chosen. Nothing of an answer but its status is read."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post that; raises `DeliveryError` if it was not accepted."""
        try:
            self._guard.check_url(url)
            async with (
                asyncio.timeout(ATTEMPT_SECS),
                self._open_session().post(
                    yarl.URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except InvalidValueError as error:  # what was allowed once may be allowed no more
            raise DeliveryError(error.message, is_refused=True) from error
        except TimeoutError as error:
            raise DeliveryError(f"did not answer within {ATTEMPT_SECS} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise DeliveryError("its certificate is not valid") from error
        except (aiohttp.ClientConnectorError, AddressNotAllowedError) as error:
            raise DeliveryError(_UNREACHABLE) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(f"the request failed: {type(error).__name__}") from error
        if status not in _OK:
            is_refused = status in _REFUSED and status not in _LATER
            raise DeliveryError(f"answered HTTP {status}", is_refused=is_refused)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS_MAX,
                    resolver=GuardedResolver(self._guard),
                    use_dns_cache=False,
                    force_close=True,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": f"pricekeeper/{__version__}"},
            )
        return self._session


async def send_to_webhook(
    http: HttpSender, clock: Clock, channel: OpenChannel, alert_id: str, body: bytes
) -> None:
    """Post an alert, signed with the channel's own key."""
    timestamp = clock.now_ms() // 1000
    key = signing_key(channel.address.secret)
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": alert_id,
        "webhook-id": alert_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, alert_id, timestamp, body),
    }
    await http.post(channel.address.url, body, headers)


def signature(key: bytes, alert_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a request: HMAC-SHA256 of its id, its time and its body, in base64."""
    signed = b"%s.%d.%s" % (alert_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"
