"""`ReadCache`: the age of its values, their number, and changes during a read."""

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.concurrency import ReadCache

AGE_MS_MAX = 30_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> ReadCache[str, int]:
    return ReadCache(clock.monotonic_ms, AGE_MS_MAX, 3)


def test_the_age_counts_from_the_start_of_the_read(
    cache: ReadCache[str, int], clock: ManualClock
) -> None:
    """A slow read returns an old value. The wall clock does not matter."""
    reading = cache.reading()
    clock.advance_ms(20_000)
    cache.keep("a", 1, reading)
    clock.jump_ms(-86_400_000)
    clock.advance_ms(AGE_MS_MAX - 20_000 - 1)
    assert (cache.get("a"), cache.get("b")) == (1, None)
    clock.advance_ms(1)
    assert cache.get("a") is None


def test_a_replaced_value_keeps_its_age(cache: ReadCache[str, int], clock: ManualClock) -> None:
    cache.keep("a", 1, cache.reading())
    clock.advance_ms(AGE_MS_MAX - 1)
    cache.replace("a", 2)
    cache.replace("b", 2)
    assert (cache.get("a"), cache.get("b")) == (2, None)
    clock.advance_ms(1)
    assert cache.get("a") is None


def test_the_least_recently_used_value_is_evicted(cache: ReadCache[str, int]) -> None:
    for key in "abc":
        cache.keep(key, 1, cache.reading())
    cache.get("a")
    cache.keep("d", 1, cache.reading())
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]


def test_a_read_that_overlaps_a_change_is_not_kept(cache: ReadCache[str, int]) -> None:
    """It may have missed the change. A value that does not exist is no change."""
    reading = cache.reading()
    cache.drop("b")
    cache.keep("a", 1, reading)
    assert cache.get("a") == 1
    cache.forget("a")
    cache.keep("a", 2, reading)
    assert cache.get("a") is None
