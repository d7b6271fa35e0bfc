"""Spend broken down, over a socket: who sees what, and every row to the last micro-dollar."""

import csv
import io
import uuid
from random import Random
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Tenant
from memory_store import MemoryStore
from metering.other_service import SHARDS, OtherService
from pricekeeper.clock import ManualClock
from pricekeeper.metering import Account, Total, breakdown
from pricekeeper.metering.adopting import UsageAdopter
from pricekeeper.storage import Store
from spend_world import DAY_MS, HOUR_MS, START_MS, World, date_at, moment_at, world

__all__ = ["world"]

SUMS = (
    *("cost_usd_micros", "input_tokens", "output_tokens", "cache_read_tokens"),
    *("cache_write_tokens", "requests", "errors", "held_usd_micros", "unsettled_usd_micros"),
)


@pytest.fixture(scope="module")
def tenant(world: World) -> Tenant:
    """Two days of two apps: the first day at 01:30 and 22:10, the second at 00:05."""
    made = world.tenant(tag_keys=["team", "feature"], quota_scope="ORG")
    world.move_to(START_MS + 90 * 60_000)
    world.record(made, tags={"team": "red", "feature": "chat"})
    world.record(made, tags={"team": "red"}, model_label="economy", input_tokens=7)
    world.record(made, app="batch", tags={"team": "=1+1"}, cache_read_tokens=11)
    world.move_to(START_MS + 22 * HOUR_MS + 600_000)
    world.record(made, status="ERROR", cache_write_5m_tokens=3, cache_write_1h_tokens=4)
    world.record(made, model_label="economy", input_tokens=13, tags={"team": ""})
    world.move_to(START_MS + DAY_MS + 300_000)
    world.record(made, tags={"team": "blue, 'green'"})
    world.aggregate()
    return made


def spend(
    world: World, query: str, first: str = date_at(0), last: str = date_at(1), **how: Any
) -> Any:
    return world.read(f"/api/v1/spend?from={first}&to={last}&group_by={query}", **how)


def by_group(answer: Any, *names: str, count: str = "requests") -> dict[Any, int]:
    return {tuple(row[name] for name in names): row[count] for row in answer["rows"]}


def test_one_row_without_groups(world: World, tenant: Tenant) -> None:
    """Every counter is there, and the total is the same."""
    answer = spend(world, "", token=tenant.org_token)
    (row,) = answer["rows"]
    assert tuple(row) == SUMS
    assert row == answer["total"]
    assert (row["requests"], row["errors"], row["cache_read_tokens"]) == (6, 1, 11)
    assert (row["cache_write_tokens"], row["input_tokens"]) == (7, 4 * 1000 + 20)
    assert (row["held_usd_micros"], row["unsettled_usd_micros"]) == (0, 0)
    assert answer["as_of"] == moment_at(24).replace("00:00Z", "05:00Z")


@pytest.mark.parametrize(
    "groups",
    ["org", "label", "day", "app", "hour", "tag:team", "tag:feature", "tag:none", "app,hour",
     "day,label", "tag:team,app,label,day,hour,org"],
)  # fmt: skip
def test_rows_add_up_to_the_total(world: World, tenant: Tenant, groups: str) -> None:
    whole = spend(world, "", token=tenant.org_token)["total"]
    answer = spend(world, groups, token=tenant.org_token)
    assert answer["total"] == whole
    assert all(tuple(row)[: -len(SUMS)] == tuple(groups.split(",")) for row in answer["rows"])
    for name in SUMS[1:]:
        assert sum(row[name] for row in answer["rows"]) == whole[name]
    shown = sum(row["cost_usd_micros"] for row in answer["rows"])
    assert whole["cost_usd_micros"] - len(answer["rows"]) < shown <= whole["cost_usd_micros"]


@pytest.mark.usefixtures("tenant")
def test_micro_dollars_are_cut_once(world: World) -> None:
    """The total is not the sum of what the rows show: what they don't show is in it."""
    spender = world.tenant()
    for _ in range(3):
        world.record(spender, model_label="economy", input_tokens=6, output_tokens=0)
        world.move_to(world.clock.at_ms + HOUR_MS)
    world.aggregate()
    answer = spend(world, "hour", token=spender.org_token)
    shown = [row["cost_usd_micros"] for row in answer["rows"]]
    assert sum(shown) < answer["total"]["cost_usd_micros"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("app", {("web",): 5, ("batch",): 1}),
        (
            "day,label",
            {
                (date_at(0), "premium"): 3,
                (date_at(0), "economy"): 2,
                (date_at(1), "premium"): 1,
            },
        ),
        ("hour", {(moment_at(1),): 3, (moment_at(22),): 2, (moment_at(24),): 1}),
        ("tag:team", {("",): 2, ("=1+1",): 1, ("blue, 'green'",): 1, ("red",): 2}),
        ("tag:feature", {("",): 5, ("chat",): 1}),
    ],
)
def test_rows_of_a_group(
    world: World, tenant: Tenant, names: str, expected: dict[Any, int]
) -> None:
    """Hours are those of UTC, days those of the organisation, in order.

    What has no such tag, or an empty one, is a row with an empty value.
    """
    answer = spend(world, names, token=tenant.org_token)
    first, *others = names.split(",")
    assert by_group(answer, first, *others) == expected
    if first != "app":
        rows = [row[first] for row in answer["rows"]]
        assert rows == sorted(rows)


def test_between_full_hours(world: World, tenant: Tenant) -> None:
    token = tenant.org_token
    cut = spend(world, "", moment_at(1), moment_at(22), token=token)
    assert cut["total"]["requests"] == 3
    assert spend(world, "", moment_at(2), moment_at(24), token=token)["total"]["requests"] == 2
    assert spend(world, "app", moment_at(22), moment_at(25), token=token)["total"]["requests"] == 3
    tags = spend(world, "tag:team", moment_at(1), moment_at(2), token=token)
    assert by_group(tags, "tag:team") == {("=1+1",): 1, ("red",): 2}


def test_an_app_sees_itself_alone(world: World, tenant: Tenant) -> None:
    for groups in ("", "app", "day", "tag:team", "org,app"):
        answer = spend(world, groups, token=tenant.app_token)
        assert answer["total"]["requests"] == 5
        assert all(row.get("app", "web") == "web" for row in answer["rows"])


def test_a_key_sees_what_it_covers(world: World, tenant: Tenant) -> None:
    """An organisation's own key its own, the deployment's every organisation."""
    neighbour = world.tenant()
    world.record(neighbour)
    world.aggregate()
    mine = spend(world, "org", key=tenant.issue_key())
    assert by_group(mine, "org") == {(tenant.org_id,): 6}
    everybody = by_group(spend(world, "org", key=KEY), "org")
    assert everybody[tenant.org_id,] == 6
    assert everybody[neighbour.org_id,] == 1
    theirs = by_group(spend(world, "org", token=tenant.org_token), "org")
    assert theirs == {(tenant.org_id,): 6}


@pytest.mark.parametrize(
    ("wanted", "names", "expected"),
    [
        ("label=economy", ("app",), {("web",): 2}),
        ("label=economy", ("hour",), {(moment_at(1),): 1, (moment_at(22),): 1}),
        ("app_id=batch", ("label", "day"), {("premium", date_at(0)): 1}),
        ("app_id=gone", ("label",), {}),
        ("tag=team:red", ("label",), {("premium",): 1, ("economy",): 1}),
        ("tag=team:red", ("tag:team", "app"), {("red", "web"): 2}),
        ("tag=team:", ("label",), {("premium",): 1, ("economy",): 1}),
        ("tag=feature:", ("app",), {("web",): 4, ("batch",): 1}),
        ("tag=team:unknown", ("day",), {}),
        ("tag=team:red&label=economy&app_id=web", ("hour",), {(moment_at(1),): 1}),
    ],
)
def test_a_filter_counts_what_it_names_alone(
    world: World, tenant: Tenant, wanted: str, names: tuple[str, ...], expected: dict[Any, int]
) -> None:
    answer = spend(world, f"{','.join(names)}&{wanted}", token=tenant.org_token)
    assert by_group(answer, *names) == expected
    assert answer["total"]["requests"] == sum(expected.values())
    (row,) = spend(world, f"&{wanted}", token=tenant.org_token)["rows"]
    assert row == answer["total"]


def test_a_filter_concerns_what_is_held_too(world: World) -> None:
    holder = world.tenant(tag_keys=["team"])
    body = {"input_tokens": 1000, "max_output_tokens": 1000, "model": "premium"}
    for team in ("red", "blue"):
        path = f"{holder.app}/authorizations"
        tagged = body | {"tags": {"team": team}}
        assert world.api.call("POST", path, tagged, token=holder.app_token).status == 201
    today = date_at((world.clock.at_ms - START_MS) // DAY_MS)

    def held(wanted: str) -> int:
        answer = spend(world, f"&{wanted}", today, today, token=holder.org_token)
        total: int = answer["total"]["held_usd_micros"]
        return total

    whole = held("")
    assert whole > 0
    assert held("label=premium") == held("app_id=web") == held("tag=team:red") * 2 == whole
    assert held("label=economy") == held("app_id=batch") == held("tag=team:green") == 0


def test_a_filter_shows_nobody_more(world: World, tenant: Tenant) -> None:
    """What is not the caller's is not there, as if it never was; an app names its organisation."""
    neighbour = world.tenant()
    path = f"/api/v1/spend?from={date_at(0)}&to={date_at(1)}"
    own: dict[str, str] = {"key": tenant.issue_key()}
    for how in (own, {"token": tenant.org_token}, {"token": tenant.app_token}):
        absent = world.get(f"{path}&org_id={uuid.uuid4()}", **how)
        assert absent.status == 404
        others = world.get(f"{path}&org_id={neighbour.org_id}", **how)
        assert {**others.json, "request_id": ""} == {**absent.json, "request_id": ""}
        assert world.read(f"{path}&org_id={tenant.org_id}", **how)["total"]["requests"] > 0
    assert world.get(path).status == 401
    assert world.get(path, key="wrong-key-wrong-key-wrong-key").status == 401
    assert world.get(f"{path}&app_id=batch", token=tenant.app_token).status == 404
    assert world.get(f"{path}&org_id={uuid.uuid4()}", key=KEY).status == 404
    assert world.get(f"{path}&app_id=web", key=KEY).json["errors"][0]["field"] == "app_id"
    one = world.read(f"{path}&app_id=batch&org_id={tenant.org_id}", key=KEY)
    assert one["total"]["requests"] == 1


def test_csv_has_the_same_rows(world: World, tenant: Tenant) -> None:
    """As RFC 4180 has it; text that would be a formula begins with an apostrophe."""
    path = f"/api/v1/spend?from={date_at(0)}&to={date_at(1)}&group_by=tag:team,day"
    rows = world.read(path, token=tenant.org_token)["rows"]
    reply = world.get(path, token=tenant.org_token, headers={"accept": "text/csv"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    text = reply.data.decode()
    assert text.endswith("\r\n")
    assert text.count("\r\n") == text.count("\n") == len(rows) + 1
    names, *lines = csv.reader(io.StringIO(text))
    assert names == ["tag:team", "day", *SUMS]
    expected = [[str(value) for value in row.values()] for row in rows]
    formula = next(line for line in expected if line[0] == "=1+1")
    formula[0] = "'=1+1"
    assert lines == expected


def test_who_gets_csv(world: World, tenant: Tenant) -> None:
    path = f"/api/v1/spend?from={date_at(0)}&to={date_at(0)}"
    for accept, kind in {
        "*/*": "application/json",
        "application/json": "application/json",
        "text/csv, application/json": "text/csv",
        "text/csv;q=0.5, application/json": "application/json",
        "application/json;q=0.1, TEXT/CSV;q=0.2": "text/csv",
        "text/csv;q=0": "application/json",
    }.items():
        reply = world.get(path, token=tenant.org_token, headers={"accept": accept})
        assert reply.headers["content-type"].startswith(kind), accept


WITHIN = f"from={date_at(0)}&to={date_at(0)}"
REFUSED = {
    "": {"from", "to"},
    "from=2026-13-01&to=x&group_by=colour": {"from", "to", "group_by"},
    f"from={date_at(0)}T00:30:00Z&to={moment_at(2)}": {"from"},
    f"from={date_at(0)}&to={moment_at(2)}": {"to"},
    f"from={date_at(0)}&to={date_at(40)}": {"to"},
    f"from={moment_at(0)}&to={moment_at(2000)}": {"to"},
    f"from={date_at(1)}&to={date_at(0)}": {"from"},
    f"from={moment_at(1)}&to={moment_at(1)}": {"from"},
    f"from={date_at(-400)}&to={date_at(0)}": {"from"},
    f"from={date_at(-31)}&to={date_at(0)}&group_by=hour": {"from"},
    **{
        f"{WITHIN}&group_by={groups}": {"group_by"}
        for groups in ("tag:a,tag:b", "day,day", "tag:", "tag:a%23b")
    },
    f"{WITHIN}&group_by=tag:a&tag=b:c": {"tag"},
    f"{WITHIN}&tag=:c": {"tag"},
    f"{WITHIN}&tag=team": {"tag"},
    f"{WITHIN}&org_id=x": {"org_id"},
    f"{WITHIN}&app_id=a/b": {"app_id"},
    f"{WITHIN}&label=A": {"label"},
}


def test_what_cannot_be_asked_names_the_field(world: World, tenant: Tenant) -> None:
    """400, and what to say instead."""
    for query, fields in REFUSED.items():
        reply = world.get(f"/api/v1/spend?{query}", token=tenant.org_token)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        assert {error["field"] for error in reply.json["errors"]} == fields, query
    reply = world.get(f"/api/v1/spend?from={date_at(0)}&to={date_at(-1)}", token=tenant.org_token)
    assert "is after `to`" in reply.json["errors"][0]["message"]


def test_the_longest_ranges_are_answered(world: World, tenant: Tenant) -> None:
    """400 days, and 31 with groups by hour."""
    assert spend(world, "day", date_at(-398), token=tenant.org_token)["total"]["requests"] == 6
    assert spend(world, "hour", date_at(-29), token=tenant.org_token)["total"]["requests"] == 6


async def _adopt(store: Store, account: Account, total: Total) -> None:
    """Adopt what another service has counted."""
    clock = ManualClock(START_MS)
    other = MemoryStore(clock)
    await OtherService(other, Random(1)).count(account, total.counters)
    await UsageAdopter(other, store, clock).adopt(account.scope_key, account.label, SHARDS)


@pytest.mark.usefixtures("tenant")
def test_adopted_usage_is_in_it(world: World) -> None:
    """By day and label, and by app where apps had their own quotas; no hour is known of it."""
    tenant = world.tenant(quota_scope="APP")
    day = date_at(0).replace("-", "")
    total = Total(cost_usd_picos=5_000_000, requests=3, input_tokens=9)
    for scope in (f"ORG#{tenant.org_id}#APP#web", f"ORG#{tenant.org_id}"):
        account = Account(scope, "premium", day)
        world.on_store(lambda store, account=account: _adopt(store, account, total))
    world.record(tenant)
    world.aggregate()
    last = date_at(1)
    token = tenant.org_token
    for groups in ("", "org", "day", "label", "app", "tag:team"):
        assert spend(world, groups, last=last, token=token)["total"]["requests"] == 7, groups
    apps = by_group(spend(world, "app", last=last, token=token), "app")
    assert apps == {("",): 3, ("web",): 4}
    assert by_group(spend(world, "tag:team", last=last, token=token), "tag:team") == {("",): 7}
    assert spend(world, "hour", last=last, token=token)["total"]["requests"] == 1
    assert spend(world, "", last=last, token=tenant.app_token)["total"]["requests"] == 4


def test_more_rows_than_anybody_reads_are_refused(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says what to narrow."""
    monkeypatch.setattr(breakdown, "ROWS_MAX", 2)
    path = f"/api/v1/spend?from={date_at(0)}&to={date_at(1)}&group_by=hour"
    refused = world.get(path, token=tenant.org_token)
    assert refused.status == 400
    assert refused.json["errors"][0]["field"] == "group_by"
    assert "shorter range" in refused.json["errors"][0]["message"]


def test_days_begin_and_end_where_the_organisation_is(world: World) -> None:
    tenant = world.tenant(timezone="Asia/Kolkata")
    world.move_to(START_MS + 2 * DAY_MS + 18 * HOUR_MS + 10 * 60_000)
    world.record(tenant)
    world.move_to(world.clock.at_ms + 30 * 60_000)
    world.record(tenant)
    world.aggregate()
    answer = spend(world, "day,hour", date_at(2), date_at(3), token=tenant.org_token)
    hour = moment_at(66)
    assert by_group(answer, "day", "hour") == {(date_at(2), hour): 1, (date_at(3), hour): 1}
    whole = spend(world, "", hour, moment_at(67), token=tenant.org_token)
    assert whole["total"]["requests"] == 2
    today = spend(world, "", date_at(3), date_at(3), token=tenant.org_token)
    assert today["total"]["requests"] == 1


def test_an_organisation_without_usage_has_rows_of_nothing(world: World) -> None:
    unused = Tenant(world.api)
    assert world.api.provision("PUT", unused.org, ORG).status == 201
    key = unused.issue_key()
    assert spend(world, "app", last=date_at(0), key=key)["rows"] == []
    (row,) = spend(world, "", last=date_at(0), key=key)["rows"]
    assert set(row.values()) == {0}
