"""A `Clock` on which a day passes in seconds, slower when the machine can't keep up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLOWDOWN: Final = 60
PAUSE_SECS_MIN: Final = 0.005
PAUSE_SECS_MAX: Final = 0.05
"""Real time, for other tasks."""


class FastClock:
    """Wall time from ``start_ms`` on, set by one thread and read by any."""

    def __init__(self, start_ms: int) -> None:
        self._speed = 1
        self._slow = 0
        self._anchor = (start_ms, time.monotonic_ns(), 1)

    def now_ms(self) -> int:
        start_ms, started_ns, speed = self._anchor
        return start_ms + (time.monotonic_ns() - started_ns) * speed // 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms()  # it is never set back

    async def sleep_ms(self, duration_ms: int) -> None:
        until_ms = self.now_ms() + duration_ms
        while (left_ms := until_ms - self.now_ms()) > 0:  # the speed may change meanwhile
            left_secs = left_ms / 1000 / self._anchor[2]
            await asyncio.sleep(min(PAUSE_SECS_MAX, max(PAUSE_SECS_MIN, left_secs)))

    def run(self, speed: int) -> None:
        """Set the speed, in multiples of real time."""
        self._speed = speed
        self._set()

    @contextmanager
    def slowly(self) -> Iterator[None]:
        self._slow += 1
        self._set()
        try:
            yield
        finally:
            self._slow -= 1
            self._set()

    def _set(self) -> None:
        speed = max(1, self._speed // SLOWDOWN) if self._slow else self._speed
        if speed != self._anchor[2]:
            self._anchor = (self.now_ms(), time.monotonic_ns(), speed)
