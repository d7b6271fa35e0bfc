"""How large things were: a histogram over powers of two that costs three additions."""

from __future__ import annotations

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

    def note(self, size: int) -> None:
        """Count one more thing, of that size."""
        self.counts[min((size - 1).bit_length(), len(BOUNDS))] += 1
        self.total += size
