"""Three processes of the real service, an hour of a failing webhook, and kills in between.

Everything is looked at from outside: the list of alerts over HTTP, the items in the store, and what
the webhook was sent. The clock is one that the test moves for all processes.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from alerts.service_process import SharedClock, make_clock
from hook_server import Hook, Posted, running_hook
from http_fixtures import KEY, METRICS_TOKEN, ORG, Api, Tenant, usage
from minting import minted
from pricekeeper.alerts.items import OUTBOX
from pricekeeper.storage import Query, Store, query_items
from pricekeeper.storage.tables import ALERTS
from scraping import scrape, until
from stored_items import on_store

PROCESS = Path(__file__).with_name("service_process.py")
INSTANCES = 3
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
AT_PCT = [50, 80, 100]
LIMIT_USD_MICROS = 44_000
"""What 10,000 tokens that `spend` tells of cost with premium."""


@dataclass
class Process:
    """One instance of the service."""

    popen: "subprocess.Popen[bytes]"
    api: Api

    @property
    def decided(self) -> int:
        """How many alerts of limits it has decided."""
        samples = scrape(self.api)
        names = (f'pricekeeper_alerts_total{{kind="{kind}"}}' for kind in ("BUDGET", "QUOTA"))
        return sum(int(samples.get(name, 0)) for name in names)


@dataclass
class Fleet:
    """Instances on one store and one clock."""

    store: str
    folder: Path
    clock: SharedClock
    running: list[Process] = field(default_factory=list)

    def start(self, count: int) -> None:
        """Start so many more, at once."""
        where = (str(self.folder), self.store, KEY, METRICS_TOKEN)
        made = [
            subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, PROCESS, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(count)
        ]
        for popen in made:
            assert popen.stdout is not None
            self.running.append(Process(popen, Api(popen.stdout.readline().decode().strip())))

    def kill(self, *those: Process) -> None:
        """As a power cut would."""
        self.running = [one for one in self.running if one not in those]
        for one in those:
            one.popen.kill()
        for one in those:
            one.popen.communicate()

    def kill_all(self) -> None:
        self.kill(*self.running)

    def pass_time_until(self, condition: Callable[[], bool]) -> None:
        """Let a minute pass for all, again and again."""

        def is_met() -> bool:
            met = condition()
            if not met:
                self.clock.advance_ms(MINUTE_MS)
            return met

        until(is_met)


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path / 'store.db'}"
    endpoint: str = request.getfixturevalue("dynoxide")
    return f"dynamodb://us-east-1?prefix={table_prefix}&endpoint={endpoint}"


@contextmanager
def running_fleet(store_url: str, folder: Path) -> Iterator[Fleet]:
    """Three instances, two minutes after an hour has begun."""
    fleet = Fleet(store_url, folder, make_clock(folder))
    fleet.clock.advance_ms(2 * MINUTE_MS - fleet.clock.now_ms() % HOUR_MS + HOUR_MS)
    fleet.start(1)  # which makes the tables and the keys
    try:
        fleet.start(INSTANCES - 1)
        yield fleet
    finally:
        fleet.kill_all()


def register(fleet: Fleet, hook: Hook) -> Tenant:
    """An organisation and an app, each with a budget for the hour, and a quota for the day."""
    tenant = Tenant(fleet.running[0].api).register()
    budget = {"window": "HOUR", "limit_usd_micros": LIMIT_USD_MICROS, "alert_at_pct": AT_PCT}
    settings = {
        **ORG,
        "timezone": "UTC",
        "quotas": {**ORG["quotas"], "premium": LIMIT_USD_MICROS},
        "budgets": [{"name": "all", **budget}],
        "alerts": {"quota_at_pct": AT_PCT},
    }
    own = {"app_name": "Web", "budgets": [{"name": "own", **budget}]}
    channel = {"kind": "WEBHOOK", "url": hook.url, "secret": "a-secret-of-the-webhook-of-a-test"}
    for path, body in (
        (tenant.org, settings),
        (tenant.app, own),
        (f"{tenant.org}/alert-channels/ops", channel),
    ):
        reply = tenant.api.provision("PUT", path, body)
        assert reply.status in (200, 201), reply.data
    return tenant


def spend(fleet: Fleet, tenant: Tenant, tokens: int, label: str = "premium") -> None:
    """Report usage to one of those that run."""
    tenant.api = fleet.running[-1].api
    token = tenant.login(tenant.client_id)["access_token"]
    body = usage(
        request_id=minted(fleet.clock.now_ms()),
        model_label=label,
        input_tokens=tokens,
        output_tokens=0,
    )
    reply = tenant.api.call("POST", f"{tenant.app}/usage", body, token=token)
    assert reply.status == 202, reply.data


def listed(fleet: Fleet, tenant: Tenant) -> list[dict[str, Any]]:
    """The history: all decided alerts of the organisation."""
    path = f"/api/v1/alerts?org_id={tenant.org_id}"
    alerts: list[dict[str, Any]] = fleet.running[0].api.call("GET", path, key=KEY).json["alerts"]
    return alerts


def until_decided(fleet: Fleet, tenant: Tenant, count: int) -> None:
    until(lambda: len(listed(fleet, tenant)) >= count, lambda: listed(fleet, tenant))


def threshold(alert: dict[str, Any]) -> tuple[str, str, str, int]:
    """The threshold, its owner and its period."""
    about = alert["about"]
    period = about.get("window_started_at") or about["day"]
    return alert["kind"], about.get("name", "quota"), period, about["threshold_pct"]


@pytest.mark.slow
def test_three_instances_kills_and_an_hour_of_a_failing_webhook(
    store_url: str, tmp_path: Path
) -> None:
    """Each threshold is decided once in its period, and comes under one key, at least once."""
    with running_hook() as hook, running_fleet(store_url, tmp_path) as fleet:
        tenant, clock = register(fleet, hook), fleet.clock
        hook.status = 503
        spend(fleet, tenant, 5_000)
        until_decided(fleet, tenant, 3)
        fleet.kill(next(one for one in fleet.running if one.decided))  # nothing of it is delivered
        spend(fleet, tenant, 3_000)
        spend(fleet, tenant, 2_000)
        until_decided(fleet, tenant, 9)
        fleet.start(1)
        began_ms = clock.now_ms()
        while clock.now_ms() < began_ms + HOUR_MS:
            tried = len(hook.requests)
            fleet.pass_time_until(lambda tried=tried: len(hook.requests) > tried)  # type: ignore[misc]
        spend(fleet, tenant, 20_000, "standard")
        until_decided(fleet, tenant, 15)
        assert {one["state"] for one in listed(fleet, tenant)} == {"pending"}

        hook.before_answer = fleet.kill_all  # one arrives, and its reply is lost
        hook.status = 204
        fleet.pass_time_until(lambda: not fleet.running)
        hook.before_answer = lambda: None
        assert accepted(hook)
        fleet.start(1)

        def states() -> set[str]:
            return {one["state"] for one in listed(fleet, tenant)}

        fleet.pass_time_until(lambda: states() == {"delivered"})
        check(listed(fleet, tenant), hook, store_url)


def check(alerts: list[dict[str, Any]], hook: Hook, store_url: str) -> None:
    found = Counter(map(threshold, alerts))
    periods = {period for _, name, period, _ in found if name == "all"}
    assert len(periods) == 2
    (day,) = {period for _, name, period, _ in found if name == "quota"}
    expected = {
        ("BUDGET", name, period, pct)
        for name in ("all", "own")
        for period in periods
        for pct in AT_PCT
    } | {("QUOTA", "quota", day, pct) for pct in AT_PCT}
    assert found == dict.fromkeys(expected, 1)

    ids = {threshold(alert): alert["id"] for alert in alerts}
    for one in hook.requests:  # the failed ones too
        assert one.headers["idempotency-key"] == ids[threshold(one.json)]
    arrived = Counter(one.headers["idempotency-key"] for one in accepted(hook))
    assert arrived.keys() == set(ids.values())
    assert max(arrived.values()) > 1
    assert len({one.body for one in accepted(hook)}) == len(ids)

    async def read(store: Store) -> tuple[list[Any], list[Any]]:
        owners = [str(item["owner"]) async for item in query_items(store, Query(ALERTS, "LIST"))]
        (owner,) = {one for one in owners if one.startswith("ORG#")}
        keys = [item async for item in query_items(store, Query(ALERTS, f"{owner}#KEYS"))]
        waiting = [item async for item in query_items(store, Query(ALERTS, OUTBOX))]
        waiting += [item async for item in query_items(store, Query(ALERTS, f"{owner}#TO#ops"))]
        return keys, waiting

    until(lambda: on_store(store_url, read)[1] == [])  # the last of it goes after the last alert
    keys, _ = on_store(store_url, read)
    assert sorted(item["alert_id"] for item in keys) == sorted(ids.values())


def accepted(hook: Hook) -> list[Posted]:
    return [one for one in hook.requests if one.status < 300]
