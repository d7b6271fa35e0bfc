"""A clock that a test can move forward."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from pricekeeper.clock import SystemClock

PAUSE_SECS: Final = 0.02
"""How soon a sleeper notices a move."""


class MovableClock:
    """Real time from ``start`` (now) plus what a test adds. For any thread."""

    def __init__(self, start: datetime | None = None) -> None:
        self._system = SystemClock()
        self._wall_shift_ms = 0
        self._moved_ms = 0
        if start is not None:
            at_ms = int(start.astimezone(UTC).timestamp() * 1000)
            self._wall_shift_ms = at_ms - self._system.now_ms()

    def now_ms(self) -> int:
        return self._system.now_ms() + self._wall_shift_ms + self._moved_ms

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms() + self._moved_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        until_ms = self.monotonic_ms() + duration_ms
        while (left_ms := until_ms - self.monotonic_ms()) > 0:  # noqa: ASYNC110 - any thread moves it
            await asyncio.sleep(min(PAUSE_SECS, left_ms / 1000))

    def move(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, secs: float = 0
    ) -> None:
        """Move wall time and durations forward."""
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=secs)
        if passed < timedelta():
            raise ValueError("time passes forward")
        self._moved_ms += int(passed.total_seconds() * 1000)
