"""Anomalies: spend far above the usual alerts, and ordinary variation does not."""

import json
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.conftest import COST_USD_MICROS, Instance, Org
from pricekeeper.alerts import AlertKind
from pricekeeper.alerts.anomaly import (
    DIFFERENCE_USD_MICROS,
    WEEKS,
    PastDay,
    is_anomalous,
    past_day,
    past_days,
    usual_day,
)
from pricekeeper.days import day_start_ms
from pricekeeper.pricing import PICOS_PER_MICRO
from selection.conftest import SettableClock

USD = 1_000_000 * PICOS_PER_MICRO
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
PCT = 300
SPENDS = st.integers(0, 10**9).map(lambda micros: micros * PICOS_PER_MICRO)


def day(by_then: int, whole: int | None = None) -> PastDay:
    return PastDay(by_then, by_then if whole is None else whole)


class TestRule:
    def test_the_usual_is_the_second_largest_of_three_days_at_least(self) -> None:
        assert usual_day([None, day(3), day(1), day(2)]) == day(2)
        assert usual_day([day(9), day(3, 4), day(1, 8), day(2)]) == day(3, 8)
        assert usual_day([day(3), day(3), None, None]) is None
        assert usual_day([None] * WEEKS) is None

    def test_the_bounds_are_exact(self) -> None:
        usual = day(10 * USD)
        assert not is_anomalous(30 * USD, usual, PCT)
        assert is_anomalous(30 * USD + 1, usual, PCT)
        early = day(USD, 10 * USD)
        assert not is_anomalous(11 * USD - 1, early, PCT)
        assert is_anomalous(11 * USD, early, PCT)
        least = DIFFERENCE_USD_MICROS * PICOS_PER_MICRO
        assert not is_anomalous(least - 1, day(0), PCT)
        assert is_anomalous(least, day(0), PCT)
        assert not is_anomalous(1_000 * USD, None, PCT)
        assert not is_anomalous(1_000 * USD, usual, 0)

    @given(past=st.lists(SPENDS, min_size=3, max_size=4), pct=st.integers(100, 10_000))
    def test_no_day_like_one_of_two_before_is_an_anomaly(self, past: list[int], pct: int) -> None:
        assert not is_anomalous(sorted(past)[-2], usual_day(list(map(day, past))), pct)

    @given(past=st.lists(SPENDS, min_size=4, max_size=4), spike=SPENDS)
    def test_one_bad_day_is_not_usual(self, past: list[int], spike: int) -> None:
        spiked = [*sorted(past)[:-1], max(past) + spike]
        assert usual_day(list(map(day, spiked))) == usual_day(list(map(day, past)))

    def test_hours_count_up_to_the_present_one(self) -> None:
        """Also where a day begins at half past."""
        for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
            first = day_start_ms(zone, "20300115") // HOUR_MS
            hours = {first + number: 1 for number in range(24)}
            assert past_day(hours, zone, "20300115", 0) == day(1, 24)
            assert past_day(hours, zone, "20300115", 5 * HOUR_MS) == day(6, 24)
            assert past_day(hours, zone, "20300115", DAY_MS) == day(24)
            assert past_day({}, zone, "20300115", DAY_MS) is None

    def test_the_same_weekday(self) -> None:
        assert past_days("20300115") == ["20300108", "20300101", "20291225", "20291218"]


def hours_of(kind: str, days: int, random: Random) -> Iterator[list[int]]:
    """What a made-up company spends in each hour of so many days, in pico-dollars."""
    busy = [0.1] * 7 + [0.5, 1, 2, 3, 3, 2, 3, 3, 3, 2, 1] + [0.4] * 4 + [0.2] * 2
    for day in range(days):
        weekend = 0.15 if day % 7 in (5, 6) else 1.0
        growth = 1.1 ** (day / 7) if kind == "growing" else 1.0
        holiday = 0.1 if kind == "holidays" and random.random() < 0.05 else 1.0
        level = 5 * weekend * growth * holiday * random.lognormvariate(0, 0.25)
        hours = []
        for hour in range(24):
            noise = random.lognormvariate(0, 0.6)
            spent = level * noise * (1.0 if kind == "flat" else busy[hour])
            if kind == "bursts" and random.random() < 0.05:
                spent *= 8
            if kind == "nightly" and hour == 2:
                spent += 40 * random.lognormvariate(0, 0.2)
            hours.append(int(spent * USD))
        yield hours


def alarms(history: list[list[int]]) -> list[tuple[int, int]]:
    """On which days, and in which hour, it would be told: the first of each day."""
    found = []
    for today in range(7 * WEEKS, len(history)):
        weeks = [history[today - 7 * week] for week in range(1, WEEKS + 1)]
        for hour in range(24):
            past = [PastDay(sum(one[: hour + 1]), sum(one)) for one in weeks]
            if is_anomalous(sum(history[today][: hour + 1]), usual_day(past), PCT):
                found.append((today, hour))
                break
    return found


FALSE_MAX = {"office": 5, "flat": 5, "nightly": 5, "holidays": 5, "growing": 20, "bursts": 70}
"""False alarms in a thousand days, as in `docs/alerts.md`; more where spend grows by a tenth each
week, or some hours cost eight times as much."""


@pytest.mark.parametrize("kind", FALSE_MAX)
def test_companies_that_go_about_their_business_are_left_in_peace(kind: str) -> None:
    """Days differ by a quarter, hours by more than half, and that is no reason."""
    false = days = 0
    for seed in range(20):
        false += len(alarms(list(hours_of(kind, 84, Random(f"{kind}{seed}")))))
        days += 84 - 7 * WEEKS
    assert false * 1_000 <= FALSE_MAX[kind] * days, false


@pytest.mark.parametrize("kind", FALSE_MAX)
@pytest.mark.parametrize(("times", "hours_max"), [(20, 4), (8, 14)])
def test_a_runaway_is_told_within_hours(kind: str, times: int, hours_max: int) -> None:
    """Everything costs so many times as much from ten o'clock: nine of ten days alert in time."""
    told = []
    for seed in range(20):
        history = list(hours_of(kind, 29, Random(f"{kind}{seed}")))
        history[28] = [
            spent * (times if hour >= 10 else 1) for hour, spent in enumerate(history[28])
        ]
        told += [hour for on, hour in alarms(history) if on == 28 and hour < 10 + hours_max]
    assert len(told) >= 18, told


async def test_from_recorded_hours(org: Org, instance: Instance, clock: SettableClock) -> None:
    """Four weeks of Tuesdays, and a different one: one alert, by the first instance."""
    for _ in range(WEEKS):
        await org.spend(95)
        await instance.aggregate()
        await instance.alerts.checks.run_once()
        clock.advance_ms(WEEK_MS)
    await org.spend(280)
    await instance.aggregate()
    await instance.alerts.checks.run_once()
    assert await org.history(kind=AlertKind.ANOMALY) == []
    await org.spend(420)
    other = Instance(instance.store, clock)
    for one in (instance, other, instance):
        clock.advance_ms(600_000)
        await org.spend()
        await one.aggregate()
        await one.alerts.checks.run_once()
    await other.close()

    (alert,) = await org.history(kind=AlertKind.ANOMALY)
    body = json.loads(alert.body)
    assert body["about"]["usual_usd_micros"] == 95 * COST_USD_MICROS
    assert body["about"]["spent_usd_micros"] == 701 * COST_USD_MICROS
    assert body["about"]["day"] == "2030-02-12"
    assert set(body["about"]["past_usd_micros"].values()) == {95 * COST_USD_MICROS}
    assert body["title"] == "Acme: $7.36 today, 7 times what is usual"


async def test_a_new_organisation_has_nothing_usual_yet(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    for week in range(3):
        await org.spend(100 * 4**week)
        await instance.aggregate()
        await instance.alerts.checks.run_once()
        clock.advance_ms(WEEK_MS)

    assert await org.history(kind=AlertKind.ANOMALY) == []


async def test_who_does_not_want_to_know_is_not_told(
    org: Org, instance: Instance, clock: SettableClock
) -> None:
    await org.configure(alerts={"anomaly_pct": 0})
    for _ in range(WEEKS):
        await org.spend()
        await instance.aggregate()
        clock.advance_ms(WEEK_MS)
    await org.spend(2_000)
    await instance.aggregate()
    await instance.alerts.checks.run_once()

    assert await org.history(kind=AlertKind.ANOMALY) == []
