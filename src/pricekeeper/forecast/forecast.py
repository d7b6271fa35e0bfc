"""Where the spend of a window will end, and when its limit is reached. No I/O, no clock.

`look_ahead` says what the rest brings, from the hours that were recorded. Where there are too few
of them, the window goes on as it began: a straight line, without bounds. A window that has only
just begun, of an account without history, has no forecast: what is not known is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from pricekeeper.forecast.hours import MS_PER_HOUR, hours_of_week, portions_ahead
from pricekeeper.forecast.outlook import HISTORY_HOURS_MAX, History, Outlook, look_ahead

LINE_ELAPSED_MIN: Final = 0.02
"""How much of a window has to be over before a straight line through it says anything."""


class Method(StrEnum):
    """What a forecast was made with."""

    PROFILE = "PROFILE"
    STRAIGHT_LINE = "STRAIGHT_LINE"
    NONE = "NONE"


class Stretch(NamedTuple):
    """A window, the moment in it, and where its calendar is."""

    starts_at_ms: int
    now_ms: int
    ends_at_ms: int
    zone: str


class Hourly(NamedTuple):
    """What was spent in each hour since the epoch, as far as the totals are complete."""

    costs: Mapping[int, int]
    """Hours in which nothing was spent are not in it."""
    complete_until_hour: int
    """The first hour that is not complete yet."""


class Forecast(NamedTuple):
    """Where a window will end, in the unit of its history. ``None`` is not known."""

    method: Method
    expected: int | None
    low: int | None
    high: int | None
    straight_line: int | None
    reached_at_ms: int | None
    """When the limit is expected to be spent; ``None`` if not in this window."""
    reached_at_ms_earliest: int | None
    """When it is, if the window ends at the upper bound."""
    history_hours: int


def forecast(stretch: Stretch, spent: int, limit: int | None, hourly: Hourly) -> Forecast:
    """The end of a window of which so much was spent until now."""
    history = history_of(stretch, hourly)
    line = straight_line(stretch, spent)
    outlook = look_ahead(history)
    if outlook is None:
        method = Method.NONE if line is None else Method.STRAIGHT_LINE
        reached = _reached_on_line(stretch, spent, limit, line)
        return Forecast(method, line, None, None, line, reached, None, len(history.spend))
    high = None if outlook.high is None else spent + outlook.high
    earliest = None
    if outlook.high is not None and outlook.expected > 0:
        factor = outlook.high / outlook.expected
        earliest = _reached(stretch, spent, limit, outlook, history, factor)
    return Forecast(
        Method.PROFILE,
        spent + outlook.expected,
        None if outlook.low is None else spent + outlook.low,
        high,
        line,
        _reached(stretch, spent, limit, outlook, history, 1.0),
        earliest,
        len(history.spend),
    )


def history_of(stretch: Stretch, hourly: Hourly) -> History:
    """The recorded hours from the first in which something was spent, and those ahead."""
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
    """Where the window ends if it goes on as it began."""
    elapsed_ms = stretch.now_ms - stretch.starts_at_ms
    whole_ms = stretch.ends_at_ms - stretch.starts_at_ms
    if elapsed_ms < LINE_ELAPSED_MIN * whole_ms:
        return None
    return spent * whole_ms // elapsed_ms


def _reached(
    stretch: Stretch,
    spent: int,
    limit: int | None,
    outlook: Outlook,
    history: History,
    factor: float,
) -> int | None:
    if limit is None:
        return None
    hours = outlook.hours_until(limit - spent, history.ahead, factor)
    return None if math.isinf(hours) else stretch.now_ms + int(hours * MS_PER_HOUR)


def _reached_on_line(
    stretch: Stretch, spent: int, limit: int | None, line: int | None
) -> int | None:
    if limit is None or line is None or line < limit:
        return None
    if spent >= limit:
        return stretch.now_ms
    elapsed_ms = stretch.now_ms - stretch.starts_at_ms
    return stretch.starts_at_ms + elapsed_ms * limit // spent
