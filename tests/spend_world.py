"""A real service on a clock that the test moves, and an aggregator that runs on command."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import ENVIRONMENT, KEY, ORG, Api, Reply, Tenant, store_url, usage
from minting import minted
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Aggregator
from pricekeeper.metering.aggregation_report import AggregationReport
from pricekeeper.settings import Settings, read_settings
from pricekeeper.storage import Item, Query, Store, Table, open_store
from pricekeeper.testing.serving import running_service

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = (SystemClock().now_ms() // DAY_MS + 1) * DAY_MS
"""The next midnight of UTC: an engine removes what has expired by its own clock."""
STORES = ("sqlite-file", "dynoxide")


class MovedClock(SystemClock):
    """A clock that the test moves; sleepers sleep for real."""

    __slots__ = ("at_ms",)

    def __init__(self, at_ms: int = START_MS) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms - START_MS + DAY_MS


@dataclass
class World:
    """A service, its clock and its store."""

    api: Api
    clock: MovedClock
    settings: Settings
    costs: dict[str, int] = field(default_factory=dict)
    tenants: list[Tenant] = field(default_factory=list)

    def move_to(self, at_ms: int) -> None:
        """Let time pass. Tokens live for an hour, so all clients log in again."""
        self.clock.at_ms = at_ms
        for tenant in self.tenants:
            tenant.org_token = tenant.login(f"org-{tenant.org_id}")["access_token"]
            tenant.app_token = tenant.login()["access_token"]

    def tenant(self, **changes: Any) -> Tenant:
        """A new organisation with the app ``web``, and tokens of both."""
        made = Tenant(self.api).register()
        self.configure(made, **changes)
        self.tenants.append(made)
        return made

    def configure(self, tenant: Tenant, **changes: Any) -> None:
        reply = self.api.provision("PUT", tenant.org, {**ORG, "timezone": "UTC", **changes})
        assert reply.status == 200, reply.data

    def record(self, tenant: Tenant, *, app: str = "web", **changes: Any) -> dict[str, Any]:
        """Have a record counted; returns its body."""
        body = usage(request_id=minted(self.clock.now_ms()), **changes)
        token = tenant.org_token if app != tenant.app_id else tenant.app_token
        path = f"{tenant.org}/apps/{app}/usage"
        reply = self.api.call("POST", path, body, token=token)
        assert reply.status == 202, reply.data
        self.costs[body["request_id"]] = reply.json["cost_usd_micros"]
        return body

    def record_many(self, tenant: Tenant, bodies: list[dict[str, Any]]) -> None:
        for start in range(0, len(bodies), 100):
            some = bodies[start : start + 100]
            path = f"{tenant.app}/usage/batch"
            reply = self.api.call("POST", path, {"requests": some}, token=tenant.app_token)
            assert (reply.status, reply.json["accepted"]) == (207, len(some)), reply.data

    def aggregate(self) -> AggregationReport:
        """One run of an aggregator in a process of its own kind."""
        report: AggregationReport = self.on_store(
            lambda store: Aggregator(store, self.clock).run_once()
        )
        assert not report.failed, report.errors
        return report

    def items(self, table: Table, pk: str, prefix: str = "") -> list[Item]:
        """The items of a partition."""

        async def read(store: Store) -> list[Item]:
            return list((await store.query(Query(table, pk, prefix=prefix))).items)

        found: list[Item] = self.on_store(read)
        return found

    def on_store(self, work: Any) -> Any:
        async def run() -> Any:
            store = await open_store(self.settings.store, clock=self.clock)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def get(self, path: str, **how: Any) -> Reply:
        return self.api.call("GET", path, **how)

    def read(self, path: str, **how: Any) -> Any:
        reply = self.get(path, **(how or {"key": KEY}))
        assert reply.status == 200, reply.data
        return reply.json


def date_at(days: int) -> str:
    """The date so many days after the start, such as 2026-01-10."""
    return (datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=days)).date().isoformat()


def moment_at(hours: int) -> str:
    """The moment so many hours after the start, such as 2026-01-10T12:00:00Z."""
    at = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=hours)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def running_world(request: pytest.FixtureRequest, folder: Path) -> Iterator[World]:
    """A service on the store that the test's parameter names."""
    variables = {"DATA_DIR": str(folder), "STORE": store_url(request, request.param, folder)}
    variables["LOG_LEVEL"] = "error"
    environment = ENVIRONMENT | {f"PRICEKEEPER_{name}": value for name, value in variables.items()}
    clock, settings = MovedClock(), read_settings(environment)
    with running_service(settings, clock) as url:
        yield World(Api(url), clock, settings)


@pytest.fixture(scope="module", params=STORES)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with running_world(request, tmp_path_factory.mktemp("world")) as running:
        yield running
