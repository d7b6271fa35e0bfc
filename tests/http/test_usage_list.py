"""Single usage records, the newest first: over a socket, on each store."""

import uuid
from typing import Any
from urllib.parse import quote

import pytest

from http_fixtures import KEY, Tenant, usage
from minting import minted
from pricekeeper.ticks import TICK_MS
from spend_world import HOUR_MS, START_MS, World, date_at, moment_at, world

__all__ = ["world"]


@pytest.fixture(scope="module")
def bodies(world: World, tenant: Tenant) -> list[dict[str, Any]]:
    """Records in the order in which they were sent, one second apart, then one hours later."""
    made = []
    for number in range(6):
        world.clock.at_ms += 1_000
        changes: dict[str, Any] = {"tags": {"team": "red" if number % 2 else "blue"}}
        changes["model_label"] = "economy" if number == 3 else "premium"
        changes["app"] = "batch" if number == 4 else "web"
        made.append(world.record(tenant, **changes))
    world.move_to(START_MS + 10 * HOUR_MS)
    made.append(
        world.record(
            tenant,
            timestamp=moment_at(1),
            status="ERROR",
            cache_read_tokens=1,
            cache_write_5m_tokens=2,
            cache_write_1h_tokens=3,
            service_tier="default",
            calling_region="eu-west-1",
        )
    )
    return made


@pytest.fixture(scope="module")
def tenant(world: World) -> Tenant:
    return world.tenant(quota_scope="ORG")


def list_all(world: World, tenant: Tenant, query: str = "", **how: Any) -> list[Any]:
    return world.api.pages(f"{tenant.org}/usage?{query}", "records", **how)


def ids(records: list[Any]) -> list[str]:
    return [record["request_id"] for record in records]


def test_a_record_is_as_it_was_sent_and_counted(
    world: World, tenant: Tenant, bodies: list[Any]
) -> None:
    """The newest comes first."""
    newest, *between, oldest = list_all(world, tenant)
    found = ids([newest, *between, oldest])
    assert found == [body["request_id"] for body in reversed(bodies)]
    assert newest == {
        "request_id": bodies[-1]["request_id"],
        "app_id": "web",
        "model_label": "premium",
        "happened_at": moment_at(1),
        "recorded_at": moment_at(10),
        "input_tokens": 1000,
        "output_tokens": 500,
        "cache_read_tokens": 1,
        "cache_write_5m_tokens": 2,
        "cache_write_1h_tokens": 3,
        "cost_usd_micros": world.costs[bodies[-1]["request_id"]],
        "service_tier": newest["service_tier"],
        "pricing_version": newest["pricing_version"],
        "price_estimated": False,
        "calling_region": "eu-west-1",
        "tags": {},
        "status": "ERROR",
    }
    assert (oldest["status"], oldest["tags"]) == ("OK", {"team": "blue"})
    assert oldest["calling_region"] is None
    assert newest["pricing_version"]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("label=economy", [3]),
        ("app_id=batch", [4]),
        ("app_id=absent", []),
        ("tag=team:red", [5, 3, 1]),
        ("tag=team:" + quote("no such"), []),
        ("tag=team:", [6]),
        ("tag=feature:", [6, 5, 4, 3, 2, 1, 0]),
        ("tag=team:blue&label=premium&app_id=web", [2, 0]),
        (f"from={moment_at(1)}&to={moment_at(2)}", [6]),
        (f"from={moment_at(0)}&to={moment_at(1)}", [5, 4, 3, 2, 1, 0]),
        (f"to={moment_at(1)}", [5, 4, 3, 2, 1, 0]),
        (f"from={date_at(0)}&to={date_at(0)}", [6, 5, 4, 3, 2, 1, 0]),
        (f"from={date_at(1)}", []),
    ],
)
def test_what_is_asked_for(
    world: World, tenant: Tenant, bodies: list[Any], query: str, wanted: list[int]
) -> None:
    """By when the call happened, by app, label and tag, in any combination."""
    found = ids(list_all(world, tenant, query))
    assert found == [bodies[number]["request_id"] for number in wanted]


def test_pages_follow_each_other_without_gap_or_repetition(world: World) -> None:
    """Also in the middle of a tick, with ids that have no time in them, sent at one moment."""
    tenant, sent = world.tenant(), list[set[str]]()
    for number in range(3):
        now_ms = world.clock.now_ms()
        made = [minted(now_ms) if one % 2 else str(uuid.uuid4()) for one in range(90)]
        sent.append(set(made))
        world.record_many(tenant, [usage(request_id=one) for one in made])
        world.clock.at_ms += TICK_MS if number else 1
    page = world.read(f"{tenant.org}/usage", key=KEY)
    assert len(page["records"]) == 100
    found = ids(list_all(world, tenant))
    assert len(found) == len(set(found)) == 270
    assert set(found) == set().union(*sent)
    assert set(found[:90]) == sent[2]


def test_an_hour_in_which_others_post_is_passed_page_by_page(world: World) -> None:
    """One request looks at a bounded number of ticks: a page may be empty although more follow."""
    quiet, busy = world.tenant(), world.tenant()
    first = world.record(quiet)
    for _ in range(140):
        world.clock.at_ms += TICK_MS
        if world.clock.at_ms % HOUR_MS < 2 * TICK_MS:
            world.move_to(world.clock.at_ms)
        world.record_many(busy, [usage(request_id=minted(world.clock.now_ms()))])
    page = world.read(f"{quiet.org}/usage", key=KEY)
    assert page["records"] == []
    assert ids(list_all(world, quiet)) == [first["request_id"]]
    assert len(list_all(world, busy)) == 140


def test_who_may_read(world: World, tenant: Tenant, bodies: list[Any]) -> None:
    world.move_to(world.clock.at_ms)
    path = f"{tenant.org}/usage"
    issued = world.api.provision("POST", f"{tenant.org}/provisioning-key").json
    own_key = issued["provisioning_key"]
    for how in ({"key": KEY}, {"key": own_key}, {"token": tenant.org_token}):
        assert len(list_all(world, tenant, **how)) == len(bodies)
    mine = list_all(world, tenant, "app_id=web", token=tenant.app_token)
    assert {record["app_id"] for record in mine} == {"web"}
    assert len(mine) == len(bodies) - 1
    refused = world.get(path, token=tenant.app_token)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert "app_id" in refused.json["detail"]
    assert world.get(f"{path}?app_id=batch", token=tenant.app_token).status == 404
    other = world.tenant()
    for how in ({"token": other.org_token}, {"token": other.app_token}):
        assert world.get(f"{path}?app_id=web", **how).status == 404
    assert world.get(f"{other.org}/usage", key=own_key).status == 404
    assert world.get(f"/api/v1/orgs/{uuid.uuid4()}/usage", key=KEY).status == 404
    assert world.get(path).status == 401


def test_the_rows_behind_a_sum_by_tag_are_as_many_as_it_counts(world: World) -> None:
    """Also behind what has no such tag, or an empty one: the filter means the same in both."""
    tenant = world.tenant(tag_keys=["team"])
    for value in ("red", "red", "blue", ""):
        world.record(tenant, tags={"team": value})
    for tags in ({}, {"x": "y"}):
        world.record(tenant, tags=tags)
    world.aggregate()
    span = f"from={date_at(0)}&to={date_at(0)}"
    answer = world.read(f"/api/v1/spend?{span}&group_by=tag:team", token=tenant.org_token)
    counted = {row["tag:team"]: row["requests"] for row in answer["rows"]}
    assert counted == {"red": 2, "blue": 1, "": 3}
    for value, requests in counted.items():
        query = f"{span}&tag={quote(f'team:{value}')}"
        total = world.read(f"/api/v1/spend?{query}", token=tenant.org_token)["total"]
        assert total["requests"] == requests
        assert len(list_all(world, tenant, query)) == requests


def test_what_cannot_be_asked_names_the_fields(world: World, tenant: Tenant) -> None:
    everything = "from=x&to=y&app_id=!&label=!&tag=:x&after=zz"
    for query, fields in {
        everything: {"from", "to", "app_id", "label", "tag", "after"},
        "tag=team": {"tag"},
        "tag=": {"tag"},
        f"from={date_at(1)}&to={date_at(0)}": {"from"},
        f"from={moment_at(1)}&to={moment_at(1)}": {"from"},
        "after=00000000-1": {"after"},
        "to=9999-12-31": {"to"},
        "label=premium&label=economy": {"label"},
    }.items():
        reply = world.get(f"{tenant.org}/usage?{query}", key=KEY)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        assert {error["field"] for error in reply.json["errors"]} == fields, query
