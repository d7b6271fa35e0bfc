"""Whoever waits for a stream, and how many streams are read on after that one has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pricekeeper.gateway.connection import Exchange
from pricekeeper.gateway.meter import GatewayMeter

DRAINS_MAX: Final = 512
"""How many answers are read on at once after their callers have left."""
DRAIN_SECS_MAX: Final = 120

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Drains:
    """The streams of one gateway that are read on for nobody but the books."""

    def __init__(self, meter: GatewayMeter) -> None:
        self._meter = meter
        self._count = 0

    def begin(self) -> bool:
        """Whether there is room for one more, which begins."""
        if self._count >= DRAINS_MAX:
            self._meter.drains["no_room"] += 1
            return False
        self._count += 1
        return True

    def end(self, *, is_whole: bool) -> None:
        """Note the end of one."""
        self._count -= 1
        self._meter.drains["whole" if is_whole else "given_up"] += 1


class Caller:
    """The caller of one stream. When it leaves, the time begins in which the rest is read."""

    def __init__(
        self, receive: Receive, exchange: Exchange | None, limit: asyncio.Timeout, drains: Drains
    ) -> None:
        """``exchange`` tells that it leaves; where there is none, a task waits for the message."""
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
        """Stop watching: the stream has ended."""
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
