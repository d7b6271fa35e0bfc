"""Compares secrets that somebody may be guessing one after another, a few a second.

A caller that has failed too often is doubted, but a right secret must still be recognised. Secrets
that we minted can be compared at any rate: they have 256 random bits. A secret of another make
may be a person's password, and its hash may cost a quarter of a second. So a doubted secret of
that kind waits for its turn, and turns take `TURN_MS` each. That bounds both what can be guessed
and what guessing costs us, and a right secret only waits.

At most `WAITING_MAX` wait, and at most `WAITING_PER_CLIENT_MAX` of them with one client's name,
so that guesses at one client leave turns to the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import OverloadedError

TURN_MS: Final = 250
WAITING_MAX: Final = 64
WAITING_PER_CLIENT_MAX: Final = 8


class WaitingQueue:
    """Counts the callers that wait for something costly, in all and for each client."""

    def __init__(self, waiting_max: int, per_client_max: int) -> None:
        self._waiting_max = waiting_max
        self._per_client_max = per_client_max
        self._waiting: Counter[str] = Counter()
        self._total = 0

    @asynccontextmanager
    async def join(self, client_id: str) -> AsyncIterator[None]:
        """Count as waiting; `OverloadedError` if too many wait already."""
        if self._total >= self._waiting_max or self._waiting[client_id] >= self._per_client_max:
            raise OverloadedError("too many secrets are waiting to be checked")
        self._total += 1
        self._waiting[client_id] += 1
        try:
            yield
        finally:
            self._total -= 1
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id]


class DoubtedSecrets:
    """Gives turns, one at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue = WaitingQueue(WAITING_MAX, WAITING_PER_CLIENT_MAX)
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def wait_for_turn(self, client_id: str) -> AsyncIterator[None]:
        """Wait for a turn; the comparison is made within it."""
        async with self._queue.join(client_id), self._one_at_a_time:
            await self._clock.sleep_ms(TURN_MS)
            yield
