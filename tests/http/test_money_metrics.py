"""Money in the metrics, over a socket on both stores."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import stored_items as written
from http_fixtures import FORCED, ORG, Api, Tenant, usage
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Aggregator
from pricekeeper.metering.items import CHECKPOINT
from pricekeeper.storage import Key, Put, Store
from pricekeeper.storage.tables import CONFIG
from scraping import moves, scrape
from store_server import api, location, server

__all__ = ["api", "location", "server"]

APPS = 1_100


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def test_before_the_first_aggregation_no_moment_is_1970(api: Api) -> None:
    """Only counts are known since the day began."""
    tenant = Tenant(api).register()
    reply = tenant.record()
    as_of = datetime.fromisoformat(reply.json["daily_total"]["as_of"])
    now = datetime.now(UTC)
    assert now - timedelta(hours=26) < as_of <= now


def test_ranges_say_how_old_they_are(api: Api, location: str) -> None:
    """As single days do: an app's and an organisation's, before and after an aggregation."""
    tenant = Tenant(api).register()
    clients = ((tenant.app, tenant.app_token), (tenant.org, tenant.org_token))

    def lags() -> list[int]:
        found = []
        for path, token in clients:
            for query in (f"/{today()}", f"?from={today()}&to={today()}"):
                reply = api.call("GET", f"{path}/aggregates{query}", token=token)
                assert reply.status == 200, reply.data
                found.append(int(reply.headers["x-data-lag-secs"]))
        return found

    assert all(0 <= lag < 26 * 3600 for lag in lags())

    async def run(store: Store) -> None:
        await Aggregator(store, SystemClock()).run_once()
        table, key = CHECKPOINT
        began_ms = SystemClock().now_ms() - 600_000
        item = {"PK": key.pk, "SK": key.sk, "began_at_ms": began_ms}
        await store.put(Put(table, item))

    written.on_store(location, run)
    assert all(600 <= lag < 3_600 for lag in lags()), lags()


def test_the_quotas_of_more_than_a_thousand_apps_are_all_in_the_sum(
    api: Api, location: str
) -> None:
    """Through all pages, for a day and for a range."""
    tenant = Tenant(api).register()

    async def multiply(store: Store) -> None:
        app = await store.get(CONFIG, Key(f"ORG#{tenant.org_id}", "APP#web"))
        assert app is not None
        copies = [
            store.put(Put(CONFIG, {**app, "SK": f"APP#app-{number:04}", "quotas": {"premium": 3}}))
            for number in range(APPS)
        ]
        for start in range(0, APPS, 50):
            await asyncio.gather(*copies[start : start + 50])

    written.on_store(location, multiply)
    one = api.call("GET", f"{tenant.org}/aggregates/today", token=tenant.org_token)
    assert one.status == 200, one.data
    quotas = {label: model["quota_usd_micros"] for label, model in one.json["models"].items()}
    assert quotas["premium"] == ORG["quotas"]["premium"] + 3 * APPS
    path = f"{tenant.org}/aggregates?from={today()}&to={today()}"
    (day,) = api.call("GET", path, token=tenant.org_token).json["days"]
    assert day["models"]["premium"]["quota_usd_micros"] == quotas["premium"]


def test_a_deletion_is_a_revocation_of_the_client(api: Api) -> None:
    """An app is one client; an organisation is one more than its apps."""
    name = 'pricekeeper_revocations_total{kind="client"}'
    tenant = Tenant(api).register()
    second = f"{tenant.org}/apps/second"
    assert api.provision("PUT", second, {"app_name": "Second"}).status == 201
    with moves(api, {name: 1}):
        assert api.provision("DELETE", second).status == 204
        assert api.provision("DELETE", second).status == 404
    with moves(api, {name: 2}):
        assert api.provision("DELETE", tenant.org).status == 204
        assert api.provision("DELETE", tenant.org).status == 404


def test_quotas_are_shown_of_apps_that_only_report_and_after_an_override(api: Api) -> None:
    tenant = Tenant(api).register()
    name = tenant.quota_line("premium")
    reply = tenant.record(input_tokens=100_000, output_tokens=20_000)
    used = reply.json["cost_usd_micros"] / ORG["quotas"]["premium"]
    assert scrape(api)[name] == pytest.approx(used, abs=0.0001)
    assert tenant.select(FORCED).status == 200
    body = {"model_label": "economy"}
    assert api.provision("PUT", f"{tenant.app}/model-override", body).status == 200
    assert tenant.select().status == 200
    assert scrape(api)[name] == pytest.approx(used, abs=0.0001)


def test_a_refused_write_is_in_the_units(api: Api, location: str) -> None:
    """A duplicate without a time in its id is two refused writes, and AWS bills each: one unit."""
    tenant, record = Tenant(api).register(), usage()
    assert tenant.record(record).json["status"] == "accepted"
    units = 'pricekeeper_store_capacity_units_total{kind="write",table="%s"}'
    billed = 1 if location.startswith("dynamodb") else 0  # SQLite has no units
    with moves(api, {units % "RequestDedup": billed, units % "UsageAggSharded": billed}):
        assert tenant.record(record).json["status"] == "duplicate"
