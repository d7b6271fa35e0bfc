"""The connection of a call, and what happens to a stream when its caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from pricekeeper.gateway.meter import GatewayMeter

ABORT: Final = "pricekeeper.abort"
"""The message that ends a connection whose answer can't be finished."""
DRAINS_MAX: Final = 512
DRAIN_SECS_MAX: Final = 120

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Exchange(Protocol):
    """A request and its answer on our own server, without awaiting."""

    def take_body(self) -> bytes | None:
        """``None`` if the body must be received."""
        ...

    def let_go(self) -> None:
        """The gateway counts the request's bytes now."""
        ...

    def offer_place(self) -> None:
        """Let the server close the connection for a new one until the answer is written."""
        ...

    def write_whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """False if the reader is slow, so that the answer must be sent."""
        ...

    @property
    def is_read_slowly(self) -> bool:
        """Whether more may be written only after waiting."""
        ...

    def write_part(self, part: bytes) -> None: ...

    def watch(self, on_left: Callable[[], None]) -> None:
        """Call this if the caller leaves before its answer is complete, or has left."""
        ...


class Drains:
    """The streams that are read to their end only to be counted."""

    def __init__(self, meter: GatewayMeter) -> None:
        self._meter = meter
        self._count = 0

    def begin(self) -> bool:
        if self._count >= DRAINS_MAX:
            self._meter.drains["no_room"] += 1
            return False
        self._count += 1
        return True

    def end(self, *, is_whole: bool) -> None:
        self._count -= 1
        self._meter.drains["whole" if is_whole else "given_up"] += 1


class Caller:
    """The caller of one stream. When it leaves, the rest is read within a time limit."""

    def __init__(
        self, receive: Receive, exchange: Exchange | None, limit: asyncio.Timeout, drains: Drains
    ) -> None:
        """Without an ``exchange``, a task waits until the caller leaves."""
        self.has_left = False
        self._limit = limit
        self._drains = drains
        self._is_drained = False
        self._is_over = False
        self._watching: asyncio.Task[None] | None = None
        if exchange is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(receive))
        else:
            exchange.watch(self._leave)

    def forget(self, *, is_whole: bool) -> None:
        self._is_over = True
        if self._watching is not None:
            self._watching.cancel()
        if self._is_drained:
            self._drains.end(is_whole=is_whole)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._leave()

    def _leave(self) -> None:
        if self._is_over:
            return
        self.has_left = True
        self._is_drained = self._drains.begin()
        secs = DRAIN_SECS_MAX if self._is_drained else 0
        self._limit.reschedule(asyncio.get_running_loop().time() + secs)
