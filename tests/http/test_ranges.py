"""Aggregates of a range: the same as those of its days, for a handful of reads."""

from typing import Any

import pytest

from http_fixtures import Tenant
from scraping import scrape
from spend_world import DAY_MS, START_MS, World, date_at, world

__all__ = ["world"]

DAYS = 92


@pytest.fixture(scope="module", params=["APP", "ORG"])
def tenant(request: pytest.FixtureRequest, world: World) -> Tenant:
    """Three days with usage of two apps, and on one of them a label outside the ordering."""
    made = world.tenant()
    world.api.provision("PUT", f"{made.org}/apps/batch", {"app_name": "Batch"})
    start_ms = max(START_MS, world.clock.at_ms - world.clock.at_ms % DAY_MS + DAY_MS)
    labels = {"model_ordering": ["premium", "standard"], "quota_scope": request.param}
    world.configure(made, **labels)
    for number in (0, 1, 4):
        world.move_to(start_ms + number * DAY_MS)
        world.record(made)
        world.record(made, app="batch", input_tokens=100 * number)
        if number == 1:
            world.record(made, model_label="economy")
    world.aggregate()
    return made


def calls(world: World) -> float:
    samples = scrape(world.api)
    return sum(n for name, n in samples.items() if name.startswith("pricekeeper_store_calls_total"))


def days_of(world: World) -> tuple[int, int]:
    last = (world.clock.at_ms - START_MS) // DAY_MS
    return last - DAYS + 1, last


@pytest.mark.parametrize("whose", ["org", "app"])
def test_a_range_is_the_same_as_its_days(world: World, tenant: Tenant, whose: str) -> None:
    """Every field of each day, also of days without any usage."""
    path, token = getattr(tenant, whose), getattr(tenant, f"{whose}_token")
    first, last = days_of(world)[1] - 6, days_of(world)[1]
    query = f"from={date_at(first)}&to={date_at(last)}"
    found: Any = world.read(f"{path}/aggregates?{query}", token=token)
    single = [
        world.read(f"{path}/aggregates/{date_at(number)}", token=token)
        for number in range(first, last + 1)
    ]
    assert found["days"] == single
    spent = [day["total_cost_usd_micros"] > 0 for day in found["days"]]
    assert spent == [False, False, True, True, False, False, True]
    assert "economy" in found["days"][3]["models"]
    assert "economy" not in found["days"][2]["models"]


@pytest.mark.parametrize("whose", ["org", "app"])
def test_a_range_costs_a_handful_of_reads(world: World, tenant: Tenant, whose: str) -> None:
    """However many days it has: a query for each account."""
    path, token = getattr(tenant, whose), getattr(tenant, f"{whose}_token")
    first, last = days_of(world)
    world.read(f"{path}/aggregates/today", token=token)  # what can be remembered, is
    costs = []
    for start in (last, first):
        query, asked = f"from={date_at(start)}&to={date_at(last)}", []
        for _ in range(5):  # what the service does beside that by itself makes some of them dearer
            before = calls(world)
            found = world.read(f"{path}/aggregates?{query}", token=token)
            asked.append(calls(world) - before)
        costs.append(min(asked))
        assert len(found["days"]) == last - start + 1
    assert len(found["days"]) == DAYS
    assert costs[0] == costs[1] <= 16
