"""What the rest of a window will bring, within which bounds, and when a limit is reached.

The bounds come from the model's own mistakes: it is asked at the same hour of earlier days for as
many hours as lie ahead now, with what was known then, and its relative errors are kept, recent ones
counting more. The bounds leave out the tenth of them at either end, so they hold in four cases of
five as long as the mistakes to come are like those of the past. That asks for nothing else, and
above all for no shape of the errors (split conformal prediction). No I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from pricekeeper.forecast.profile import (
    HALF_LIVES_HOURS,
    HOURS_PER_DAY,
    HOURS_PER_WEEK,
    Expectation,
    Profile,
)

HISTORY_HOURS_MAX: Final = 91 * HOURS_PER_DAY
HISTORY_HOURS_MIN: Final = 2 * HOURS_PER_DAY
"""Less than two days tell nothing of what an hour of the day is like."""
TRIALS_MAX: Final = 70
TRIALS_MIN: Final = 3

_TRAINED_HOURS_MAX: Final = 14 * HOURS_PER_DAY
"""From then on a trial is like a forecast of now; before, it knew too little."""
_TRIAL_HALF_LIFE: Final = 28
_TAIL: Final = 0.9
"""The bounds leave out a tenth at either end."""
_BEYOND: Final = 1.3
"""What a bound is beyond the worst mistake, where there are too few to leave any out."""
_FLOOR: Final = 0.1
"""An error is relative to what was expected, or to so much of an average stretch of that length."""


class History(NamedTuple):
    """What was spent in each full hour up to now, and which hours come next."""

    spend: Sequence[int]
    hours_of_week: Sequence[int]
    """In the organisation's zone; those of `spend`, and then those of `ahead`."""
    ahead: Sequence[float]
    """How much of each hour to come belongs to the window: the rest of the present one first."""


class Outlook(NamedTuple):
    """What the rest of the window will bring."""

    path: Sequence[float]
    """What is expected of each of the hours ahead."""
    low: int | None
    """``None``, as `high` is, where too little is known to say."""
    high: int | None

    @property
    def expected(self) -> int:
        """All of the rest."""
        return round(sum(self.path))

    def hours_until(self, amount: int, portions: Sequence[float], factor: float = 1.0) -> float:
        """After how many hours so much has been spent; infinite if not in this window.

        ``factor`` says that everything comes to so many times what is expected.
        """
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
    """A forecast of earlier, and what came of it, by half-life of the level."""

    errors: Sequence[float]
    misses: Sequence[float]
    weight: float


def look_ahead(history: History) -> Outlook | None:
    """What the hours ahead will bring; ``None`` if there is too little history to tell."""
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
    # A level drifts: over a longer stretch than could be tried, by the root of its length. And
    # trials of every day that are weeks long are nearly the same one: few of them prove little.
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
    """Learn everything, and on the way forecast so many hours at this hour of earlier days."""
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
    """The half-life that was nearest in the trials; without any, three days."""

    def missed(index: int) -> float:
        return sum(trial.weight * trial.misses[index] for trial in trials)

    if not trials:
        return HALF_LIVES_HOURS.index(72)
    return min(range(len(HALF_LIVES_HOURS)), key=missed)


def _bound(errors: Iterable[tuple[float, float]]) -> float:
    """The error that nine tenths are not above, with the one to come counting as the largest."""
    ordered = sorted(errors)
    wanted = _TAIL * (sum(weight for _, weight in ordered) + 1)
    below = 0.0
    for error, weight in ordered:
        below += weight
        if below >= wanted:
            return error
    return max(0.0, ordered[-1][0]) * _BEYOND + 1 / (10 * len(ordered))
