"""An organisation's day: every zone, every kind of clock change, to the millisecond."""

import zoneinfo
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.days import day_of, day_start_ms, next_midnight_ms, org_day

HOUR_MS = 3_600_000
ZONES = sorted(zoneinfo.available_timezones() - {"localtime"})


def instant_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "at", "day"),
    [
        ("UTC", "2026-01-23T00:00:00+00:00", "20260123"),
        ("UTC", "2026-01-22T23:59:59.999+00:00", "20260122"),
        ("Asia/Tokyo", "2026-01-22T15:00:00+00:00", "20260123"),
        ("Asia/Tokyo", "2026-01-22T14:59:59.999+00:00", "20260122"),
        ("America/New_York", "2026-01-23T04:59:59.999+00:00", "20260122"),
        ("Pacific/Kiritimati", "2026-01-22T10:00:00+00:00", "20260123"),
        ("Etc/GMT+12", "2026-01-23T11:59:59.999+00:00", "20260122"),
        ("Asia/Kathmandu", "2026-01-22T18:15:00+00:00", "20260123"),
        ("UTC", "1969-12-31T23:59:59.999+00:00", "19691231"),
    ],
)
def test_an_instant_belongs_to_the_day_its_zone_shows(zone: str, at: str, day: str) -> None:
    assert org_day(zone, instant_ms(at)) == day


@pytest.mark.parametrize(
    ("zone", "day", "start", "hours"),
    [
        ("Europe/Berlin", "20260328", "2026-03-28T00:00:00+01:00", 24),
        ("Europe/Berlin", "20260329", "2026-03-29T00:00:00+01:00", 23),
        ("Europe/Berlin", "20261025", "2026-10-25T00:00:00+02:00", 25),
        ("America/New_York", "20260308", "2026-03-08T00:00:00-05:00", 23),
        ("America/New_York", "20261101", "2026-11-01T00:00:00-04:00", 25),
        ("Australia/Lord_Howe", "20260405", "2026-04-05T00:00:00+11:00", 24.5),
        # No midnight: the clocks go from 23:59:59 to 01:00:00.
        ("America/Sao_Paulo", "20181104", "2018-11-04T01:00:00-02:00", 23),
        ("Asia/Beirut", "20230330", "2023-03-30T00:00:00+03:00", 24),
        ("Asia/Beirut", "20260329", "2026-03-29T01:00:00+03:00", 23),
        ("Africa/Cairo", "20260424", "2026-04-24T01:00:00+03:00", 23),
        # Clocks go back from 24:00 to 23:00: the evening is long, and midnight comes once.
        ("America/Sao_Paulo", "20180217", "2018-02-17T00:00:00-02:00", 25),
        ("America/Sao_Paulo", "20180218", "2018-02-18T00:00:00-03:00", 24),
        # Clocks go back from 01:00 to 00:00: midnight comes twice.
        ("America/Havana", "20261101", "2026-11-01T00:00:00-04:00", 25),
        # Clocks go back from 00:01 to 23:01 of the day before.
        ("America/St_Johns", "20101106", "2010-11-06T00:00:00-02:30", 24),
        ("America/St_Johns", "20101107", "2010-11-07T00:00:00-02:30", 25),
        # Clocks go from 23:30 to 00:30: the gap swallows midnight.
        ("America/Toronto", "19190331", "1919-03-31T00:30:00-04:00", 23.5),
        # Over the date line: there was no 30 December.
        ("Pacific/Apia", "20111229", "2011-12-29T00:00:00-10:00", 24),
        ("Pacific/Apia", "20111230", "2011-12-31T00:00:00+14:00", 0),
        ("Pacific/Apia", "20111231", "2011-12-31T00:00:00+14:00", 24),
    ],
)
def test_a_day_begins_when_its_date_first_shows(
    zone: str, day: str, start: str, hours: float
) -> None:
    start_ms = day_start_ms(zone, day)
    following = day_of(date.fromisoformat(f"{day[:4]}-{day[4:6]}-{day[6:]}") + timedelta(days=1))
    assert start_ms == instant_ms(start)
    assert day_start_ms(zone, following) - start_ms == hours * HOUR_MS


def test_a_day_that_has_ended_never_comes_back() -> None:
    """In St. John's yesterday's date showed again for 59 minutes: they belong to today."""
    first_midnight_ms = instant_ms("2010-11-07T00:00:00-02:30")
    again_yesterday_ms = instant_ms("2010-11-06T23:30:00-03:30")
    assert org_day("America/St_Johns", first_midnight_ms) == "20101107"
    assert again_yesterday_ms > first_midnight_ms
    assert org_day("America/St_Johns", again_yesterday_ms) == "20101107"


@pytest.mark.parametrize(
    ("zone", "at", "midnight"),
    [
        ("America/Sao_Paulo", "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00"),
        ("America/Sao_Paulo", "2018-02-17T23:30:00-03:00", "2018-02-18T00:00:00-03:00"),
        ("America/Havana", "2026-11-01T00:30:00-05:00", "2026-11-02T00:00:00-05:00"),
        ("Pacific/Apia", "2011-12-29T23:00:00-10:00", "2011-12-31T00:00:00+14:00"),
        ("Asia/Tokyo", "2026-01-23T00:00:00+09:00", "2026-01-24T00:00:00+09:00"),
        ("Asia/Tokyo", "2026-01-23T23:59:59.999+09:00", "2026-01-24T00:00:00+09:00"),
    ],
)
def test_the_next_midnight_is_when_the_next_day_begins(zone: str, at: str, midnight: str) -> None:
    """Also if that is not at 00:00, and if a date is left out."""
    assert next_midnight_ms(zone, instant_ms(at)) == instant_ms(midnight)


@given(
    zone=st.sampled_from(ZONES),
    at_ms=st.integers(instant_ms("1900-01-01T00:00:00+00:00"), instant_ms("2060-01-01T00:00:00Z")),
)
def test_days_follow_each_other_without_gap_or_overlap(zone: str, at_ms: int) -> None:
    day = org_day(zone, at_ms)
    midnight_ms = next_midnight_ms(zone, at_ms)
    assert day_start_ms(zone, day) <= at_ms < midnight_ms
    assert org_day(zone, midnight_ms - 1) == day
    assert org_day(zone, midnight_ms) > day
    assert day_start_ms(zone, org_day(zone, midnight_ms)) == midnight_ms


def test_every_change_of_clocks_in_three_years_of_every_zone() -> None:
    """The first second that shows a date, found the long way, is where its day begins."""
    first, last = date(2024, 1, 1), date(2027, 1, 1)
    looked_at = 0
    for zone in ZONES:
        info = zoneinfo.ZoneInfo(zone)
        days = [first + timedelta(days=n) for n in range((last - first).days)]
        noons = [datetime(day.year, day.month, day.day, 12, tzinfo=info) for day in days]
        for before, after in pairwise(noons):
            if before.utcoffset() == after.utcoffset():
                continue
            looked_at += 1
            for day in (before.date(), after.date(), after.date() + timedelta(days=1)):
                assert day_start_ms(zone, day_of(day)) == 1000 * _first_second(info, day)
    assert looked_at > 1_000


def _first_second(info: zoneinfo.ZoneInfo, day: date) -> int:
    """Walk there by quarters of an hour: these days, every zone is at one at midnight."""
    second = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) - 16 * 3600
    while datetime.fromtimestamp(second, info).date() < day:
        second += 900
    assert datetime.fromtimestamp(second - 1, info).date() < day
    return second
