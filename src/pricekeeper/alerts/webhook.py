"""Posts alerts to webhooks and chats.

A webhook gets JSON, signed by the Standard Webhooks specification, so its libraries can verify it.
``Idempotency-Key`` is the alert's id. It and the body are the same for every attempt.

A chat (Slack, Mattermost and others) gets a text. It knows no idempotency key, so the text ends
with the alert's id, and people can recognise a repeated alert.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
import msgspec
import yarl

from pricekeeper.alerts.addresses import AddressNotAllowedError, Guard, GuardedResolver
from pricekeeper.alerts.alert import parse_body, unlinked
from pricekeeper.alerts.channel import signing_key
from pricekeeper.alerts.channels import OpenChannel
from pricekeeper.clock import Clock
from pricekeeper.errors import DeliveryError, InvalidValueError
from pricekeeper.version import __version__

ATTEMPT_SECS: Final = 10
"""From resolving the name to the status of the answer."""
CONNECTIONS_MAX: Final = 64
_OK: Final = range(200, 300)
_REFUSED: Final = range(300, 500)
_LATER: Final = frozenset({408, 425, 429})


_UNREACHABLE: Final = "can't be reached, or its address is not allowed"


@contextlib.asynccontextmanager
async def one_attempt() -> AsyncIterator[None]:
    """Limit an attempt to `ATTEMPT_SECS`; raises `DeliveryError` for every failure."""
    try:
        async with asyncio.timeout(ATTEMPT_SECS):
            yield
    except InvalidValueError as error:
        raise DeliveryError(error.message, is_refused=True) from error
    except TimeoutError as error:
        raise DeliveryError(f"did not answer within {ATTEMPT_SECS} s") from error
    except (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError) as error:
        raise DeliveryError("its certificate is not valid") from error
    except (aiohttp.ClientConnectorError, AddressNotAllowedError) as error:
        raise DeliveryError(_UNREACHABLE) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise DeliveryError(f"the request failed: {type(error).__name__}") from error
    except OSError as error:
        raise DeliveryError(_UNREACHABLE) from error


class HttpSender:
    """Posts to addresses that tenants have chosen. Only the status of an answer is read."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        async with one_attempt():
            self._guard.check_url(url)
            async with self._open_session().post(
                yarl.URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer:
                status = answer.status
        if status not in _OK:
            is_refused = status in _REFUSED and status not in _LATER
            raise DeliveryError(f"answered HTTP {status}", is_refused=is_refused)

    async def close(self) -> None:
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
    """Post an alert, signed with the channel's key."""
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
    """HMAC-SHA256 of the request's id, time and body, in base64."""
    signed = b"%s.%d.%s" % (alert_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LOOKALIKES: Final = str.maketrans({"&": "\uff06", "<": "\u2039", ">": "\u203a", "`": "\u02cb"})
"""For code, where Slack needs escapes and Mattermost shows them."""


async def send_to_chat(http: HttpSender, channel: OpenChannel, alert_id: str, body: bytes) -> None:
    """Post an alert as a chat message."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": alert_id}
    message = msgspec.json.encode({"text": chat_text(body)})
    await http.post(channel.address.url, message, headers)


def chat_text(body: bytes) -> str:
    """An alert as a chat message. Foreign parts are code, so they can't link, mention or format."""
    alert = parse_body(body)
    title, text, next_step = (
        alert.shown(name, _as_code, lambda ours: ours.translate(_ESCAPES))
        for name in ("title", "text", "next")
    )
    return f"*{title}*\n{text}\n{next_step}\n`{alert.id}`"


def _as_code(text: str) -> str:
    return f"`{unlinked(text.translate(_LOOKALIKES))}`" if text else ""
