"""Forecasts of past windows, from the hours before, compared with their real ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forecast.series import Series
from pricekeeper.budgets.account import Span, window_at
from pricekeeper.forecast.forecast import Hourly, Stretch, forecast
from pricekeeper.tenants import Window

MS_PER_HOUR = 3_600_000
KNOWN_HOURS_MIN = 21 * 24
MOMENTS = (0.15, 0.35, 0.55, 0.75)
"""How much of a window is over when it is forecast."""


class Score(NamedTuple):
    """How forecasts compare with what came: sums over all of them."""

    forecasts: int = 0
    within: int = 0
    missed: float = 0.0
    missed_by_line: float = 0.0
    spent: float = 0.0

    def __add__(self, other: object) -> Score:
        assert isinstance(other, Score)
        return Score(
            self.forecasts + other.forecasts,
            self.within + other.within,
            self.missed + other.missed,
            self.missed_by_line + other.missed_by_line,
            self.spent + other.spent,
        )

    @property
    def coverage(self) -> float:
        """How many ended between the bounds, of one."""
        return self.within / self.forecasts

    @property
    def error(self) -> float:
        """The relative error of the forecasts."""
        return self.missed / self.spent

    @property
    def line_error(self) -> float:
        """The same for a straight line."""
        return self.missed_by_line / self.spent


def backtest(
    series: Series, window: Window, moments: Sequence[float] = MOMENTS, every: int = 1
) -> Score:
    """Every window of that kind in the series, or one in so many, at several moments of each."""
    costs = dict(enumerate(series.spend, series.first_hour))
    windows = list(whole_windows(series, window))[::every]
    score = Score()
    for span in windows:
        for moment in moments:
            stretch = _stretch(series, span, moment)
            if stretch.now_ms // MS_PER_HOUR - series.first_hour >= KNOWN_HOURS_MIN:
                score += _compare(stretch, costs)
    return score


def whole_windows(series: Series, window: Window) -> Iterable[Span]:
    """The windows that lie in the series from their beginning to their end."""
    ends_at_ms = (series.first_hour + len(series.spend)) * MS_PER_HOUR
    span = window_at(window, series.zone, series.first_hour * MS_PER_HOUR)
    while span.ends_at_ms <= ends_at_ms:
        if span.starts_at_ms >= series.first_hour * MS_PER_HOUR:
            yield span
        span = window_at(window, series.zone, span.ends_at_ms)


def _stretch(series: Series, span: Span, moment: float) -> Stretch:
    """The window at a full hour, since nothing finer is recorded."""
    hours = round((span.ends_at_ms - span.starts_at_ms) / MS_PER_HOUR * moment)
    now_ms = span.starts_at_ms + max(1, hours) * MS_PER_HOUR
    return Stretch(span.starts_at_ms, now_ms, span.ends_at_ms, series.zone)


def _compare(stretch: Stretch, costs: dict[int, int]) -> Score:
    first, now, end = (
        at_ms // MS_PER_HOUR for at_ms in (stretch.starts_at_ms, stretch.now_ms, stretch.ends_at_ms)
    )
    spent = sum(costs[hour] for hour in range(first, now))
    actual = sum(costs[hour] for hour in range(first, end))
    known = {hour: cost for hour, cost in costs.items() if hour < now}
    made = forecast(stretch, spent, None, Hourly(known, now))
    assert made.expected is not None
    assert made.low is not None
    assert made.high is not None
    assert made.straight_line is not None
    return Score(
        1,
        made.low <= actual <= made.high,
        abs(made.expected - actual),
        abs(made.straight_line - actual),
        actual,
    )
