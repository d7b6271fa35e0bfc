"""A stored item that makes no sense concerns its own account, and is reported.

Over a socket, on both stores. Each test damages what is stored for one tenant, and looks at that
tenant and at its neighbour, who has spent three times its quota and has to be told so.
"""

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import stored_items as written
from http_fixtures import FORCED, ORG, Api, Tenant, usage
from pricekeeper.clock import SystemClock
from pricekeeper.metering import AggregationReport, Aggregator, org_day
from pricekeeper.metering.items import CHECKPOINT
from pricekeeper.metering.moments import moment_key
from pricekeeper.storage import Item, Store, Table
from pricekeeper.storage.tables import (
    CONFIG,
    DAILY_TOTAL,
    RATE_BUCKETS,
    REQUEST_DEDUP,
    SECRET_RETRIEVAL_TOKENS,
    SESSIONS,
    STICKY_STATE,
    USAGE_AGG_SHARDED,
)
from pricekeeper.tenants import Client, config_key
from pricekeeper.values import AppId, OrgId
from scraping import scrape, until
from serving import Server
from store_server import api, location, server

__all__ = ["api", "location", "server"]

SPENT = 3_000_000
"""Of a quota of one dollar: a hundred thousand tokens at the built-in price, ten times over."""


class World:
    """A tenant whose items are damaged, its neighbour, and the store of both."""

    def __init__(self, api: Api, server: Server, location: str) -> None:
        self.api = api
        self.server = server
        self.location = location
        self.victim = Tenant(api).register()
        self.neighbour = Tenant(api).register()
        self.day = org_day(ORG["timezone"], SystemClock().now_ms())
        for tenant in (self.victim, self.neighbour):
            self.spend(tenant)

    def scope(self, tenant: Tenant) -> str:
        return f"ORG#{tenant.org_id}#APP#{tenant.app_id}"

    def spend(self, tenant: Tenant) -> None:
        record = usage(input_tokens=100_000, output_tokens=200_000)
        reply = tenant.record(record)
        assert reply.status == 202, reply.data
        assert reply.json["cost_usd_micros"] > SPENT

    def write(self, *items: tuple[Table, Item]) -> None:
        written.write_items(self.location, *items)

    def aggregate(self) -> AggregationReport:
        async def run(store: Store) -> AggregationReport:
            return await Aggregator(store, SystemClock()).run_once()

        return written.on_store(self.location, run)

    def stored(self, app_id: str = "web") -> Item:
        """The configuration of the victim's app."""
        key = config_key(Client(OrgId(self.victim.org_id), AppId(app_id)))
        return self.item(CONFIG, {"PK": key.pk, "SK": key.sk})

    def item(self, table: Table, place: Item) -> Item:
        async def get(store: Store) -> Item | None:
            return await store.get(table, table.key_of(place))

        found = written.on_store(self.location, get)
        assert found is not None
        return found

    def check_neighbour(self) -> None:
        """Its totals, its selection and its login are what they would be alone."""
        neighbour = self.neighbour
        chosen = neighbour.select()
        assert chosen.status == 200, chosen.data
        assert chosen.json["recommended_model"]["label"] == "standard"
        assert chosen.json["quota_status"]["models_status"]["premium"]["spend_usd_micros"] > SPENT
        for path, token in (
            (neighbour.app, neighbour.app_token),
            (neighbour.org, neighbour.org_token),
        ):
            today = self.api.call("GET", f"{path}/aggregates/today", token=token)
            assert today.status == 200, today.data
            assert today.json["models"]["premium"]["cost_usd_micros"] > SPENT
        neighbour.app_token = neighbour.login()["access_token"]
        orgs = self.api.pages("/api/v1/orgs", "orgs")
        assert neighbour.org_id in [org["org_id"] for org in orgs]

    def strange(self, table: Table) -> float:
        return scrape(self.api)[f'pricekeeper_strange_items_total{{table="{table.name}"}}']

    def check_reported(self, table: Table, before: float, key: str) -> None:
        """The metric has moved, and the log names the item."""
        assert self.strange(table) > before
        until(lambda: "stored_item_strange" in self.server.output())
        lines = [line for line in self.server.output().splitlines() if "item_strange" in line]
        assert any(key in line for line in lines), lines


@pytest.fixture
def world(api: Api, server: Server, location: str) -> World:
    return World(api, server, location)


JUNK_TOTALS: dict[str, Callable[[tuple[Table, Item]], tuple[Table, Item]]] = {
    "a text for the cost": lambda made: (made[0], {**made[1], "cost_usd_micros": "9500000"}),
    "no cost": lambda made: written.without(made, "cost_usd_micros"),
    "no requests": lambda made: written.without(made, "requests"),
    "a cost below zero": lambda made: (made[0], {**made[1], "cost_usd_picos": -1}),
    "nothing for the cost": lambda made: (made[0], {**made[1], "cost_usd_micros": None}),
    "a moment that is none": lambda made: (made[0], {**made[1], "as_of_ms": "noon"}),
}


@pytest.mark.parametrize("junk", JUNK_TOTALS)
def test_a_total_that_can_not_be_read_is_summed_instead(world: World, junk: str) -> None:
    """Never a spend of nothing: the records have it all."""
    victim, key = world.victim, f"{world.scope(world.victim)}#LABEL#premium"
    before = world.strange(DAILY_TOTAL)
    total = written.daily_total(world.scope(victim), "premium", world.day)
    world.write(JUNK_TOTALS[junk](total))
    report = world.aggregate()
    assert (report.failed, report.unreadable >= 1) == (0, True)
    for query in ("", FORCED):
        chosen = victim.select(query)
        assert chosen.status == 200, chosen.data
        assert chosen.json["recommended_model"]["label"] == "standard"
    today = world.api.call("GET", f"{victim.org}/aggregates/today", token=victim.org_token)
    assert today.json["models"]["premium"]["cost_usd_micros"] > SPENT
    world.check_reported(DAILY_TOTAL, before, key)
    world.check_neighbour()


def test_a_total_that_nobody_can_sum_is_an_honest_error(world: World) -> None:
    """Of a model that was never used here: there is nothing to sum, and it is not nothing."""
    victim = world.victim
    table, total = written.daily_total(world.scope(victim), "standard", world.day)
    world.write((table, {**total, "cost_usd_micros": "much"}))
    world.aggregate()
    for path in ("model-selection", f"model-selection{FORCED}", "aggregates/today"):
        refused = victim.ask("GET", path)
        assert (refused.status, refused.code) == (503, "STORE_UNAVAILABLE")
        assert "can't be read" in refused.json["detail"]
        assert int(refused.headers["retry-after"]) > 0
    world.check_neighbour()


def test_markers_and_the_checkpoint(world: World) -> None:
    partition = f"ACTIVE#{world.day}"
    world.write(
        (USAGE_AGG_SHARDED, {"PK": partition, "SK": "nonsense"}),
        (USAGE_AGG_SHARDED, {"PK": partition, "SK": "ORG#a#LABEL#b#SH#999999999"}),
        (CHECKPOINT[0], {"PK": CHECKPOINT[1].pk, "SK": CHECKPOINT[1].sk, "began_at_ms": "noon"}),
    )
    for _ in range(2):
        assert world.aggregate().failed == 0
    assert world.aggregate().since_last_ms is not None
    world.check_neighbour()
    assert world.victim.select().json["recommended_model"]["label"] == "standard"


def test_a_fallback_that_can_not_be_read(world: World) -> None:
    victim, before = world.victim, world.strange(STICKY_STATE)
    world.aggregate()
    scope = world.scope(victim)
    world.write(written.sticky_state(scope, world.day, active_model_label=5))
    refused = victim.select()
    assert (refused.status, refused.code) == (503, "STORE_UNAVAILABLE")
    world.check_reported(STICKY_STATE, before, scope)
    world.check_neighbour()


def test_a_fallback_that_lacks_what_is_not_needed_holds(world: World) -> None:
    """The label says enough; and it can be moved on."""
    world.aggregate()
    sticky = written.sticky_state(world.scope(world.victim), world.day)
    names = ("active_model_index", "previous_model_label", "activated_at_epoch", "reason")
    table, item = written.without(sticky, *names)
    world.write((table, {**item, "given_up_model_labels": {"premium"}}))
    chosen = world.victim.select().json["recommended_model"]
    assert (chosen["label"], chosen["reason"]) == ("standard", "STICKY_FALLBACK")
    for label in ("standard", "economy"):
        record = usage(model_label=label, input_tokens=1_000_000, output_tokens=500_000)
        world.victim.record(record)
    assert world.victim.select(FORCED).status == 429


JUNK_SETTINGS: dict[str, dict[str, Any]] = {
    "quotas": {"quotas": "many"},
    "a quota": {"quotas": {"premium": "10"}},
    "the ordering": {"model_ordering": "premium"},
    "a limit": {"rate_limits": {"premium": {"rpm": {"capacity": "ten"}}}},
    "a budget": {"budgets": [{"name": "day", "window": "DAY", "limit_usd_micros": "much"}]},
    "the sessions": {"session_limit": 10**9},
    "the name": {"app_name": None},
}


def test_an_app_whose_settings_can_not_be_read(world: World) -> None:
    """It can't log in, and its organisation has no sum of quotas; settings can be replaced."""
    victim = world.victim
    world.aggregate()
    for number, junk in enumerate(JUNK_SETTINGS.values()):
        before, broken = world.strange(CONFIG), Tenant(world.api, victim.org_id, f"app-{number}")
        made = world.api.provision("PUT", broken.app, {"app_name": "Broken"})
        broken.secrets[broken.client_id] = world.api.claim(made).json["client_secret"]
        stored = world.stored(broken.app_id)
        world.write((CONFIG, {**stored, **junk}))

        assert broken.try_login().status == 503, junk
        assert world.api.provision("GET", broken.app).status == 503
        apps = world.api.pages(f"{victim.org}/apps", "apps")
        assert broken.app_id not in [app["app_id"] for app in apps]
        assert victim.app_id in [app["app_id"] for app in apps]
        today = world.api.call("GET", f"{victim.org}/aggregates/today", token=victim.org_token)
        assert today.status == 503
        assert victim.select().json["recommended_model"]["label"] == "standard"
        world.check_reported(CONFIG, before, f"{stored['PK']} / {stored['SK']}")
        world.check_neighbour()

        mended = world.api.provision("PUT", broken.app, {"app_name": "Mended"})
        assert (mended.status, mended.json["status"]) == (200, "updated")
        assert broken.try_login().status == 200


def test_an_organisation_whose_settings_can_not_be_read(world: World) -> None:
    """It is left out of the list of all, in which its neighbours are."""
    for junk in ({"timezone": "Mars"}, {"quota_scope": "ALL"}, {"agg_shard_count": 10**9}):
        lost = str(uuid.uuid4())
        assert world.api.provision("PUT", f"/api/v1/orgs/{lost}", ORG).status == 201
        stored = world.item(CONFIG, {"PK": f"ORG#{lost}", "SK": "ORG"})
        world.write((CONFIG, {**stored, **junk}))
        assert world.api.provision("GET", f"/api/v1/orgs/{lost}").status == 503, junk
        world.aggregate()
        world.check_neighbour()


def test_a_hash_that_is_none_opens_nothing(world: World) -> None:
    victim = world.victim
    grace = {"client_secret_rotation_grace_expires_at_epoch": "soon"}
    world.write((CONFIG, {**world.stored(), "client_secret_hash": 5, **grace}))
    assert victim.try_login().status == 401
    world.neighbour.login()
    for hours in (1, 0):
        rotate = f"{victim.app}/credentials/rotate"
        claimed = world.api.claim(
            world.api.provision("POST", rotate, {"grace_period_hours": hours})
        )
        assert claimed.status == 200, claimed.data
        victim.secrets[victim.client_id] = claimed.json["client_secret"]
        victim.login()


def test_session_slots_that_can_not_be_read_are_left_alone(world: World) -> None:
    """Logins take the others, and lists show them; a token of such a slot is not believed."""
    victim, before = world.victim, world.strange(SESSIONS)
    session = world.api.call("GET", "/auth/sessions", token=victim.app_token).json["sessions"][0]
    slot = int(session["session_id"].split("-")[0])
    other = (slot + 1) % 5
    partition = f"SUBJECT#{victim.client_id}"
    world.write((SESSIONS, {"PK": partition, "SK": f"SLOT#{other:03}", "nonce": 5}))
    assert world.aggregate().failed == 0
    tokens = {victim.login()["session_id"] for _ in range(6)}
    assert not any(token.startswith(f"{other:03}") for token in tokens)
    token = victim.login()["access_token"]
    sessions = world.api.call("GET", "/auth/sessions", token=token).json["sessions"]
    assert len(sessions) == 4
    world.check_reported(SESSIONS, before, f"SLOT#{other:03}")

    for number in range(5):
        world.write((SESSIONS, {"PK": partition, "SK": f"SLOT#{number:03}", "nonce": 5}))
    assert victim.try_login().status == 503
    world.neighbour.login()


def test_a_bucket_that_can_not_be_read(world: World) -> None:
    victim, before = world.victim, world.strange(RATE_BUCKETS)
    entity = f"{victim.client_id}@{world.stored()['incarnation']}"
    item = {"PK": entity, "SK": "premium", "rf": "noon", "lm.rpm": "1/1", "tk.rpm": 1, "tc.rpm": 1}
    world.write((RATE_BUCKETS, item))
    for _ in range(2):
        assert victim.acquire().status == 503
    assert victim.acquire(resource="standard").status == 200
    assert world.neighbour.acquire().status == 200
    world.check_reported(RATE_BUCKETS, before, entity)


def test_a_moment_that_can_not_be_read(world: World) -> None:
    victim, before = world.victim, world.strange(REQUEST_DEDUP)
    record, good = usage(), usage()
    table, key = moment_key(victim.org_id, record["request_id"])
    world.write((table, {"PK": key.pk, "minted_ms": "noon"}))
    alone = victim.record(record)
    assert (alone.status, alone.code) == (503, "STORE_UNAVAILABLE")
    for first in (record, {**record, "timestamp": "2020-01-01T00:00:00Z"}):
        bad, fine = victim.record_many(first, good).json["results"]
        assert bad["status"] == "failed"
        assert fine["status"] in ("accepted", "duplicate")
    world.check_reported(REQUEST_DEDUP, before, key.pk)


def test_a_retrieval_token_that_can_not_be_read_is_not_found(world: World) -> None:
    made = world.api.provision("PUT", f"{world.victim.org}/apps/third", {"app_name": "Third"})
    key = hashlib.sha256(made.json["secret_retrieval"]["token"].encode()).hexdigest()
    world.write((SECRET_RETRIEVAL_TOKENS, {"PK": key, "used": False, "org_id": 5}))
    assert world.api.claim(made).status == 404
