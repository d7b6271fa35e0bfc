"""Hours of the organisation's week, and the parts of them that lie ahead. No I/O, no clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

MS_PER_HOUR: Final = 3_600_000
_SECS_PER_HOUR: Final = 3_600
_HOURS_PER_WEEK: Final = 168
_THURSDAY: Final = 72
"""The hour of the week with which the epoch began."""
_QUARTERS: Final = 6
"""Hours for which one look at the zone is enough. Clocks that change in between are wrong by an
hour until then, which no forecast notices."""


def hours_of_week(zone: str, first_hour: int, count: int) -> list[int]:
    """The hour of the week, from Monday, of each of so many hours since the epoch."""
    info = ZoneInfo(zone)
    found: list[int] = []
    for start in range(first_hour, first_hour + count, _QUARTERS):
        ahead = _offset_hours(info, start)
        until = min(start + _QUARTERS, first_hour + count)
        found += [(_THURSDAY + hour + ahead) % _HOURS_PER_WEEK for hour in range(start, until)]
    return found


def portions_ahead(now_ms: int, ends_at_ms: int) -> list[float]:
    """How much of the present hour, and of each after it, is left before the end."""
    portions = []
    while now_ms < ends_at_ms:
        until_ms = min(ends_at_ms, (now_ms // MS_PER_HOUR + 1) * MS_PER_HOUR)
        portions.append((until_ms - now_ms) / MS_PER_HOUR)
        now_ms = until_ms
    return portions


def _offset_hours(info: ZoneInfo, hour: int) -> int:
    """By how many hours the zone is ahead; half an hour is none."""
    offset = datetime.fromtimestamp(hour * _SECS_PER_HOUR, UTC).astimezone(info).utcoffset()
    return 0 if offset is None else int(offset.total_seconds() // _SECS_PER_HOUR)
