"""All budgets: each once, as its client sees it, for all who may see it."""

import uuid
from typing import Any

import pytest

from http_fixtures import KEY, Tenant, usage
from minting import minted
from pricekeeper.usecases import budgets
from spend_world import World, world

__all__ = ["world"]

MONTHLY = {"name": "all", "window": "MONTH", "limit_usd_micros": 9_000_000}
HOURLY = {"name": "own", "window": "HOUR", "limit_usd_micros": 50_000, "enforcement": "SOFT"}
BY_TEAM = {"name": "team", "window": "DAY", "limit_usd_micros": 70_000, "per_tag": "team"}
PATH = "/api/v1/budgets"
SOME_ORG = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def make_tenant(world: World, **changes: Any) -> Tenant:
    """An organisation with a budget and strict quotas, and an app with a budget of its own."""
    settings = {"budgets": [MONTHLY], "quota_enforcement": "STRICT", **changes}
    tenant = world.tenant(**settings)
    body = {"app_name": "Web", "budgets": [HOURLY]}
    assert world.api.provision("PUT", tenant.app, body).status == 200
    return tenant


@pytest.fixture(scope="module")
def tenants(world: World) -> list[Tenant]:
    """Two such organisations in the order of their ids, with something spent and something held."""
    made = sorted((make_tenant(world) for _ in range(2)), key=lambda one: one.org_id)
    for number, tenant in enumerate(made):
        world.record(tenant, input_tokens=1000 * (number + 1))
        hold = {"input_tokens": 500, "max_output_tokens": 100, "model": "premium"}
        reply = tenant.ask("POST", "authorizations", hold)
        assert reply.status == 201, reply.data
    return made


def read_all(world: World, **how: Any) -> list[dict[str, Any]]:
    return world.api.pages(PATH, "budgets", **how)


def whose(row: dict[str, Any]) -> tuple[str, str | None, str]:
    return row["org_id"], row.get("app_id"), row["name"]


QUOTAS = ["quota-premium", "quota-standard", "quota-economy"]


def expected(tenant: Tenant) -> list[tuple[str, str | None, str]]:
    """The organisation's budget, then its app's, and the quotas that count for each app."""
    org = tenant.org_id
    return [(org, None, "all"), *((org, "web", name) for name in ["own", *QUOTAS])]


def test_a_key_sees_each_budget_of_everybody_once(world: World, tenants: list[Tenant]) -> None:
    rows = [row for row in read_all(world, key=KEY) if row["org_id"] in {t.org_id for t in tenants}]
    assert [whose(row) for row in rows] == [one for tenant in tenants for one in expected(tenant)]
    assert {row["org_name"] for row in rows} == {"Acme"}
    assert {row.get("app_name") for row in rows} == {None, "Web"}


def test_each_stands_as_its_client_sees_it(world: World, tenants: list[Tenant]) -> None:
    """Spent, held, unsettled, remaining and the window: the same numbers, to the micro-dollar."""
    for tenant in tenants:
        own = {row["name"]: row for row in world.read(f"{tenant.app}/budgets", key=KEY)["budgets"]}
        assert own["all"]["spent_usd_micros"] > 0 < own["all"]["held_usd_micros"]
        for row in read_all(world, token=tenant.org_token):
            told = {
                name: value for name, value in row.items() if not name.startswith(("org", "app"))
            }
            assert told == own[row["name"]]


def test_everybody_sees_their_own(world: World, tenants: list[Tenant]) -> None:
    """An organisation itself and its apps; an app what applies to it; a key what it covers."""
    one, other = tenants
    assert [whose(row) for row in read_all(world, token=one.org_token)] == expected(one)
    names = [row["name"] for row in read_all(world, token=one.app_token)]
    assert names == ["all", "own", *QUOTAS]
    assert {row["org_id"] for row in read_all(world, token=one.app_token)} == {one.org_id}
    own_key = one.issue_key()
    assert [whose(row) for row in read_all(world, key=own_key)] == expected(one)
    for how in ({"token": one.org_token}, {"key": own_key}):
        replies = [
            world.get(f"{PATH}?after={org_id}", **how).json | {"request_id": ""}
            for org_id in (other.org_id, str(uuid.uuid4()))
        ]
        assert replies[0] == replies[1]
        assert replies[0]["code"] == "NOT_FOUND"
    assert world.get(PATH).status == 401


@pytest.mark.parametrize(
    ("bound", "count"), [("ROWS_MAX", 1), ("CLIENTS_MAX", 1), ("CLIENTS_MAX", 3)]
)
def test_pages_follow_each_other_without_gap_or_repetition(
    world: World,
    tenants: list[Tenant],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    count: int,
) -> None:
    """However small they are, and also if a page ends between two apps."""
    whole = read_all(world, key=KEY)
    monkeypatch.setattr(budgets, bound, count)
    monkeypatch.setattr(budgets, "CONCURRENCY", 1)
    first = world.read(PATH, key=KEY)
    assert "next" in first
    assert read_all(world, key=KEY) == whole


def test_values_of_a_tag_are_budgets_of_their_own(world: World) -> None:
    """Those that were used in the window."""
    tenant = make_tenant(world, tag_keys=["team"], budgets=[BY_TEAM])
    for team in ("red", "blue"):
        body = usage(request_id=minted(world.clock.now_ms()), tags={"team": team})
        path = f"{tenant.app}/usage"
        assert world.api.call("POST", path, body, token=tenant.app_token).status == 202
    rows = [row for row in read_all(world, token=tenant.org_token) if row["name"] == "team"]
    assert [row["tag"] for row in rows] == [{"team": "blue"}, {"team": "red"}]


def test_a_cursor_that_is_none_is_refused(world: World) -> None:
    for after in ("x", f"{SOME_ORG}/a/b", f"{SOME_ORG}/..", "%00"):
        reply = world.get(f"{PATH}?after={after}", key=KEY)
        assert (reply.status, reply.json["errors"][0]["field"]) == (400, "after")
