"""Limits: their rules, their helpers, and the units that make refill exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter import Limit
from pricekeeper.limiter.limits import AMOUNT_MAX, LIMITS_MAX, PERIOD_MS_MAX, by_name, limit_of


@pytest.mark.parametrize(
    ("limit", "period_ms"),
    [
        (Limit.per_second("n", 5), 1_000),
        (Limit.per_minute("n", 5), 60_000),
        (Limit.per_hour("n", 5), 3_600_000),
        (Limit.per_day("n", 5), 86_400_000),
    ],
)
def test_helpers_name_the_period(limit: Limit, period_ms: int) -> None:
    """The capacity is the amount, unless the caller gives a burst."""
    assert limit == Limit("n", capacity=5, refill_amount=5, refill_period_ms=period_ms)
    assert Limit.per_second("n", 5, burst=20).capacity == 20


@pytest.mark.parametrize(
    ("name", "capacity", "amount", "period_ms", "field"),
    [
        ("", 1, 1, 1, "name"),
        ("a#b", 1, 1, 1, "name"),
        ("1st", 1, 1, 1, "name"),
        ("x" * 33, 1, 1, 1, "name"),
        ("n", 0, 1, 1, "n.capacity"),
        ("n", -1, 1, 1, "n.capacity"),
        ("n", 1.5, 1, 1, "n.capacity"),
        ("n", True, 1, 1, "n.capacity"),
        ("n", AMOUNT_MAX + 1, 1, 1, "n.capacity"),
        ("n", 1, 0, 1, "n.refill_amount"),
        ("n", 1, 1, 0, "n.refill_period_ms"),
        ("n", 1, 1, PERIOD_MS_MAX + 1, "n.refill_period_ms"),
        ("n", 5_000, 1, 86_400_000, "n.refill_amount"),
    ],
)
def test_an_invalid_limit_is_refused(
    name: str, capacity: int, amount: int, period_ms: int, field: str
) -> None:
    """The error names the field; the last limit would take fourteen years to fill."""
    with pytest.raises(InvalidValueError) as refused:
        Limit(name, capacity, amount, period_ms)

    assert refused.value.field == field


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**9))
def test_refill_is_exact_in_units(capacity: int, amount: int, period_ms: int, ms: int) -> None:
    """``ms`` milliseconds refill ``ms * amount / period`` tokens, to the last unit."""
    limit = Limit("n", capacity, amount, period_ms)

    assert ms * limit.units_per_ms * period_ms == ms * amount * limit.units_per_token


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**9))
def test_the_time_to_fill_is_the_least_that_suffices(
    capacity: int, amount: int, period_ms: int, units: int
) -> None:
    """In whole milliseconds: one less refills too little."""
    limit = Limit("n", capacity, amount, period_ms)
    ms = limit.filling_ms(units)

    assert (ms - 1) * limit.units_per_ms < units <= ms * limit.units_per_ms


def test_the_terms_of_a_limit_make_the_same_limit_again() -> None:
    """An item stores the terms, so each reader knows the unit of its counts."""
    limit = Limit("n", 7, 3, 777)

    assert limit_of("n", limit.terms) == limit


def test_the_limits_of_a_bucket_have_different_names_and_are_not_too_many() -> None:
    """Each of them is part of a condition, and conditions have a bound."""
    with pytest.raises(InvalidValueError, match="share a name"):
        by_name([Limit.per_day("n", 1), Limit.per_hour("n", 1)])
    with pytest.raises(InvalidValueError, match="at most"):
        by_name([Limit.per_day(f"n{place}", 1) for place in range(LIMITS_MAX + 1)])
