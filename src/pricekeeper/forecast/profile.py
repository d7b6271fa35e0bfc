"""What a week of spend looks like: a profile by weekday and hour, and how high its level is now.

Both are learnt in one pass over the hours, from the oldest on, and at any hour they say what was
expected of the next one. An hour of the week is compared with the same hour of the weeks before,
each of which counts three quarters of the one after it. Where there are few weeks, all working days
(or both days of the weekend) lend each other their hours. The level is what was spent lately in
proportion to what the profile said; how far back "lately" goes is the caller's choice.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

HOURS_PER_DAY: Final = 24
HOURS_PER_WEEK: Final = 168
HALF_LIVES_HOURS: Final = (6, 24, 72, 168, 672)
"""How long ago an hour was that counts half as much for the level as the last one."""

_WEEK_DECAY: Final = 0.75
_WORKING_HOURS: Final = 5 * HOURS_PER_DAY
"""The hours of the week from Monday to Friday; those behind them are the weekend's."""
_DAY_DECAY: Final = (_WEEK_DECAY ** (1 / 5), _WEEK_DECAY ** (1 / 2))
"""The same decay by week, for what comes five times or twice a week."""
_LENT_WEEKS: Final = 0.5
"""How much the other days of the same kind count beside the weeks of an hour itself."""
_LEVEL_PRIOR_HOURS: Final = 2
"""Hours of an average week that say that nothing has changed: quiet hours alone prove little."""
_DECAYS: Final = tuple(0.5 ** (1 / half_life) for half_life in HALF_LIVES_HOURS)


class Expectation(NamedTuple):
    """What was expected at one moment."""

    by_hour_of_week: Sequence[float]
    levels: Sequence[float]
    """One for each of `HALF_LIVES_HOURS`."""

    def sum_of(self, hours_of_week: Iterable[int]) -> float:
        """What these hours bring at the usual level."""
        profile = self.by_hour_of_week
        return sum(profile[hour] for hour in hours_of_week)


class Profile:
    """Learns from one hour after another."""

    def __init__(self) -> None:
        self._sums = [0.0] * HOURS_PER_WEEK
        self._weeks = [0.0] * HOURS_PER_WEEK
        self._lent_sums = [0.0] * (2 * HOURS_PER_DAY)
        self._lent_days = [0.0] * (2 * HOURS_PER_DAY)
        self._spent = [0.0] * len(_DECAYS)
        self._expected = [0.0] * len(_DECAYS)

    def learn(self, hour_of_week: int, spend: int) -> None:
        """Take in what was spent in the next hour."""
        if self._knows(hour_of_week):  # else there is nothing to compare it with
            expected = self._hour(hour_of_week)
            for index, decay in enumerate(_DECAYS):
                self._spent[index] = decay * self._spent[index] + spend
                self._expected[index] = decay * self._expected[index] + expected
        self._sums[hour_of_week] = _WEEK_DECAY * self._sums[hour_of_week] + spend
        self._weeks[hour_of_week] = _WEEK_DECAY * self._weeks[hour_of_week] + 1
        lent, decay = _lent_hour(hour_of_week), _DAY_DECAY[hour_of_week >= _WORKING_HOURS]
        self._lent_sums[lent] = decay * self._lent_sums[lent] + spend
        self._lent_days[lent] = decay * self._lent_days[lent] + 1

    def expectation(self) -> Expectation:
        """What is expected of the hours to come."""
        by_hour = [self._hour(hour) for hour in range(HOURS_PER_WEEK)]
        prior = _LEVEL_PRIOR_HOURS * sum(by_hour) / HOURS_PER_WEEK
        levels = [
            (spent + prior) / (expected + prior) if expected + prior > 0 else 1.0
            for spent, expected in zip(self._spent, self._expected, strict=True)
        ]
        return Expectation(by_hour, levels)

    def _knows(self, hour_of_week: int) -> bool:
        """Whether that hour of the day was there before, on whatever day."""
        of_day = hour_of_week % HOURS_PER_DAY
        return self._lent_days[of_day] > 0 or self._lent_days[of_day + HOURS_PER_DAY] > 0

    def _hour(self, hour_of_week: int) -> float:
        weeks = self._weeks[hour_of_week]
        lent = self._lent(hour_of_week)
        return (self._sums[hour_of_week] + _LENT_WEEKS * lent) / (weeks + _LENT_WEEKS)

    def _lent(self, hour_of_week: int) -> float:
        """That hour of the day, on days of its kind; on those of the other kind, if there are none.

        A service of one day that was a Friday knows nothing better of its first Saturday.
        """
        lent = _lent_hour(hour_of_week)
        for hour in (lent, (lent + HOURS_PER_DAY) % (2 * HOURS_PER_DAY)):
            if self._lent_days[hour]:
                return self._lent_sums[hour] / self._lent_days[hour]
        return 0.0


def _lent_hour(hour_of_week: int) -> int:
    is_weekend = hour_of_week >= _WORKING_HOURS
    return is_weekend * HOURS_PER_DAY + hour_of_week % HOURS_PER_DAY
