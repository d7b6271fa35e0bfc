"""The meter: counts what stores do. Sizes and durations: how large, and how long."""

from collections import Counter
from dataclasses import dataclass

import pytest

from pricekeeper.telemetry import (
    BOUNDS,
    BOUNDS_US,
    Durations,
    Family,
    Kind,
    Sizes,
    StoreMeter,
    counted,
    families_of,
    read_samples,
)


def test_a_new_meter_has_counted_nothing() -> None:
    """A value never seen reads as zero, without preparation."""
    meter = StoreMeter()
    assert meter.calls["get"] == 0
    assert meter.write_half_units["Config"] == 0
    assert (meter.commit_sizes.count, meter.commit_sizes.total, meter.swept) == (0, 0, 0)


def test_meters_do_not_share_their_counters() -> None:
    """Two stores in one process are counted apart."""
    one, other = StoreMeter(), StoreMeter()
    one.calls["get"] += 1
    assert other.calls["get"] == 0


def test_a_cleared_meter_is_a_new_one() -> None:
    """The holder of the meter continues to count in it, from zero."""
    meter = StoreMeter()
    meter.calls["update"] += 3
    meter.attempts["UpdateItem"] += 4
    meter.faults["throttled"] += 1
    meter.read_half_units["Config"] += 1
    meter.write_half_units["Config"] += 2
    meter.swept = 5
    meter.commit_sizes.note(5)
    meter.clear()
    assert meter == StoreMeter()


@pytest.mark.parametrize("place", range(len(BOUNDS_US)))
def test_a_duration_is_in_the_first_bucket_that_it_fits(place: int) -> None:
    """A bound is part of its bucket, as Prometheus has it."""
    durations, bound_us = Durations(), BOUNDS_US[place]
    for elapsed_us in (bound_us, bound_us + 1):
        durations.note(elapsed_us)
    assert [durations.counts[place], durations.counts[place + 1]] == [1, 1]
    assert (sum(durations.counts), durations.total) == (2, 2 * bound_us + 1)


@pytest.mark.parametrize("place", range(len(BOUNDS)))
def test_a_size_is_in_the_first_bucket_that_it_fits(place: int) -> None:
    sizes, bound = Sizes(), BOUNDS[place]
    for size in (bound, bound + 1):
        sizes.note(size)
    assert [sizes.counts[place], sizes.counts[place + 1]] == [1, 1]
    assert (sum(sizes.counts), sizes.total) == (2, 2 * bound + 1)


FALLS = Family("falls", "By place.", ("house", "place"))
UNITS = Family("units", "By table.", ("table", "kind"))


@dataclass(slots=True)
class HouseMeter:
    """Counts in every way that there is."""

    stairs: int = counted(FALLS, "stairs")
    read_half_units: Counter[str] = counted(
        UNITS, "read", factory=Counter, shown=("a", "b"), per_unit=2
    )
    sizes: Sizes = counted(Family("sizes", "Of rooms.", kind=Kind.SIZES), factory=Sizes)
    private: int = 0


def test_a_field_counts_and_is_exported() -> None:
    """Under the labels of the meter, its own keys and the field; at 0 from the beginning."""
    meter = HouseMeter()
    meter.stairs += 2
    meter.read_half_units["b"] += 3
    meter.private += 1
    assert [family.name for family in families_of(meter)] == ["falls", "units", "sizes"]
    assert [sample[1:] for sample in read_samples(meter)] == [
        (("stairs",), 2),
        (("a", "read"), 0),
        (("b", "read"), 1.5),
        ((), meter.sizes),
    ]
    assert next(read_samples(meter, "mine"))[1] == ("mine", "stairs")
    assert HouseMeter().read_half_units == {}
