"""Forecasts the end of a window and when its limit is reached. No I/O, no clock.

`look_ahead` estimates the rest of the window from recorded hours. With too few hours, a straight
line is used, without bounds. A new window without history has no forecast.

The bounds are the model's own relative errors on earlier days, recent ones counting more, without a
tenth at either end. So they hold in four of five cases if errors stay alike (split conformal
prediction).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from pricekeeper.forecast.profile import (
    HALF_LIVES_HOURS,
    HOURS_PER_DAY,
    HOURS_PER_WEEK,
    MS_PER_HOUR,
    Expectation,
    Profile,
    hours_of_week,
    portions_ahead,
)

LINE_ELAPSED_MIN: Final = 0.02
"""The part of a window that must have passed before a straight line is used."""

HISTORY_HOURS_MAX: Final = 91 * HOURS_PER_DAY
HISTORY_HOURS_MIN: Final = 2 * HOURS_PER_DAY
"""Fewer than two days tell nothing about an hour of the day."""
TRIALS_MAX: Final = 70
TRIALS_MIN: Final = 3

_TRAINED_HOURS_MAX: Final = 14 * HOURS_PER_DAY
"""From then on a trial is like a forecast of now."""
_TRIAL_HALF_LIFE: Final = 28
_TAIL: Final = 0.9
_BEYOND: Final = 1.3
"""A bound beyond the worst error, where there are too few to leave any out."""
_FLOOR: Final = 0.1
"""An error is relative to the expectation, or to this part of an average stretch."""


class Method(StrEnum):
    """How a forecast was made."""

    PROFILE = "PROFILE"
    STRAIGHT_LINE = "STRAIGHT_LINE"
    NONE = "NONE"


class Stretch(NamedTuple):
    """A window, the current moment in it, and its time zone."""

    starts_at_ms: int
    now_ms: int
    ends_at_ms: int
    zone: str


class Hourly(NamedTuple):
    """The spend of each hour since the epoch, as far as totals are complete."""

    costs: Mapping[int, int]
    complete_until_hour: int


class Forecast(NamedTuple):
    """The forecast of a window, in the unit of its history. ``None`` is unknown."""

    method: Method
    expected: int | None
    low: int | None
    high: int | None
    straight_line: int | None
    reached_at_ms: int | None
    """``None`` if not in this window."""
    reached_at_ms_earliest: int | None
    history_hours: int


def forecast(stretch: Stretch, spent: int, limit: int | None, hourly: Hourly) -> Forecast:
    """Forecast a window with this spend until now."""
    history = history_of(stretch, hourly)
    line = straight_line(stretch, spent)
    outlook = look_ahead(history)
    if outlook is None:
        method = Method.NONE if line is None else Method.STRAIGHT_LINE
        reached = _reached_on_line(stretch, spent, limit, line)
        return Forecast(method, line, None, None, line, reached, None, len(history.spend))

    def reached_at_ms(factor: float) -> int | None:
        if limit is None:
            return None
        hours = outlook.hours_until(limit - spent, history.ahead, factor)
        return None if math.isinf(hours) else stretch.now_ms + int(hours * MS_PER_HOUR)

    high, expected = outlook.high, outlook.expected
    return Forecast(
        Method.PROFILE,
        spent + expected,
        None if outlook.low is None else spent + outlook.low,
        None if high is None else spent + high,
        line,
        reached_at_ms(1.0),
        None if high is None or expected <= 0 else reached_at_ms(high / expected),
        len(history.spend),
    )


def history_of(stretch: Stretch, hourly: Hourly) -> History:
    """The recorded hours since the first spend, and the hours ahead."""
    this_hour = stretch.now_ms // MS_PER_HOUR
    until = min(hourly.complete_until_hour, this_hour)
    oldest = until - HISTORY_HOURS_MAX
    first = min((hour for hour in hourly.costs if oldest <= hour < until), default=until)
    spend = [hourly.costs.get(hour, 0) for hour in range(first, until)]
    portions = portions_ahead(stretch.now_ms, stretch.ends_at_ms)
    behind = hours_of_week(stretch.zone, first, len(spend))
    ahead = hours_of_week(stretch.zone, this_hour, len(portions))
    return History(spend, [*behind, *ahead], portions)


def straight_line(stretch: Stretch, spent: int) -> int | None:
    """The end of the window at its average rate so far."""
    elapsed_ms = stretch.now_ms - stretch.starts_at_ms
    whole_ms = stretch.ends_at_ms - stretch.starts_at_ms
    if elapsed_ms < LINE_ELAPSED_MIN * whole_ms:
        return None
    return spent * whole_ms // elapsed_ms


def _reached_on_line(
    stretch: Stretch, spent: int, limit: int | None, line: int | None
) -> int | None:
    if limit is None or line is None or line < limit:
        return None
    if spent >= limit:
        return stretch.now_ms
    elapsed_ms = stretch.now_ms - stretch.starts_at_ms
    return stretch.starts_at_ms + elapsed_ms * limit // spent


class History(NamedTuple):
    """The spend of each full hour until now, and the hours that come next."""

    spend: Sequence[int]
    hours_of_week: Sequence[int]
    """In the organisation's zone, for `spend` and then for `ahead`."""
    ahead: Sequence[float]
    """The part of each coming hour in the window, the current one first."""


class Outlook(NamedTuple):
    """The rest of the window."""

    path: Sequence[float]
    low: int | None
    """``None``, as `high` is, if too little is known."""
    high: int | None

    @property
    def expected(self) -> int:
        return round(sum(self.path))

    def hours_until(self, amount: int, portions: Sequence[float], factor: float = 1.0) -> float:
        """The hours until that amount is spent at ``factor`` times the path; infinite if never."""
        if amount <= 0:
            return 0.0
        hours = before = 0.0
        for part, portion in zip(self.path, portions, strict=True):
            more = part * factor
            if more > 0 and before + more >= amount:
                return hours + portion * (amount - before) / more
            hours, before = hours + portion, before + more
        return math.inf


class _Trial(NamedTuple):
    """An earlier forecast and its errors, by half-life of the level."""

    errors: Sequence[float]
    misses: Sequence[float]
    weight: float


def look_ahead(history: History) -> Outlook | None:
    """The hours ahead; ``None`` if there is too little history."""
    known = len(history.spend)
    if known < HISTORY_HOURS_MIN:
        return None
    hours = max(1, round(sum(history.ahead)))
    trial_hours = min(hours, max(HOURS_PER_DAY, known // 2))
    expectation, trials = _try_earlier(history, trial_hours)
    best = _choose_level(trials)
    level = expectation.levels[best]
    profile = expectation.by_hour_of_week
    path = [
        level * profile[hour] * portion
        for hour, portion in zip(history.hours_of_week[known:], history.ahead, strict=True)
    ]
    if len(trials) < TRIALS_MIN:
        return Outlook(path, None, None)
    # A level drifts: over a longer stretch than could be tried, by the root of its length. Daily
    # trials that are weeks long are nearly the same one: few of them prove little.
    apart = min(len(trials), 1 + (len(trials) - 1) * HOURS_PER_DAY / trial_hours)
    wider = math.sqrt(max(1.0, hours / trial_hours)) * (1 + 1 / apart + 2 / apart**2)
    average = sum(profile) / len(profile) * sum(history.ahead)
    expected = sum(path)
    scale = wider * max(expected, _FLOOR * average)
    weighted = [(trial.errors[best], trial.weight) for trial in trials]
    below = _bound((-error, weight) for error, weight in weighted) * scale
    above = _bound(weighted) * scale
    return Outlook(path, max(0, round(expected - below)), max(0, round(expected + above)))


def _try_earlier(history: History, hours: int) -> tuple[Expectation, list[_Trial]]:
    spend, known = history.spend, len(history.spend)
    sums = [0, *accumulate(spend)]
    trained = max(HISTORY_HOURS_MIN, min(_TRAINED_HOURS_MAX, known // 3))
    last = known - hours
    first = max(trained, last - (TRIALS_MAX - 1) * HOURS_PER_DAY)
    profile, trials = Profile(), list[_Trial]()
    for index, amount in enumerate(spend):
        if first <= index <= last and (last - index) % HOURS_PER_DAY == 0:
            until = index + hours
            expectation = profile.expectation()
            usual = expectation.sum_of(history.hours_of_week[index:until])
            floor = _FLOOR * expectation.sum_of(range(HOURS_PER_WEEK)) / HOURS_PER_WEEK * hours
            actual = sums[until] - sums[index]
            days = (last - index) // HOURS_PER_DAY
            trials.append(_trial(expectation.levels, usual, floor, actual, days))
        profile.learn(history.hours_of_week[index], amount)
    return profile.expectation(), trials


def _trial(
    levels: Sequence[float], usual: float, floor: float, actual: int, days_ago: int
) -> _Trial:
    misses = [actual - level * usual for level in levels]
    scales = [max(level * usual, floor) for level in levels]
    errors = [
        miss / scale if scale > 0 else float(miss > 0)
        for miss, scale in zip(misses, scales, strict=True)
    ]
    return _Trial(errors, list(map(abs, misses)), 0.5 ** (days_ago / _TRIAL_HALF_LIFE))


def _choose_level(trials: Sequence[_Trial]) -> int:
    """The half-life with the smallest errors; three days without any trials."""

    def missed(index: int) -> float:
        return sum(trial.weight * trial.misses[index] for trial in trials)

    if not trials:
        return HALF_LIVES_HOURS.index(72)
    return min(range(len(HALF_LIVES_HOURS)), key=missed)


def _bound(errors: Iterable[tuple[float, float]]) -> float:
    """The error that nine tenths stay below, with the next one counted as the largest."""
    ordered = sorted(errors)
    wanted = _TAIL * (sum(weight for _, weight in ordered) + 1)
    below = 0.0
    for error, weight in ordered:
        below += weight
        if below >= wanted:
            return error
    return max(0.0, ordered[-1][0]) * _BEYOND + 1 / (10 * len(ordered))
