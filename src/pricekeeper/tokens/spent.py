"""Refresh tokens of ours that were refused a moment ago, so that refusing them again costs no read.

A refresh token that has once been refused never counts again, but a process may present it in a
loop. Each entry is kept for a minute and no longer: a wall clock that leaps makes living sessions
look expired, and what was concluded then must not outlast the leap.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache

SPENT_MAX: Final = 10_000
SPENT_AGE_MS_MAX: Final = 60_000


class SpentTokens:
    """The hashes of at most ``entries_max`` refused refresh tokens, the latest ones."""

    def __init__(self, clock: Clock, entries_max: int = SPENT_MAX) -> None:
        self._clock = clock
        self._refused_at_ms: BoundedCache[str, int] = BoundedCache(entries_max)

    def add(self, token_hash: str) -> None:
        """Remember a token that was just refused."""
        self._refused_at_ms.put(token_hash, self._clock.monotonic_ms())

    def __contains__(self, token_hash: str) -> bool:
        refused_at_ms = self._refused_at_ms.peek(token_hash)
        if refused_at_ms is None:
            return False
        return self._clock.monotonic_ms() - refused_at_ms < SPENT_AGE_MS_MAX
