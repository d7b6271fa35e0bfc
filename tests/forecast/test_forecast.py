"""A window and its limit: where it ends, and when it is spent."""

import pytest

from pricekeeper.forecast.forecast import Forecast, Hourly, Method, Stretch, forecast
from pricekeeper.forecast.profile import MS_PER_HOUR

MONDAY = 20_454 * 24 + 4 * 24
"""The first hour of a Monday."""
DAY_MS = 24 * MS_PER_HOUR
NOTHING = Hourly({}, MONDAY)


def day_at(hours: float) -> Stretch:
    starts_at_ms = MONDAY * MS_PER_HOUR
    now_ms = starts_at_ms + int(hours * MS_PER_HOUR)
    return Stretch(starts_at_ms, now_ms, starts_at_ms + DAY_MS, "UTC")


def even(amount: int, until: int = MONDAY) -> Hourly:
    """The same in each hour of the four weeks before."""
    return Hourly(dict.fromkeys(range(MONDAY - 28 * 24, until), amount), until)


def moment(made_ms: int | None) -> float | None:
    """Hours since the beginning of the day."""
    return None if made_ms is None else made_ms / MS_PER_HOUR - MONDAY


def test_a_limit_is_spent_when_the_expected_hours_reach_it() -> None:
    """Even spend of 100 an hour reaches 1,500 after 15 hours, and ends at 2,400."""
    made = forecast(day_at(6), 600, 1_500, even(100, MONDAY + 6))
    assert made.method is Method.PROFILE
    assert made.expected == pytest.approx(2_400, rel=0.01)
    assert made.straight_line == 2_400
    assert moment(made.reached_at_ms) == pytest.approx(15, abs=0.2)
    earliest = moment(made.reached_at_ms_earliest)
    assert earliest is not None
    assert earliest <= 15.2
    assert made.history_hours == 28 * 24 + 6


def test_a_limit_that_is_not_reached_has_no_time() -> None:
    """Neither is one without a limit told when it is spent."""
    assert forecast(day_at(6), 600, 5_000, even(100, MONDAY + 6)).reached_at_ms is None
    assert forecast(day_at(6), 600, None, even(100, MONDAY + 6)).reached_at_ms is None


def test_a_limit_that_is_spent_is_spent_now() -> None:
    made = forecast(day_at(6), 1_500, 1_500, even(100, MONDAY + 6))
    assert made.reached_at_ms == day_at(6).now_ms


def test_without_history_the_window_goes_on_as_it_began() -> None:
    """A straight line has no bounds, and says what it is."""
    made = forecast(day_at(6), 600, 1_500, NOTHING)
    assert made == Forecast(
        Method.STRAIGHT_LINE, 2_400, None, None, 2_400, day_at(15).now_ms, None, 0
    )


@pytest.mark.parametrize("spent", [0, 700])
def test_a_limit_of_nothing_is_spent_now_on_a_straight_line_too(spent: int) -> None:
    """Also where nothing was spent yet."""
    assert forecast(day_at(6), spent, 0, NOTHING).reached_at_ms == day_at(6).now_ms


def test_a_window_that_has_just_begun_is_not_known_without_history() -> None:
    """What is not known is not zero; with history it is known from the first moment."""
    made = forecast(day_at(0.25), 5, 1_500, NOTHING)
    assert (made.method, made.expected, made.reached_at_ms) == (Method.NONE, None, None)
    known = forecast(day_at(0.25), 25, 1_500, even(100))
    assert known.expected == pytest.approx(2_400, rel=0.01)
    assert known.straight_line is None


def test_hours_that_are_not_complete_are_not_learnt_from() -> None:
    """Totals that are behind would look as if nothing had been spent."""
    behind = even(100, MONDAY)
    made = forecast(day_at(6), 600, None, Hourly(behind.costs, MONDAY))
    assert made.expected == pytest.approx(2_400, rel=0.01)
    believed = forecast(day_at(6), 600, None, Hourly(behind.costs, MONDAY + 6))
    assert believed.expected is not None
    assert believed.expected < 2_300


def test_history_begins_with_the_first_spend() -> None:
    """Hours before an app made its first call say nothing about it."""
    hourly = Hourly({MONDAY - 50: 100, MONDAY - 1: 100}, MONDAY)
    assert forecast(day_at(0), 0, None, hourly).history_hours == 50
