"""Limits in memory: exact, refilled by time, bounded, and undisturbed by a clock that leaps."""

import pytest

from pricekeeper.http.limits import IN_MEMORY
from pricekeeper.http.memory_limits import MemoryLimits
from pricekeeper.limiter import Limit
from pricekeeper.settings import API_LIMITS_PER_MINUTE

NOW_MS = 1_768_000_000_000
MINUTE_MS = 60_000
LIMIT = Limit("requests", 60, 60, MINUTE_MS)


@pytest.fixture
def limits() -> MemoryLimits:
    return MemoryLimits({"usage": LIMIT})


def granted(limits: MemoryLimits, caller: str, now_ms: int) -> int:
    """Take until none is left; returns how many were granted."""
    count = 0
    while limits.take("usage", caller, now_ms) is not None:
        count += 1
    return count


def test_a_bucket_grants_its_capacity_and_then_its_rate(limits: MemoryLimits) -> None:
    """Sixty at once, then one a second, and a denial says when the next one is there."""
    assert granted(limits, "a", NOW_MS) == 60
    assert limits.take("usage", "a", NOW_MS) is None
    assert limits.violation("usage", "a").retry_after_ms == 1_000
    assert granted(limits, "a", NOW_MS + 999) == 0
    assert granted(limits, "a", NOW_MS + 1_000) == 1
    assert granted(limits, "a", NOW_MS + 11_500) == 10
    assert granted(limits, "a", NOW_MS + 10 * MINUTE_MS) == 60


def test_so_many_callers_are_remembered_and_one_goes_at_a_time() -> None:
    """Callers do not share. The one that was seen longest ago is full again, and no other."""
    limits = MemoryLimits({"usage": LIMIT}, callers_max=3)
    assert [granted(limits, caller, NOW_MS) for caller in "abcd"] == [60] * 4
    assert [granted(limits, caller, NOW_MS) for caller in "bcd"] == [0, 0, 0]
    assert granted(limits, "a", NOW_MS) == 60


def test_what_is_left_is_told(limits: MemoryLimits) -> None:
    assert limits.take("usage", "a", NOW_MS) == (59, 1)
    assert limits.take("usage", "a", NOW_MS + 500, 0) == (59, 1)
    assert limits.take("usage", "a", NOW_MS + 1_000, 0) == (60, 0)


@pytest.mark.parametrize("leap_ms", [-3_600_000, 86_400_000])
def test_a_clock_that_leaps_denies_nobody_for_long(limits: MemoryLimits, leap_ms: int) -> None:
    """Back an hour, or ahead a day and back again: a second later there is one more."""
    granted(limits, "a", NOW_MS)
    granted(limits, "a", NOW_MS + leap_ms)
    assert granted(limits, "a", NOW_MS) <= 60
    assert granted(limits, "a", NOW_MS + 1_000) == 1


def test_the_defaults_let_the_promise_pass() -> None:
    """5,000 usage records a second for one organisation, one by one or in batches of a hundred."""
    a_second = {kind: API_LIMITS_PER_MINUTE[kind] / 60 for kind in IN_MEMORY}
    assert a_second["usage"] > 5_000
    assert a_second["batch"] * 100 > 5_000
    assert a_second["limits"] >= 2 * 1_000
    assert a_second["force_check"] >= 1
