"""How large things were and how long they took: histograms that cost a few additions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

BOUNDS: Final = tuple(1 << power for power in range(11))
"""1, 2, 4 and so on up to 1,024, which is more than anything that is counted here may be."""


@dataclass(slots=True)
class Sizes:
    """Counts sizes of 1 and more."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """How many fitted in each of `BOUNDS` and not in the one before; the last place has what is
    larger than all. A list, because another thread may read it meanwhile."""

    total: int = 0
    """All sizes together."""

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def note(self, size: int) -> None:
        """Count one more thing, of that size."""
        self.counts[min((size - 1).bit_length(), len(BOUNDS))] += 1
        self.total += size


BOUNDS_US: Final = tuple(
    1000 * ms // 10 for ms in (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000)
)
"""Half a millisecond to two and a half seconds."""


@dataclass(slots=True)
class Durations:
    """Counts durations, in microseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_US) + 1))
    """How many took no longer than each of `BOUNDS_US` and longer than the one before."""

    total: int = 0
    """All of them together."""

    def note(self, elapsed_us: int) -> None:
        """Count one more."""
        self.counts[bisect_left(BOUNDS_US, elapsed_us)] += 1
        self.total += elapsed_us
