"""The usual spend of each hour of the organisation's week, and its current level. No I/O, no clock.

An hour of the week is compared with the same hour of earlier weeks, each counting three quarters of
the next. With few weeks, all working days (or weekend days) share their hours. The level is the
recent spend in proportion to the profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

HOURS_PER_DAY: Final = 24
HOURS_PER_WEEK: Final = 168
HALF_LIVES_HOURS: Final = (6, 24, 72, 168, 672)
"""The ages at which an hour counts half as much for the level as the last one."""

_WEEK_DECAY: Final = 0.75
_WORKING_HOURS: Final = 5 * HOURS_PER_DAY
_DAY_DECAY: Final = (_WEEK_DECAY ** (1 / 5), _WEEK_DECAY ** (1 / 2))
"""The same decay by week for hours that come five times or twice a week."""
_LENT_WEEKS: Final = 0.5
"""The weight of other days of the same kind, beside the weeks of an hour itself."""
_LEVEL_PRIOR_HOURS: Final = 2
"""Hours of an average week that pull the level to 1: quiet hours alone prove little."""
_DECAYS: Final = tuple(0.5 ** (1 / half_life) for half_life in HALF_LIVES_HOURS)

MS_PER_HOUR: Final = 3_600_000
_SECS_PER_HOUR: Final = 3_600
_THURSDAY: Final = 72
_QUARTERS: Final = 6
"""Hours between readings of the zone. Clocks that change in between are wrong until then, unnoticed
by any forecast."""


class Expectation(NamedTuple):
    """The expectation at one moment."""

    by_hour_of_week: Sequence[float]
    levels: Sequence[float]

    def sum_of(self, hours_of_week: Iterable[int]) -> float:
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
        by_hour = [self._hour(hour) for hour in range(HOURS_PER_WEEK)]
        prior = _LEVEL_PRIOR_HOURS * sum(by_hour) / HOURS_PER_WEEK
        levels = [
            (spent + prior) / (expected + prior) if expected + prior > 0 else 1.0
            for spent, expected in zip(self._spent, self._expected, strict=True)
        ]
        return Expectation(by_hour, levels)

    def _knows(self, hour_of_week: int) -> bool:
        of_day = hour_of_week % HOURS_PER_DAY
        return self._lent_days[of_day] > 0 or self._lent_days[of_day + HOURS_PER_DAY] > 0

    def _hour(self, hour_of_week: int) -> float:
        weeks = self._weeks[hour_of_week]
        lent = self._lent(hour_of_week)
        return (self._sums[hour_of_week] + _LENT_WEEKS * lent) / (weeks + _LENT_WEEKS)

    def _lent(self, hour_of_week: int) -> float:
        """That hour on days of its kind; if there are none, on days of the other kind."""
        lent = _lent_hour(hour_of_week)
        for hour in (lent, (lent + HOURS_PER_DAY) % (2 * HOURS_PER_DAY)):
            if self._lent_days[hour]:
                return self._lent_sums[hour] / self._lent_days[hour]
        return 0.0


def _lent_hour(hour_of_week: int) -> int:
    is_weekend = hour_of_week >= _WORKING_HOURS
    return is_weekend * HOURS_PER_DAY + hour_of_week % HOURS_PER_DAY


def hours_of_week(zone: str, first_hour: int, count: int) -> list[int]:
    """The hour of the week, from Monday, of each hour since the epoch in this range."""
    info = ZoneInfo(zone)
    found: list[int] = []
    for start in range(first_hour, first_hour + count, _QUARTERS):
        ahead = _offset_hours(info, start)
        until = min(start + _QUARTERS, first_hour + count)
        found += [(_THURSDAY + hour + ahead) % HOURS_PER_WEEK for hour in range(start, until)]
    return found


def portions_ahead(now_ms: int, ends_at_ms: int) -> list[float]:
    """How much of the current hour, and of each later one, is left before the end."""
    portions = []
    while now_ms < ends_at_ms:
        until_ms = min(ends_at_ms, (now_ms // MS_PER_HOUR + 1) * MS_PER_HOUR)
        portions.append((until_ms - now_ms) / MS_PER_HOUR)
        now_ms = until_ms
    return portions


def _offset_hours(info: ZoneInfo, hour: int) -> int:
    offset = datetime.fromtimestamp(hour * _SECS_PER_HOUR, UTC).astimezone(info).utcoffset()
    return 0 if offset is None else int(offset.total_seconds() // _SECS_PER_HOUR)
