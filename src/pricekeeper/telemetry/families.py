"""Metric families, declared where they are counted.

A meter is a dataclass of plain numbers. A field that is `counted` says to which family it belongs
and under which labels, so that one line counts and is exported. To count is to add to an attribute
or a dict; whoever exports a meter reads it with `read_samples`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

Kind = Enum("Kind", ["COUNTER", "GAUGE", "LEVEL", "SIZES", "DURATIONS"])
"""A level is a gauge of one process; those of all processes add up."""
_EXPORT: Final = "export"


class Family(NamedTuple):
    """One metric, with a line for each combination of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.COUNTER


def counted(
    family: Family,
    *labels: str,
    factory: Callable[[], Any] = int,
    shown: tuple[str, ...] = (),
    per_unit: int = 1,
) -> Any:
    """A field with what belongs to a family under these labels: a number, or a dict of numbers.

    The keys of a dict are labels before these. What is ``shown`` is there from the beginning at 0,
    so that the first one is seen as a change. A unit may be counted in parts.
    """
    return field(default_factory=factory, metadata={_EXPORT: (family, labels, shown, per_unit)})


def families_of(meter: Any) -> Iterator[Family]:
    """Every family that the meter counts for."""
    return (one.metadata[_EXPORT][0] for one in fields(meter) if _EXPORT in one.metadata)


def read_samples(
    meter: Any, *first: str
) -> Iterator[tuple[Family, tuple[str, ...], float | Sizes]]:
    """All that was counted, by family and labels; ``first`` are those of the meter as a whole."""
    for one in fields(meter):
        if _EXPORT in one.metadata:
            family, labels, shown, per_unit = one.metadata[_EXPORT]
            value = getattr(meter, one.name)
            if not isinstance(value, dict):
                yield family, first + labels, value
                continue
            for key, part in {**dict.fromkeys(shown, 0), **value}.items():
                own = tuple(map(str, key)) if isinstance(key, tuple) else (str(key),)
                yield family, first + own + labels, part if per_unit == 1 else part / per_unit


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
