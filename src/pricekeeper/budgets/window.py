"""The windows of budgets: hours, days, weeks and months of the organisation's calendar.

A window is a stretch of time, as a day is (`pricekeeper.days`): the windows of one kind follow each
other without gap or overlap, whatever the clocks of the zone do. A week begins with its Monday.
No I/O, no clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from pricekeeper.days import date_of, day_of, day_start_ms, org_day
from pricekeeper.tenants import Window

MS_PER_HOUR: Final = 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REMEMBERED_MAX: Final = 4_096


class Span(NamedTuple):
    """One window: from its first instant to the first instant of the next one."""

    name: str
    """Its kind and when it began: no other window of any kind is called that."""
    starts_at_ms: int
    ends_at_ms: int

    def has(self, epoch_ms: int) -> bool:
        """Whether the instant belongs to it."""
        return self.starts_at_ms <= epoch_ms < self.ends_at_ms


def window_at(window: Window, zone: str, epoch_ms: int) -> Span:
    """The window of that kind which the instant belongs to."""
    if window is Window.HOUR:
        return _hour(zone, epoch_ms)
    return _days(window, zone, org_day(zone, epoch_ms))


def _hour(zone: str, epoch_ms: int) -> Span:
    """The hour of the zone's clock; where clocks change within it, it is cut there.

    An hour that comes twice is two hours.
    """
    info = ZoneInfo(zone)
    starts_at_ms = _hour_start_ms(info, epoch_ms)
    ends_at_ms = starts_at_ms + MS_PER_HOUR
    if _hour_start_ms(info, ends_at_ms) != ends_at_ms:  # the clocks change by a part of an hour
        ends_at_ms = _hour_start_ms(info, ends_at_ms) + MS_PER_HOUR
    return Span(f"H{starts_at_ms // 1000}", starts_at_ms, ends_at_ms)


def _hour_start_ms(info: ZoneInfo, epoch_ms: int) -> int:
    local = (_EPOCH + timedelta(milliseconds=epoch_ms)).astimezone(info)
    offset = local.utcoffset() or timedelta()
    past_hour_ms = (epoch_ms + offset // timedelta(milliseconds=1)) % MS_PER_HOUR
    return epoch_ms - past_hour_ms


@lru_cache(maxsize=_REMEMBERED_MAX)
def _days(window: Window, zone: str, day: str) -> Span:
    first, following = _dates(window, date_of(day))
    return Span(
        f"{window.value[0]}{day_of(first)}",
        day_start_ms(zone, day_of(first)),
        day_start_ms(zone, day_of(following)),
    )


def _dates(window: Window, day: date) -> tuple[date, date]:
    """The first day of the window, and the first one after it."""
    if window is Window.DAY:
        return day, day + timedelta(days=1)
    if window is Window.WEEK:
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=7)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)
