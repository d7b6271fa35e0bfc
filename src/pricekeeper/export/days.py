"""Which days there are, and from when on a day can no longer change. Pure.

A day ends last in the westernmost zone, half a day after it has ended in UTC. A record is accepted
for a day more (`LATE_MS_MAX`), and clocks may disagree for an hour. So two days after its end in
UTC nothing of it is accepted any more, by anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from pricekeeper.days import MS_PER_DAY, date_of, day_of, day_start_ms, org_day

_FINAL_AFTER_DAYS: Final = 3
"""From its start in UTC."""


def day_after(day: str) -> str:
    """The day that follows."""
    return day_of(date_of(day) + timedelta(days=1))


def final_at_ms(day: str) -> int:
    """From when on nothing of that day is accepted."""
    return day_start_ms("UTC", day) + _FINAL_AFTER_DAYS * MS_PER_DAY


def last_final_day(now_ms: int) -> str:
    """The latest day that can no longer change."""
    return org_day("UTC", now_ms - _FINAL_AFTER_DAYS * MS_PER_DAY)


def days_between(first: str, last: str) -> Iterator[str]:
    """The days from the first to the last."""
    day = first
    while day <= last:
        yield day
        day = day_after(day)
