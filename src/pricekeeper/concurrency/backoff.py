"""How long to wait before another attempt.

Full jitter: a random time from nothing up to a bound that doubles with each failure. Callers that
failed together do not come back together, and the store or the service gets room to recover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_DOUBLINGS_MAX = 62
"""Beyond this the bound is the longest wait anyway; it keeps the number small."""


class Backoff(NamedTuple):
    """The bounds of the waits before further attempts: of the first one, and of all."""

    first_ms: int
    longest_ms: int

    def pause_ms(self, failures: int, randbelow: Callable[[int], int]) -> int:
        """The wait after so many failures, at least one: 0 to ``first_ms`` after the first.

        ``randbelow(n)`` returns a random integer from 0 to n - 1.
        """
        doublings = min(failures - 1, _DOUBLINGS_MAX)
        return randbelow(min(self.longest_ms, self.first_ms << doublings) + 1)
