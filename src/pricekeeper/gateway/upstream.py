"""Bedrock, called by the gateway: one connection pool, and a new signature for each call."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreError
from pricekeeper.gateway.http_client import HttpClient, HttpReply, ReplyBrokenError, Waits
from pricekeeper.gateway.routes import Dialect, Route
from pricekeeper.settings import BedrockLocation
from pricekeeper.sigv4 import escaped_path, signed_headers
from pricekeeper.storage.dynamodb.credentials import CredentialSource

HASHED_AT_ONCE_BYTES: Final = 1 << 16
"""A longer body is hashed in a thread, which releases Python's lock."""
CONNECT_SECS_MAX: Final = 10
SILENCE_SECS_MAX: Final = 900
"""The longest that a model thinks before its first word."""
KEPT_SECS: Final = 55
REPLY_BYTES_MAX: Final = 64 << 20
_MODEL_IDS_MAX: Final = 1_024
LOST: Final = (ReplyBrokenError, TimeoutError, OSError)
"""The request may have reached Bedrock, and the answer was lost."""


_NOT_PASSED: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"location",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"server",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection or of our own server, and redirects: a client would follow them past
the gateway, with the app's key."""


class NoCredentialsError(Exception):
    """The service has no AWS credentials for Bedrock."""


class Upstream:
    """Sends calls to Bedrock."""

    def __init__(self, location: BedrockLocation, client: HttpClient, clock: Clock) -> None:
        parts = urlsplit(location.url)
        self.region = location.region
        self._prefix = parts.path.rstrip("/")
        self._host = parts.netloc
        self._client = client
        self._clock = clock
        self._signs = location.signs
        self._credentials = CredentialSource(None, clock)

    async def send(
        self, route: Route, model_id: str, headers: Mapping[str, str], body: bytes
    ) -> HttpReply:
        path = self._prefix + _path_of(route, model_id)
        sent = {**headers, "host": self._host}
        if self._signs:
            sent = await self._sign(path, sent, body)
        return await self._client.post(path, sent, body)

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
            content_sha256=await _digest(body),
            now_epoch=self._clock.now_ms() // 1000,
            headers=headers,
        )


async def _digest(body: bytes) -> str:
    if len(body) <= HASHED_AT_ONCE_BYTES:
        return hashlib.sha256(body).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, body)).hexdigest()


@asynccontextmanager
async def open_upstream(location: BedrockLocation, clock: Clock) -> AsyncIterator[Upstream]:
    """The upstream with its connections, until the end of the block."""
    waits = Waits(connect=CONNECT_SECS_MAX, silence=SILENCE_SECS_MAX, unused=KEPT_SECS)
    client = HttpClient(location.url, waits)
    try:
        yield Upstream(location, client, clock)
    finally:
        await client.close()


async def read_whole(response: HttpReply) -> bytes:
    """The body of an answer that is no stream; raises one of `LOST` if it is incomplete."""
    parts: list[bytes] = []
    left = REPLY_BYTES_MAX
    while part := await response.read():
        left -= len(part)
        if left < 0:
            raise ReplyBrokenError(f"the answer has more than {REPLY_BYTES_MAX} bytes")
        if response.is_whole and not parts:
            return part
        parts.append(part)
    return b"".join(parts)


def passed_headers(response: HttpReply) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that go back to the caller."""
    dropped: Collection[bytes] = _NOT_PASSED
    for name, value in response.raw_headers:
        if name == b"connection":
            dropped = {*dropped, *(one.strip().lower() for one in value.split(b","))}
    return [header for header in response.raw_headers if header[0] not in dropped]


def _path_of(route: Route, model_id: str) -> str:
    if route.dialect is Dialect.OPENAI:
        return "/openai/v1/chat/completions"
    if route.dialect is Dialect.ANTHROPIC:
        return "/anthropic/v1/messages"
    return f"/model/{_quoted(model_id)}/{route.name}"


@lru_cache(_MODEL_IDS_MAX)
def _quoted(model_id: str) -> str:
    return quote(model_id, safe="-._~")
