"""Hours of the organisation's week, and what is left of a window."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pricekeeper.forecast.profile import MS_PER_HOUR, hours_of_week, portions_ahead


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "Asia/Kathmandu"])
def test_an_hour_of_the_week_is_that_of_the_zone(zone: str) -> None:
    """Monday's first hour is 0, also across a year with its changes of clocks.

    Where clocks change, the hours are wrong for less than six hours.
    """
    first = datetime(2026, 1, 1, tzinfo=UTC)
    count = 366 * 24
    found = hours_of_week(zone, int(first.timestamp()) // 3600, count)
    wrong = 0
    for index, hour in enumerate(found):
        local = (first + timedelta(hours=index)).astimezone(ZoneInfo(zone))
        wrong += hour != local.weekday() * 24 + local.hour
    assert wrong <= 2 * 6


def test_what_is_left_of_a_window() -> None:
    """The rest of the present hour, whole hours, and the part of the last that belongs to it."""
    at_ms = 1_000 * MS_PER_HOUR
    assert portions_ahead(at_ms + MS_PER_HOUR // 4, at_ms + 5 * MS_PER_HOUR // 2) == [0.75, 1, 0.5]
    assert portions_ahead(at_ms, at_ms + 2 * MS_PER_HOUR) == [1, 1]
    assert portions_ahead(at_ms, at_ms) == []
