"""A request as ASGI delivers it, and the ASGI lifespan."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from pricekeeper.concurrency.deadline import Deadline
from pricekeeper.errors import InvalidValueError
from pricekeeper.http.exchange import Exchange

QUERY_FIELDS_MAX: Final = 20


class Incoming:
    """An ASGI request. Header names are lower-case bytes."""

    __slots__ = ("deadline", "exchange", "headers", "scope")

    def __init__(self, exchange: Exchange, headers: dict[bytes, bytes] | None = None) -> None:
        self.exchange = exchange
        self.scope: Any = exchange.scope
        self.deadline: Deadline | None = None
        """``None`` for an operation that bounds itself."""
        self.headers: dict[bytes, bytes] = (
            dict(self.scope["headers"]) if headers is None else headers
        )
        """The last value of each name."""

    def repeated(self) -> set[bytes]:
        headers = self.scope["headers"]
        if len(headers) == len(self.headers):
            return set()
        seen: set[bytes] = set()
        repeated: set[bytes] = set()
        for name, _ in headers:
            (repeated if name in seen else seen).add(name)
        return repeated

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        return dict(self._pairs())

    def query_once(self, names: Collection[str]) -> dict[str, str]:
        """The query by name. Raises if one of these names repeats."""
        pairs = self._pairs()
        given = [name for name, _ in pairs]
        for name in names:
            if given.count(name) > 1:
                raise InvalidValueError(name, "is given more than once")
        return dict(pairs)

    def _pairs(self) -> list[tuple[str, str]]:
        text: bytes = self.scope["query_string"]
        if not text:
            return []
        try:
            return parse_qsl(
                text.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX
            )
        except ValueError:
            detail = f"may have {QUERY_FIELDS_MAX} fields at most"
            raise InvalidValueError("query", detail) from None

    @property
    def client_host(self) -> str | None:
        client = self.scope.get("client")
        return None if client is None else str(client[0])

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scope["state"]
        return state


def weights_of(header: str | None) -> dict[str, float]:
    """The names of a header with their weights (RFC 9110); 0 refuses, as does a malformed one."""
    found: dict[str, float] = {}
    for part in (header or "").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name:
            stated = (one.partition("=") for one in parameters)
            weights = [value.strip() for key, _, value in stated if key.strip() == "q"]
            found[name] = _number(weights[0]) if weights else 1.0
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[MutableMapping[str, Any]]]
"""Its value becomes the state of every request."""


class CallerLeftError(Exception):
    """The caller closed the connection before its request was complete."""


async def run_lifespan(lifespan: Lifespan, scope: Scope, receive: Receive, send: Send) -> None:
    """Keep the lifespan open while the server runs."""
    phase = "startup"
    await receive()
    try:
        async with lifespan() as state:
            scope["state"].update(state)
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
    except BaseException:
        await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
        raise
    await send({"type": "lifespan.shutdown.complete"})
