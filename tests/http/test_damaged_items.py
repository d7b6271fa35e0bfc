"""No request gets a 500, with any junk in one attribute of a stored item.

In this service everything was used once: records, budgets, authorizations, leases, sessions, an
override, totals. Then each attribute of each item is replaced by junk in turn, and everything is
requested. `test_strange_items` says what the answers mean.
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog
from _pytest.mark import ParameterSet

from http_fixtures import KEY, ORG
from in_loop_service import Reply, Service, serving
from pricekeeper.clock import ManualClock
from pricekeeper.metering import Aggregator
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.storage import Item, Put, Table
from pricekeeper.storage.sqlite.codec import unpack
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.tables import ALL_TABLES, RATE_BUCKETS, Key
from pricekeeper.telemetry.logs import configure_logging

GONE = object()
JUNK: tuple[Any, ...] = (
    "junk", -1, None, b"\xff\x00", {"a": "b"}, 10**30, ["x"], True, GONE,
)  # fmt: skip
BOUNDED = {"capacity": 10**6, "refill_amount": 10**6, "refill_period_ms": 60_000}
SETTINGS = {
    **ORG,
    "quotas": dict.fromkeys(ORG["quotas"], 10**9),
    "quota_enforcement": "STRICT",
    "tag_keys": ["team"],
    "rate_limits": {"*": {"rpm": BOUNDED, "tpm": BOUNDED}},
    "budgets": [
        {"name": "day", "window": "DAY", "limit_usd_micros": 10**9},
        {"name": "team", "window": "MONTH", "limit_usd_micros": 10**9, "per_tag": "team"},
        {
            "name": "small",
            "window": "DAY",
            "limit_usd_micros": 1,
            "enforcement": "SOFT",
            "alert_at_pct": [50],
        },
    ],
}
DAY_MS = 86_400_000
NOON_MS = 20_600 * DAY_MS + DAY_MS // 2
TODAY = "from=2026-05-27&to=2026-05-27"
CACHED_MS = 31_000
"""No cache is older, except by its source."""


class World:
    """An organisation with an app, both of which have used everything once."""

    def __init__(self, service: Service, clock: ManualClock) -> None:
        self.service = service
        self.clock = clock
        self.org = f"/api/v1/orgs/{uuid.uuid4()}"
        self.app = f"{self.org}/apps/web"
        self.ids = {name: str(uuid.uuid4()) for name in ("old", "named")}
        self.token = ""

    @property
    def store(self) -> SqliteStore:
        store = self.service.inside.store
        assert isinstance(store, SqliteStore)
        return store

    def usage(self, request_id: str = "") -> dict[str, Any]:
        record = {"model_label": "premium", "input_tokens": 100, "output_tokens": 10}
        return {**record, "request_id": request_id or self.new_id(), "tags": {"team": "x"}}

    def wanted(self, **more: Any) -> dict[str, Any]:
        limits = {"input_tokens": 100, "max_output_tokens": 50}
        return {"model": "premium", **limits, "tags": {"team": "x"}, **more}

    def new_id(self) -> str:
        made, rest = f"{self.clock.now_ms():012x}", uuid.uuid4().hex
        return f"{made[:8]}-{made[8:]}-7{rest[:3]}-8{rest[3:6]}-{rest[6:18]}"

    async def call(self, method: str, path: str, body: Any = None) -> Reply:
        return await self.service.call(method, path, body, token=self.token)

    async def use_everything(self) -> None:
        provision = self.service.provision
        await self.service.inside.prices.publish_file()
        await provision("PUT", self.org, SETTINGS)
        made = await provision("PUT", self.app, {"app_name": "Web"})
        retrieval = {"token": made.json["secret_retrieval"]["token"]}
        claimed = (await self.call("POST", "/api/v1/credentials/claim", retrieval)).json
        self.login = {"grant_type": "client_credentials", **claimed}
        self.token = (await self.call("POST", "/auth/token", self.login)).json["access_token"]
        other = (await self.call("POST", "/auth/token", self.login)).json
        self.refresh = {"grant_type": "refresh_token", "refresh_token": other["refresh_token"]}
        await self.call("POST", "/auth/revoke", {"token": other["access_token"]})
        self.ids["journal"] = self.new_id()
        for name in ("journal", "old"):
            await self.call("POST", f"{self.app}/usage", self.usage(self.ids[name]))
        named = self.wanted(authorization_id=self.ids["named"])
        await self.call("POST", f"{self.app}/authorizations", named)
        for name in ("captured", "open"):
            granted = await self.call("POST", f"{self.app}/authorizations", self.wanted())
            self.ids[name] = granted.json["authorization_id"]
        used = {"input_tokens": 90, "output_tokens": 5}
        await self.call("POST", f"{self.app}/authorizations/{self.ids['captured']}/capture", used)
        taken = {"resource": "premium", "consume": {"rpm": 1}}
        lease = await self.call("POST", f"{self.app}/limits/acquire", taken)
        self.ids["lease"] = lease.json["lease_id"]
        await provision("PUT", f"{self.app}/model-override", {"model_label": "standard"})
        await provision("POST", f"{self.app}/credentials/rotate", {"grace_period_hours": 1})
        await self.call("POST", f"{self.app}/limits/acquire", taken | {"consume": {"rpm": 10**6}})
        await self.service.inside.activity.denials.flush()
        look = self.service.inside.alerts.look
        await Aggregator(self.store, self.clock, look=look).run_once()

    def requests(self) -> Iterator[tuple[str, str, Any]]:
        """What an app can ask for."""
        app, ids = self.app, self.ids
        for request_id in ("", ids["journal"], ids["old"]):
            yield "POST", f"{app}/usage", self.usage(request_id)
        yield "POST", f"{app}/usage/batch", {"requests": [self.usage(), self.usage(ids["old"])]}
        for query in ("", "?force_check=true"):
            yield "GET", f"{app}/model-selection{query}", None
        for path in ("aggregates/today", f"aggregates?{TODAY}", "limits", "budgets"):
            yield "GET", f"{app}/{path}", None
        yield "POST", f"{app}/limits/acquire", {"resource": "premium", "consume": {"rpm": 1}}
        change = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 1}}
        yield "POST", f"{app}/leases/{ids['lease']}/adjust", change
        for wanted in ({}, {"authorization_id": ids["named"]}, {"dry_run": True}):
            yield "POST", f"{app}/authorizations", self.wanted(**wanted)
        for path in (f"/{ids['open']}", "?status=open", "?status=unsettled"):
            yield "GET", f"{app}/authorizations{path}", None
        used = {"input_tokens": 90, "output_tokens": 5}
        yield "POST", f"{app}/authorizations/{ids['captured']}/capture", used
        yield "POST", f"{app}/authorizations/{ids['open']}/extend", {"hold_secs": 900}
        yield "GET", f"/api/v1/spend?{TODAY}&group_by=app,label,hour,tag:team", None
        yield "GET", "/auth/sessions", None
        for body in (self.login, self.refresh):
            yield "POST", "/auth/token", body

    def administration(self) -> Iterator[tuple[str, str, Any]]:
        """What an administrator can ask for."""
        org, app = self.org, self.app
        for path in ("", "/apps", "/usage", "/aggregates/today", "/budgets", "/alert-channels"):
            yield "GET", f"{org}{path}", None
        for path in (f"{org}/denials", f"{org}/flips", f"{app}/flips", "/api/v1/denials"):
            yield "GET", path, None
        for path in ("orgs", "alerts", "audit", f"spend?{TODAY}&group_by=org"):
            yield "GET", f"/api/v1/{path}", None
        for path in (app, f"{app}/sessions"):
            yield "GET", path, None
        yield "PATCH", app, {"app_name": "Web"}
        yield "PUT", f"{app}/model-override", {"model_label": "premium"}
        yield "POST", f"{app}/limits/reset", {"reason": "test"}
        yield "PUT", f"{app}/freeze", {"reason": "test"}
        yield "DELETE", f"{app}/freeze", None

    async def read_all(self, table: Table) -> list[Item]:
        """Every item of a table."""

        def read(connection: Any, _: Any) -> list[Item]:
            rows = connection.execute(f'SELECT pk, sk, item FROM "{table.name}"')  # noqa: S608
            return [unpack(data, Key(pk, sk or None)) for pk, sk, data in rows]

        return await self.store._read(read)

    async def failures(self) -> list[tuple[str, str]]:
        """What is answered with a 500 now."""
        failed = []
        for method, path, body in self.requests():
            if (await self.call(method, path, body)).status == 500:
                failed.append((method, path))
        for method, path, body in self.administration():
            if (await self.service.provision(method, path, body)).status == 500:
                failed.append((method, path))
        return failed


def tables() -> Iterator[ParameterSet]:
    for table in ALL_TABLES:
        marks = [] if table is RATE_BUCKETS else [pytest.mark.slow]
        yield pytest.param(table, id=table.name, marks=marks)


@pytest.fixture(params=[*tables()])
async def table(request: pytest.FixtureRequest) -> Table:
    found: Table = request.param
    return found


@pytest.fixture
async def world(tmp_path: Any) -> AsyncIterator[World]:
    configure_logging("error", for_good=False)  # a traceback for each would take most of the time
    clock = ManualClock(NOON_MS)
    settings = Settings(
        SqliteLocation(MEMORY),
        data_dir=tmp_path,
        provisioning_key=KEY,
        api_limits_per_minute={},
        aggregator_interval_secs=0,
        log_level="error",
    )
    async with serving(settings, clock) as service:
        made = World(service, clock)
        await made.use_everything()
        yield made
    structlog.reset_defaults()


async def test_a_damaged_item_is_no_mistake_of_ours(world: World, table: Table) -> None:
    assert not await world.failures()
    kinds = 0
    for item in await world.read_all(table):
        for name in sorted(item.keys() - {"PK", "SK", "expires_at_epoch"}):
            junk, kinds = JUNK[kinds % len(JUNK)], kinds + 1
            damaged = {**item, name: junk}
            if junk is GONE:
                del damaged[name]
            await world.store.put(Put(table, damaged))
            world.clock.advance_ms(CACHED_MS)
            failed = await world.failures()
            assert not failed, f"{table.name} {item['PK']} {name} {junk!r}"
        await world.store.put(Put(table, item))
    assert kinds
