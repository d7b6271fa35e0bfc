"""What the rest of a window brings: learnt from weekdays and hours, with bounds that hold."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecast.backtesting import Score, backtest
from forecast.series import KINDS, RECORDED, made_up, recorded
from pricekeeper.forecast.forecast import HISTORY_HOURS_MIN, History, Outlook, look_ahead
from pricekeeper.tenants import Window

WEEKS = 6


def history(hours: int, ahead: int, spend: int = 0, *, busy: int = 0) -> History:
    """So many hours from a Monday on, with more in the hours from 9 to 17 of working days."""
    of_week = [hour % 168 for hour in range(hours + ahead)]
    amounts = [spend + busy * (hour < 120 and 9 <= hour % 24 < 17) for hour in of_week[:hours]]
    return History(amounts, of_week, [1.0] * ahead)


def known(past: History) -> Outlook:
    made = look_ahead(past)
    assert made is not None
    return made


def test_a_week_like_all_others_goes_on_like_them() -> None:
    """Saturday is not expected to be like Friday; a constant week is expected exactly."""
    friday_evening = 4 * 24 + 18
    made = known(history(WEEKS * 168 + friday_evening, 24, 10, busy=1_000))
    assert made.expected == pytest.approx(24 * 10, rel=0.02)
    monday = known(history(WEEKS * 168, 24, 10, busy=1_000))
    assert monday.expected == pytest.approx(24 * 10 + 8 * 1_000, rel=0.02)


def test_who_never_erred_has_narrow_bounds() -> None:
    """The bounds are the model's own mistakes, and here it made none."""
    made = known(history(WEEKS * 168, 24, 500))
    low, high = made.low or 0, made.high or 0
    assert 0 < low <= made.expected <= high
    assert high - low < 0.02 * made.expected


def test_a_new_level_is_believed_within_days() -> None:
    """Twice the spend for three days is expected to continue."""
    before = history(WEEKS * 168, 24, 100)
    doubled = [*before.spend[:-72], *(200 for _ in range(72))]
    made = known(before._replace(spend=doubled))
    assert 1.5 * 24 * 100 < made.expected < 2.2 * 24 * 100


def test_too_little_history_has_no_outlook_and_little_has_no_bounds() -> None:
    """What is not known is not said."""
    assert look_ahead(history(HISTORY_HOURS_MIN - 1, 24, 100)) is None
    made = known(history(HISTORY_HOURS_MIN, 24, 100))
    assert (made.low, made.high) == (None, None)
    assert made.expected == pytest.approx(24 * 100, rel=0.1)


def test_nothing_spent_expects_nothing() -> None:
    """Hours of zero are hours that were recorded."""
    made = known(history(WEEKS * 168, 24, 0))
    assert (made.expected, made.low) == (0, 0)


@pytest.mark.parametrize(
    ("amount", "factor", "hours"),
    [(0, 1.0, 0.0), (-5, 1.0, 0.0), (100, 1.0, 0.5), (250, 1.0, 1.5), (400, 1.0, 2.0),
     (401, 1.0, math.inf), (200, 2.0, 0.5), (800, 2.0, 2.0)],
)  # fmt: skip
def test_when_an_amount_is_reached(amount: int, factor: float, hours: float) -> None:
    """Half an hour that expects 100, an empty half hour, and one that expects 300."""
    outlook = Outlook([100, 0, 300], None, None)
    assert outlook.hours_until(amount, [0.5, 0.5, 1.0], factor) == pytest.approx(hours)


@given(
    spend=st.lists(st.integers(0, 10**15), min_size=HISTORY_HOURS_MIN, max_size=400),
    ahead=st.integers(1, 800),
)
def test_whatever_was_spent_the_bounds_are_in_order(spend: list[int], ahead: int) -> None:
    """No history breaks it, and nothing below zero is ever expected."""
    of_week = [hour % 168 for hour in range(len(spend) + ahead)]
    made = known(History(spend, of_week, [1.0] * ahead))
    assert made.expected >= 0
    if made.low is not None:
        assert made.high is not None
        assert 0 <= made.low <= made.high


@pytest.mark.slow
def test_bounds_hold_in_four_of_five_and_a_straight_line_is_farther_off() -> None:
    """A short half of ``make backtest``: each kind of company, and recorded series."""
    score = Score()
    for seed, kind in enumerate(KINDS):
        series = made_up(kind, seed)
        for window, every in ((Window.DAY, 9), (Window.WEEK, 3), (Window.MONTH, 1)):
            one = backtest(series, window, every=every)
            score += one
            if window is not Window.MONTH:  # three months are too few to compare by themselves
                assert one.error < one.line_error, (kind, window)
    for name in RECORDED:
        score += backtest(recorded(name), Window.DAY, every=4)
    assert 0.75 <= score.coverage <= 0.85
    assert score.error < 0.5 * score.line_error
