"""Forecasts over a socket, from recorded hours, on both stores."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from http_fixtures import KEY, Tenant, usage
from minting import minted
from pricekeeper.forecast import SpendHistory
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Tenants
from pricekeeper.values import OrgId
from spend_world import DAY_MS, HOUR_MS, START_MS, STORES, World, moment_at, running_world

DAYS = 5
BUDGETS = [
    {"name": "daily", "window": "DAY", "limit_usd_micros": 2_000_000},
    {"name": "teams", "window": "DAY", "limit_usd_micros": 2_000_000, "per_tag": "team"},
]


@pytest.fixture(scope="module", params=STORES)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with running_world(request, tmp_path_factory.mktemp("forecast")) as running:
        yield running


@pytest.fixture(scope="module")
def tenant(world: World) -> Tenant:
    """Five days and six hours of one call an hour; the budget of a day is for half of a day."""
    made = world.tenant(
        tag_keys=["team"], budgets=BUDGETS, quota_enforcement="STRICT", quota_scope="ORG"
    )
    for day in range(DAYS + 1):
        hours = range(24 if day < DAYS else 6)
        moments_ms = [START_MS + day * DAY_MS + hour * HOUR_MS + 60_000 for hour in hours]
        world.move_to(moments_ms[-1])
        world.record_many(made, list(map(call_at, moments_ms)))
        world.aggregate()
    world.move_to(START_MS + DAYS * DAY_MS + 6 * HOUR_MS + 300_000)
    world.aggregate()
    return made


def call_at(at_ms: int) -> dict[str, Any]:
    """A call of 166,000 micro-dollars."""
    return usage(
        request_id=minted(at_ms),
        timestamp=datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
        model_label="premium",
        input_tokens=22_000,
        output_tokens=6_668,
        tags={"team": "red"},
    )


def forecasts(world: World, path: str, **how: Any) -> dict[tuple[str, str], Any]:
    answer = world.read(f"{path}/forecast", **how)
    return {(one.get("name", one["kind"]), one["window"]): one for one in answer["forecasts"]}


def test_a_budget_that_will_be_spent_says_when(world: World, tenant: Tenant) -> None:
    """With one call an hour, a budget for twelve is spent at noon."""
    found = forecasts(world, tenant.org, token=tenant.org_token)
    one = found["daily", "DAY"]
    hourly = one["spent_usd_micros"] // 6
    assert one["method"] == "PROFILE"
    assert one["history_hours"] == DAYS * 24 + 6
    assert one["expected_usd_micros"] == pytest.approx(24 * hourly, rel=0.05)
    assert one["low_usd_micros"] <= one["expected_usd_micros"] <= one["high_usd_micros"]
    assert one["limit_usd_micros"] == 2_000_000
    noon = DAYS * 24 + 2_000_000 / hourly
    assert moment_at(int(noon) - 1) < one["spent_at"] < moment_at(int(noon) + 2)
    assert one["resets_at"] == moment_at((DAYS + 1) * 24)


def test_each_value_of_a_tag_has_a_straight_line(world: World, tenant: Tenant) -> None:
    """Its hours are not read, and that is said."""
    found = forecasts(world, tenant.org, token=tenant.org_token)
    one = found["teams", "DAY"]
    assert (one["method"], one["tag"], one["low_usd_micros"]) == (
        "STRAIGHT_LINE",
        {"team": "red"},
        None,
    )
    assert one["expected_usd_micros"] == one["straight_line_usd_micros"] > 0


def test_everything_of_the_day_and_of_the_month_is_there(world: World, tenant: Tenant) -> None:
    """Also without a budget, and for one app as for its organisation."""
    for path, token in ((tenant.org, tenant.org_token), (tenant.app, tenant.app_token)):
        found = forecasts(world, path, token=token)
        day, month = found["TOTAL", "DAY"], found["TOTAL", "MONTH"]
        assert day["spent_usd_micros"] == found["daily", "DAY"]["spent_usd_micros"]
        assert day["expected_usd_micros"] == found["daily", "DAY"]["expected_usd_micros"]
        assert "limit_usd_micros" not in day
        assert month["expected_usd_micros"] > day["expected_usd_micros"]
        assert month["spent_usd_micros"] >= day["spent_usd_micros"]


def test_a_quota_is_forecast_by_its_label(world: World, tenant: Tenant) -> None:
    """Spend on other labels is not in it."""
    found = forecasts(world, tenant.app, token=tenant.app_token)
    premium, economy = found["quota-premium", "DAY"], found["quota-economy", "DAY"]
    assert (premium["kind"], premium["label"]) == ("QUOTA", "premium")
    assert premium["expected_usd_micros"] == found["daily", "DAY"]["expected_usd_micros"]
    assert (economy["spent_usd_micros"], economy["expected_usd_micros"]) == (0, 0)


def test_an_administrator_reads_it_and_nobody_else(world: World, tenant: Tenant) -> None:
    """Another organisation's token finds nothing."""
    assert world.get(f"{tenant.app}/forecast", key=KEY).status == 200
    other = world.tenant()
    for path in (tenant.org, tenant.app):
        assert world.get(f"{path}/forecast", token=other.org_token).status == 404


def test_who_has_spent_nothing_has_no_forecast_yet(world: World) -> None:
    """At the beginning of a window nothing is known: that is null, not zero."""
    fresh = world.tenant()
    one = forecasts(world, fresh.org, key=KEY)["TOTAL", "MONTH"]
    assert one["spent_usd_micros"] == 0
    assert one["method"] in ("NONE", "STRAIGHT_LINE")
    assert one["low_usd_micros"] is None


def test_hours_are_read_once_an_hour(world: World, tenant: Tenant) -> None:
    """What is complete does not change: a second look reads how far the totals are, and today."""

    async def count() -> list[int]:
        meter = StoreMeter()
        store: Store = await open_store(world.settings.store, clock=world.clock, meter=meter)
        try:
            tenants = Tenants(store, world.clock, frozenset())
            policy = await tenants.read_registered_policy(Client(OrgId(tenant.org_id)))
            history = SpendHistory(store, world.clock)
            counts = []
            for _ in range(2):
                before = sum(meter.calls.values())
                await history.read(policy, whole_org=True)
                counts.append(sum(meter.calls.values()) - before)
            return counts
        finally:
            await store.close()

    first, second = asyncio.run(count())
    assert first > second == 1
