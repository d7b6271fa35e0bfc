"""Restarts endless background jobs that crash, and counts the crashes.

The pause doubles up to a minute, and is short again after a minute's run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from pricekeeper.clock import Clock

PAUSE_FIRST_MS: Final = 1_000
PAUSE_MAX_MS: Final = 60_000

_log = structlog.get_logger(__name__)


class Supervisor:
    """Keeps jobs running until it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self.crashes: Counter[str] = Counter()

    def start(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run the job, and restart it on a crash."""
        self.crashes[name] += 0  # exported from the start, so that the first crash is a change
        task = asyncio.create_task(self._keep_running(name, job), name=f"pricekeeper-{name}")
        self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_running(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        pause_ms = PAUSE_FIRST_MS
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                await job()
            except Exception:  # noqa: BLE001 - logged, counted and restarted, by design
                self.crashes[name] += 1
                _log.exception("job_crashed", job=name, pause_ms=pause_ms)
            if self._clock.monotonic_ms() - began_ms > PAUSE_MAX_MS:
                pause_ms = PAUSE_FIRST_MS
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(PAUSE_MAX_MS, pause_ms * 2)
