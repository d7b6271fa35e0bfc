"""How requests reach the service. One is repeated only if harmless or surely not applied."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NewType, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
import yarl

from pricekeeper.client.errors import (
    ForbiddenError,
    RateLimitedError,
    ReplyLostError,
    ServiceError,
    ServiceProblem,
    UnavailableError,
    UnreachableError,
    error_of,
)
from pricekeeper.clock import Clock
from pricekeeper.errors import InvalidValueError
from pricekeeper.version import __version__
from pricekeeper.wire.operation import Operation

TIMEOUT_SECS: Final = 10
ATTEMPTS_MAX: Final = 3
PAUSE_FIRST_MS: Final = 100
PAUSE_MAX_MS: Final = 2_000
CONNECTIONS_MAX: Final = 100
PATHS_MAX: Final = 256
RENEWALS_MAX: Final = 2
"""Renewals per request. A sibling's login can end a token if processes outnumber sessions."""
API_LIMIT: Final = "requests"
"""The service's own limit, not a tenant's."""

_SEGMENT: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}", re.ASCII)
"""The characters of an id, which no proxy changes."""
RequestPath = NewType("RequestPath", str)
_NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, frozen=True):
    """A request to the service."""

    method: str
    path: RequestPath
    query: Mapping[str, str] = {}
    body: Any = None
    repeatable: bool = False
    """Whether applying it twice equals applying it once."""
    waits_for_limit: bool = False
    """Whether to repeat after a 429, as after a 503: usage must not be lost."""
    headers: Mapping[str, str] = {}
    """In addition to the caller's headers."""
    operation: Operation[Any] | None = None
    """The entry in the table of operations, if any."""
    parameters: Mapping[str, str] = {}


class Transport(Protocol):
    """Carries requests."""

    async def send(self, request: Request) -> Any:
        """The answer's JSON, ``None`` if empty; raises a problem."""
        ...

    async def close(self) -> None: ...


class Authorisation:
    """The headers that authenticate a request; here constant."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def accept(self, accepted: Mapping[str, str]) -> None: ...

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Replace refused headers; returns whether there may be better ones."""
        del refused
        return False

    async def doubt(self, limited: Mapping[str, str]) -> bool:
        """Replace doubtful headers; returns whether there may be better ones."""
        del limited
        return False

    async def end(self) -> None:
        """End the session, if any; nothing more is sent."""


@functools.lru_cache(PATHS_MAX)
def path_of(*segments: str) -> RequestPath:
    """Join segments; `InvalidValueError` for one that a proxy could resolve, like ``..``."""
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            message = f"{segment[:64]!r} is no id: must be letters, digits and . _ ~ -, no . or .."
            raise InvalidValueError("id", message)
    return RequestPath("/" + "/".join(segments))


class Wire:
    """One connection pool to one service. Each request is sent once."""

    def __init__(self, url: str, timeout_secs: float = TIMEOUT_SECS) -> None:
        parsed = yarl.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidValueError("url", f"{url!r} is not a URL such as http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_secs)
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> Any:
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = yarl.URL(f"{self.url}{request.path}{query}", encoded=True)
        data = None if request.body is None else _encode(request.body)
        kind = {} if data is None else {"Content-Type": "application/json"}
        try:
            # Redirects are not followed: they would carry the credentials elsewhere.
            async with self._pool().request(
                request.method,
                url,
                data=data,
                headers={**kind, **request.headers, **headers},
                allow_redirects=False,
            ) as response:
                content = await response.read()
        except _NEVER_SENT as error:
            raise UnreachableError(self.url, _reason(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReplyLostError(self.url, _reason(error)) from error
        if not response.ok or response.status >= 300:  # noqa: PLR2004
            raise error_of(response.status, response.headers, content)
        try:
            return msgspec.json.decode(content) if content else None
        except msgspec.DecodeError as error:
            detail = f"{self.url} did not answer in JSON: it is not the service, or its end is lost"
            raise UnavailableError(ServiceProblem(response.status, "NOT_JSON", detail)) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"pricekeeper-client/{__version__}"},
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            )
        return self._session


class HttpTransport:
    """Sends requests with credentials, and repeats them where that is harmless."""

    def __init__(self, wire: Wire, authorisation: Authorisation, clock: Clock) -> None:
        self._wire = wire
        self._authorisation = authorisation
        self._clock = clock

    async def send(self, request: Request) -> Any:
        attempts, renewals = 1, 0
        while True:  # at most RENEWALS_MAX renewals and ATTEMPTS_MAX attempts
            headers = await self._authorisation.headers()
            try:
                answer = await self._wire.exchange(request, headers)
            except (ForbiddenError, RateLimitedError) as error:
                if renewals < RENEWALS_MAX and await self._renew_token(error, headers):
                    if renewals:  # so that siblings do not return all at once
                        await self._clock.sleep_ms(secrets.randbelow(PAUSE_FIRST_MS))
                    renewals += 1
                    continue
                waits = request.waits_for_limit and isinstance(error, RateLimitedError)
                if attempts == ATTEMPTS_MAX or not waits:
                    raise
                await self._clock.sleep_ms(pause_ms(error, attempts))
                attempts += 1
            except UnavailableError as error:
                not_sent = isinstance(error, UnreachableError)
                if attempts == ATTEMPTS_MAX or not (request.repeatable or not_sent):
                    raise
                await self._clock.sleep_ms(pause_ms(error, attempts))
                attempts += 1
            else:
                self._authorisation.accept(headers)
                return answer

    async def _renew_token(
        self, error: ForbiddenError | RateLimitedError, headers: Mapping[str, str]
    ) -> bool:
        """Renew the token if it may cause the error; returns whether there may be another."""
        if isinstance(error, RateLimitedError):
            is_of_the_api = {one.limit for one in error.violations} == {API_LIMIT}
            return is_of_the_api and await self._authorisation.doubt(headers)
        is_refused = error.status == HTTPStatus.UNAUTHORIZED
        return is_refused and await self._authorisation.renew(headers)

    async def close(self) -> None:
        try:
            await self._authorisation.end()
        finally:
            await self._wire.close()


def pause_ms(error: ServiceError, attempts: int) -> int:
    """The pause that the service asks for, or one that doubles; with jitter."""
    wait_ms = PAUSE_FIRST_MS << attempts
    if error.retry_after_secs is not None:
        wait_ms = error.retry_after_secs * 1000
    return min(PAUSE_MAX_MS, wait_ms) + secrets.randbelow(PAUSE_FIRST_MS)


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
