"""Bedrock itself, as the gateway calls it: one pool of connections, signed anew."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp
import yarl

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreError
from pricekeeper.gateway.routes import Dialect, Route
from pricekeeper.settings import BedrockLocation
from pricekeeper.sigv4 import escaped_path, signed_headers
from pricekeeper.storage.dynamodb.credentials import CredentialSource

CONNECTIONS_MAX: Final = 2_048
CONNECT_SECS_MAX: Final = 10
SILENCE_SECS_MAX: Final = 900
"""How long Bedrock may say nothing: the longest that a model thinks before its first word."""
KEPT_SECS: Final = 55
READ_BYTES: Final = 1 << 16
PIECES_FROM_BYTES: Final = 1 << 18
REPLY_BYTES_MAX: Final = 64 << 20
"""The longest answer that is not a stream."""
_PASSED_ON: Final = ("content-type", "accept")
_PASSED_ON_PREFIX: Final = ("x-amzn-bedrock-", "anthropic-")
NOT_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientProxyConnectionError,
)
"""The request has surely not reached Bedrock."""
LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""The request may have reached Bedrock, and the answer has not reached us."""


_NOT_PASSED: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""What an answer says of its own connection; and what our server says itself."""


class NoCredentialsError(Exception):
    """The service has no AWS credentials to call Bedrock with."""


class Upstream:
    """Where calls are sent on to."""

    def __init__(
        self, location: BedrockLocation, session: aiohttp.ClientSession, clock: Clock
    ) -> None:
        parts = urlsplit(location.url)
        self.region = location.region
        self._base = location.url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._host = parts.netloc
        self._session = session
        self._clock = clock
        self._signs = location.signs
        self._credentials = CredentialSource(None, clock)

    async def send(
        self, route: Route, model_id: str, headers: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Make one attempt; the answer has begun, and its body is still to be read."""
        path = _path_of(route, model_id)
        sent = {
            name: value
            for name, value in headers.items()
            if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)
        }
        if self._signs:
            sent = await self._sign(f"{self._prefix}{path}", sent, body)
        url = yarl.URL(f"{self._base}{path}", encoded=True)
        # A long body is written in pieces, between which the event loop does other things.
        data = body if len(body) < PIECES_FROM_BYTES else io.BytesIO(body)
        return await self._session.post(url, data=data, headers=sent, allow_redirects=False)

    async def _sign(self, path: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        try:
            keys = self._credentials.current() or await self._credentials.renew()
        except StoreError as error:
            raise NoCredentialsError(str(error)) from error
        return signed_headers(
            keys,
            service="bedrock",
            method="POST",
            host=self._host,
            path=escaped_path(path),
            region=self.region,
            content_sha256=hashlib.sha256(body).hexdigest(),
            now_epoch=self._clock.now_ms() // 1000,
            headers=headers,
        )


@asynccontextmanager
async def open_upstream(location: BedrockLocation, clock: Clock) -> AsyncIterator[Upstream]:
    """The upstream, with its connections, until the end of the block."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_SECS_MAX, sock_read=SILENCE_SECS_MAX
    )
    async with aiohttp.ClientSession(
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BYTES,
        skip_auto_headers=("Accept-Encoding", "Accept", "User-Agent"),
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEPT_SECS),
    ) as session:
        yield Upstream(location, session, clock)


async def read_whole(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer that is no stream; raises one of `LOST` if it does not come whole."""
    parts: list[bytes] = []
    left = REPLY_BYTES_MAX
    while part := await response.content.readany():
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise aiohttp.ClientPayloadError(f"the answer has more than {REPLY_BYTES_MAX} bytes")
    return b"".join(parts)


def passed_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that go back to the caller."""
    named = response.headers.get("connection", "")
    dropped = _NOT_PASSED | {name.strip().lower() for name in named.split(",")}
    return [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower().decode("latin-1") not in dropped
    ]


def _path_of(route: Route, model_id: str) -> str:
    if route.dialect is Dialect.OPENAI:
        return "/openai/v1/chat/completions"
    if route.dialect is Dialect.ANTHROPIC:
        return "/anthropic/v1/messages"
    end = route.name
    return f"/model/{quote(model_id, safe='-._~')}/{end}"
