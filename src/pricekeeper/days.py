"""The organisation's day: from an instant to its day, and from a day to its first instant.

A day begins at the first instant at which the zone's calendar shows its date, and ends when the
next begins: no gap, no overlap. So a day may:

- last 23 or 25 hours, where clocks change;
- begin at 01:00, or in a gap that contains midnight, where clocks go forward then (Beirut,
  Santiago);
- begin at the first of two midnights (Havana). Where yesterday's date shows again (St. John's until
  2011), that time belongs to the new day: a day that has ended never returns;
- have no length, where a zone crossed the date line (Samoa, 30 December 2011).

Instants are milliseconds since the epoch; a day is ``yyyymmdd``. Zones are checked IANA names.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

MS_PER_DAY: Final = 86_400_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_ONE_DAY: Final = timedelta(days=1)
_REMEMBERED_MAX: Final = 4_096
"""Zones times days: three days of every zone, twice over."""


def org_day(zone: str, epoch_ms: int) -> str:
    """The latest day that has begun at that instant."""
    for start_ms, day in _days_around(zone, epoch_ms // MS_PER_DAY):
        if start_ms <= epoch_ms:
            return day
    raise LookupError("no day is longer than two days of UTC")


@lru_cache(maxsize=_REMEMBERED_MAX)
def day_start_ms(zone: str, day: str) -> int:
    """The first instant of that day."""
    return _start_ms(ZoneInfo(zone), date_of(day))


def next_midnight_ms(zone: str, epoch_ms: int) -> int:
    """The first instant of the day after the instant's."""
    return _next_start_ms(zone, org_day(zone, epoch_ms))


@lru_cache(maxsize=_REMEMBERED_MAX)
def _next_start_ms(zone: str, day: str) -> int:
    return _start_ms(ZoneInfo(zone), date_of(day) + _ONE_DAY)


@lru_cache(maxsize=_REMEMBERED_MAX)
def date_of(day: str) -> date:
    """The calendar date of ``yyyymmdd``."""
    return date(int(day[:4]), int(day[4:6]), int(day[6:]))


def is_day(text: str) -> bool:
    """Whether the text is a day as ``yyyymmdd``."""
    try:
        return day_of(date_of(text)) == text
    except ValueError:
        return False


def day_of(shown: date) -> str:
    """The date as ``yyyymmdd``."""
    return f"{shown.year:04}{shown.month:02}{shown.day:02}"


def dashed(day: str) -> str:
    """``yyyymmdd`` as ``yyyy-mm-dd``."""
    return f"{day[:4]}-{day[4:6]}-{day[6:]}"


@lru_cache(maxsize=_REMEMBERED_MAX)
def _days_around(zone: str, utc_day: int) -> tuple[tuple[int, str], ...]:
    """The starts of the days that an instant of that UTC day can belong to, latest first.

    Zones are less than a day from UTC, and no local day is longer than two.
    """
    info = ZoneInfo(zone)
    dates = [(_EPOCH + timedelta(days=utc_day + offset)).date() for offset in (1, 0, -1, -2)]
    return tuple((_start_ms(info, shown), day_of(shown)) for shown in dates)


def _local(info: ZoneInfo, epoch_ms: int) -> datetime:
    return (_EPOCH + timedelta(milliseconds=epoch_ms)).astimezone(info)


def _start_ms(info: ZoneInfo, day: date) -> int:
    """The first instant at which the zone shows that date, or a later one if it never shows it.

    ``fold`` gives midnight by the offset before (0) and after (1) a change of clocks. If midnight
    comes twice, the first is by the offset before. If it does not come, the change lies between the
    two, in reverse order.
    """
    midnight = datetime.combine(day, time(), info)
    first_ms, second_ms = _epoch_ms(midnight), _epoch_ms(midnight.replace(fold=1))
    if first_ms <= second_ms:
        return first_ms
    low_ms, high_ms = second_ms - 1, first_ms  # shows an earlier date; shows this one or later
    while high_ms - low_ms > 1:  # halves at most a day, so 27 times
        middle_ms = (low_ms + high_ms) // 2
        if _local(info, middle_ms).date() < day:
            low_ms = middle_ms
        else:
            high_ms = middle_ms
    return high_ms


def _epoch_ms(local: datetime) -> int:
    return (local - _EPOCH) // _MS
