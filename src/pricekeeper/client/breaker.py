"""When to stop asking a service that does not answer.

One failure opens the breaker: a caller has waited for the deadline once, and the next ones need
not. While it is open nobody waits; the keeper asks the service itself in the background, after
pauses that double, and closes the breaker when it answers.
"""

from __future__ import annotations

import secrets
from typing import Final

from pricekeeper.concurrency import Backoff

BACKOFF: Final = Backoff(500, 30_000)
"""The service is left alone for the first of these at least."""


class Breaker:
    """Whether the service is believed to answer."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the service is left alone."""
        return self._failures > 0

    def fail(self) -> None:
        """Note that the service did not answer."""
        self._failures += 1

    def succeed(self) -> None:
        """Note that it did."""
        self._failures = 0

    def pause_ms(self) -> int:
        """How long to leave it alone now."""
        jitter_ms = BACKOFF.pause_ms(max(1, self._failures), secrets.randbelow)
        return BACKOFF.first_ms + jitter_ms
