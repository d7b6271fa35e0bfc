"""How long to wait before the next attempt.

Full jitter: a random time up to a bound that doubles, so callers do not retry together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_DOUBLINGS_MAX = 62


class Backoff(NamedTuple):
    """The longest first wait, and the longest wait of all."""

    first_ms: int
    longest_ms: int

    def pause_ms(self, failures: int, randbelow: Callable[[int], int]) -> int:
        """The wait after this many failures, at least one; ``randbelow(n)`` is below n."""
        doublings = min(failures - 1, _DOUBLINGS_MAX)
        return randbelow(min(self.longest_ms, self.first_ms << doublings) + 1)
