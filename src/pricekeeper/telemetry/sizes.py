"""How large things were and how long they took: histograms that cost a few additions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import ClassVar, Final

BOUNDS: Final = tuple(1 << power for power in range(11))
"""1, 2, 4 and so on up to 1,024, which is more than anything that is counted here may be."""
BOUNDS_US: Final = tuple(
    1000 * ms // 10 for ms in (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000)
)
"""Half a millisecond to two and a half seconds."""


@dataclass(slots=True)
class Sizes:
    """Counts sizes of 1 and more."""

    bounds: ClassVar[tuple[int, ...]] = BOUNDS
    counts: list[int] = field(default_factory=list)
    """How many fitted in each of the bounds and not in the one before; the last place has what is
    larger than all. A list, because another thread may read it meanwhile."""

    total: int = 0
    """All of them together."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def note(self, size: int) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, size)] += 1
        self.total += size


@dataclass(slots=True)
class Durations(Sizes):
    """Counts durations, in microseconds."""

    bounds: ClassVar[tuple[int, ...]] = BOUNDS_US
