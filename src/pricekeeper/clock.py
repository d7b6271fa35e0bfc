"""Time as a dependency: the only place that reads the machine's clocks.

Everything that needs to know or to wait for a time is handed a `Clock`. All of it is in
integer milliseconds: ``now_ms`` is wall time since the epoch, which can jump;
``monotonic_ms`` only moves forward and means nothing between processes.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """What a component may know about time."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Time that never goes back, for measuring durations."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Let that much time pass."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that moves only when it is told to; sleepers wake in the order of their times.

    It ships with the package so that users can test their own budgets without waiting.
    """

    def __init__(self, now_ms: int = 1_768_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._sleeps = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps += 1
        heapq.heappush(self._sleepers, (self._monotonic_ms + duration_ms, self._sleeps, woken))
        await woken

    def advance_ms(self, duration_ms: int) -> None:
        """Let time pass, and wake whoever was waiting for it."""
        if duration_ms < 0:
            raise ValueError("time passes forward; use jump_ms to set the wall clock back")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ms:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def jump_ms(self, offset_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would. Nobody wakes."""
        self._now_ms += offset_ms

    @property
    def sleepers(self) -> int:
        """How many are waiting: what a test watches before it lets time pass."""
        return sum(not woken.done() for _, _, woken in self._sleepers)
