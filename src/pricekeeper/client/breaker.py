"""When to stop asking a service that does not answer.

One failure opens the breaker: one caller has waited for the deadline, the next ones need not. While
it is open, the keeper asks the service in the background, after pauses that double, and closes the
breaker when it answers.
"""

from __future__ import annotations

import secrets
from typing import Final

from pricekeeper.concurrency import Backoff

BACKOFF: Final = Backoff(500, 30_000)
"""The first value is the minimum pause."""


class Breaker:
    """Open while the service does not answer."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the service should not be asked."""
        return self._failures > 0

    def fail(self) -> None:
        self._failures += 1

    def succeed(self) -> None:
        self._failures = 0

    def pause_ms(self) -> int:
        """The pause before the service is asked again."""
        jitter_ms = BACKOFF.pause_ms(max(1, self._failures), secrets.randbelow)
        return BACKOFF.first_ms + jitter_ms
