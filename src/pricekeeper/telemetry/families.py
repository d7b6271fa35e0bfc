"""Metric families, declared where they are counted, and histograms.

A meter is a dataclass of numbers; its `counted` fields name their family.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

Kind = Enum("Kind", ["COUNTER", "GAUGE", "LEVEL", "SIZES", "DURATIONS"])
"""A LEVEL is a gauge that is added over all processes."""
_EXPORT: Final = "export"


class Family(NamedTuple):
    """A metric, with a sample per combination of labels."""

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
    """Declare a number, or a dict of numbers, that counts for a family.

    Keys of a dict are labels before ``labels``. Keys in ``shown`` are exported from the start as 0,
    so that the first count is a change. ``per_unit`` parts make one exported unit.
    """
    return field(default_factory=factory, metadata={_EXPORT: (family, labels, shown, per_unit)})


def families_of(meter: Any) -> Iterator[Family]:
    """Return the families of a meter."""
    return (one.metadata[_EXPORT][0] for one in fields(meter) if _EXPORT in one.metadata)


def read_samples(
    meter: Any, *first: str
) -> Iterator[tuple[Family, tuple[str, ...], float | Sizes]]:
    """Yield the samples of a meter; ``first`` are labels of all."""
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
"""1, 2, 4 ... 1,024."""
BOUNDS_US: Final = tuple(
    100 * tenth
    for tenth in (5, 10, 25, 50, 100, 250, 500, 750, 1_000, 1_200, 2_500, 5_000, 10_000, 25_000)
)
"""Half a millisecond to two and a half seconds. 75 and 120 ms are targets with an alarm."""


@dataclass(slots=True)
class Sizes:
    """A histogram of sizes from 1 on."""

    bounds: ClassVar[tuple[int, ...]] = BOUNDS
    counts: list[int] = field(default_factory=list)
    """By bucket; the last is above all bounds. A list, which another thread may read meanwhile."""

    total: int = 0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def note(self, size: int) -> None:
        self.counts[bisect_left(self.bounds, size)] += 1
        self.total += size


@dataclass(slots=True)
class Durations(Sizes):
    """A histogram of durations in microseconds."""

    bounds: ClassVar[tuple[int, ...]] = BOUNDS_US
