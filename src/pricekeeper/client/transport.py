"""The transport of requests to the service: the port, and its implementation over HTTP.

`Admin` and `Api` make `Request` values and know no more. Over HTTP a request is sent again
only if doing it twice is harmless (``repeatable``) or if it was surely not done: the access token
was refused, or there was no connection. A refused access token is not sent again.
"""

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

TIMEOUT_SECS: Final = 10
ATTEMPTS_MAX: Final = 3
PAUSE_FIRST_MS: Final = 100
PAUSE_MAX_MS: Final = 2_000
CONNECTIONS_MAX: Final = 100
PATHS_MAX: Final = 256
RENEWALS_MAX: Final = 2
"""How often a request gets another token for one that was refused. More than once: where an app has
more processes than sessions, a sibling's login can end a token before its first use."""
API_LIMIT: Final = "requests"
"""What the service calls a limit of its own, in distinction from those that tenants have."""

_SEGMENT: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}", re.ASCII)
"""What every id of the service matches; a proxy changes none of it on the way."""
RequestPath = NewType("RequestPath", str)
"""A path that `path_of` made."""
_NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, frozen=True):
    """One thing to ask of the service."""

    method: str
    path: RequestPath
    query: Mapping[str, str] = {}
    body: Any = None
    repeatable: bool = False
    """Whether having it done twice is the same as once."""
    waits_for_limit: bool = False
    """Whether to send it again after a 429, as after a 503: what reports usage must not be lost."""
    headers: Mapping[str, str] = {}
    """Beside those of whoever asks."""


class Transport(Protocol):
    """What carries requests."""

    async def send(self, request: Request) -> Any:
        """The answer's JSON, ``None`` for an answer without any; raises for a problem."""
        ...

    async def close(self) -> None:
        """Close everything."""
        ...


class Authorisation:
    """What a request says about who sends it: always the same headers, unless a kind has others."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        """The headers to send now."""
        return self._headers

    def accept(self, accepted: Mapping[str, str]) -> None:
        """Note that the service accepted these headers."""

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """Replace headers that the service refused; whether there may be better ones now."""
        del refused
        return False

    async def doubt(self, limited: Mapping[str, str]) -> bool:
        """Replace headers that a 429 makes doubtful; whether there may be better ones now."""
        del limited
        return False

    async def end(self) -> None:
        """End the session, if there is one; no more requests will be sent."""


@functools.lru_cache(PATHS_MAX)
def path_of(*segments: str) -> RequestPath:
    """Join segments to a path; raises `InvalidValueError` for one that could change the others.

    Quoting is no help: many a proxy decodes a path, resolves ``..`` in it and sends the rest on.
    """
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            message = f"{segment[:64]!r} is no id: must be letters, digits and . _ ~ -, no . or .."
            raise InvalidValueError("id", message)
    return RequestPath("/" + "/".join(segments))


class Wire:
    """One connection pool to one service: each request is sent once."""

    def __init__(self, url: str, timeout_secs: float = TIMEOUT_SECS) -> None:
        parsed = yarl.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidValueError("url", f"{url!r} is not a URL such as http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_secs)
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> Any:
        """The answer's JSON; raises for a problem."""
        query = f"?{urlencode(request.query)}" if request.query else ""
        url = yarl.URL(f"{self.url}{request.path}{query}", encoded=True)
        data = None if request.body is None else _encode(request.body)
        kind = {} if data is None else {"Content-Type": "application/json"}
        try:
            # A redirect is not followed: it would carry the credentials somewhere else.
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
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _pool(self) -> aiohttp.ClientSession:
        """The pool, opened by the first request, which is when there is an event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"pricekeeper-client/{__version__}"},
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            )
        return self._session


class HttpTransport:
    """Requests over HTTP, with credentials, and again where that is harmless."""

    def __init__(self, wire: Wire, authorisation: Authorisation, clock: Clock) -> None:
        self._wire = wire
        self._authorisation = authorisation
        self._clock = clock

    async def send(self, request: Request) -> Any:
        """The answer's JSON; raises for a problem."""
        attempts, renewals = 1, 0
        while True:  # ends: at most RENEWALS_MAX renewals and ATTEMPTS_MAX attempts
            headers = await self._authorisation.headers()
            try:
                answer = await self._wire.exchange(request, headers)
            except (ForbiddenError, RateLimitedError) as error:
                if renewals < RENEWALS_MAX and await self._renew_token(error, headers):
                    if renewals:  # the siblings had better not all come back at once
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
        """Renew the token if it may be the cause of the error; whether there may be another."""
        if isinstance(error, RateLimitedError):
            is_of_the_api = {one.limit for one in error.violations} == {API_LIMIT}
            return is_of_the_api and await self._authorisation.doubt(headers)
        is_refused = error.status == HTTPStatus.UNAUTHORIZED
        return is_refused and await self._authorisation.renew(headers)

    async def close(self) -> None:
        """End the session, if there is one, and close the connections."""
        try:
            await self._authorisation.end()
        finally:
            await self._wire.close()


def pause_ms(error: ServiceError, attempts: int) -> int:
    """The pause that the service asks for, or one that doubles; plus jitter."""
    wait_ms = PAUSE_FIRST_MS << attempts
    if error.retry_after_secs is not None:
        wait_ms = error.retry_after_secs * 1000
    return min(PAUSE_MAX_MS, wait_ms) + secrets.randbelow(PAUSE_FIRST_MS)


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
