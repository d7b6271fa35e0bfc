"""What each operation costs on DynamoDB, as docs/costs.md says, asked over HTTP.

A real service counts the units that the engine reports, including those of refused writes. Its
clock does not move, so that caches stay warm on a slow machine.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from http_fixtures import ENVIRONMENT, FORCED, KEY, ORG, Api, Tenant, usage
from minting import minted
from pricekeeper.clock import SystemClock
from pricekeeper.settings import read_settings
from pricekeeper.storage.tables import ACTIVITY, ALERTS
from pricekeeper.testing.serving import running_service
from pricekeeper.ticks import TICK_MS
from scraping import scrape

PAGE = Path(__file__).parents[2] / "docs" / "costs.md"
ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<write>[\d.]+) \| (?P<read>[\d.]+) \|", re.MULTILINE)
DOCUMENTED = {
    found["name"]: (float(found["write"]), float(found["read"]))
    for found in ROW.finditer(PAGE.read_text().split("## Every operation")[1].split("\n## ")[0])
}
DAY = "2026-01-09"
COUNTED_APART = (ALERTS, ACTIVITY)
"""Tables that are read and written now and then, beside the requests."""
UP_TO = ("model selection with `force_check`", "fallback to the next model")
"""Sums read a unit for each tick that is open, and other tests have posted in some."""


ROUND_MS = 1_000
"""The shortest pause between two rounds of a task in the background."""


class StillClock(SystemClock):
    """A clock whose hands move when they are moved.

    Short sleeps are real. Long ones do not end: no round of a task in the background, which reads
    sums or recounts, falls into a measurement on a busy machine.
    """

    __slots__ = ("moved_ms",)

    def __init__(self) -> None:
        self.moved_ms = 0

    def now_ms(self) -> int:
        return 1_768_000_000_000 + self.moved_ms

    def monotonic_ms(self) -> int:
        return self.moved_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms >= ROUND_MS:
            await asyncio.Event().wait()
        await super().sleep_ms(duration_ms)


class World(NamedTuple):
    """A service whose units are counted, and a tenant in it."""

    api: Api
    clock: StillClock

    def tenant(self, **settings: Any) -> Tenant:
        """An organisation with an app, whose tokens this service has seen."""
        made = Tenant(self.api).register()
        if settings:
            self.expect(200, "PUT", made.org, {**ORG, **settings}, key=KEY)
        self.select(made)
        return made

    def expect(self, status: int, *request: Any, **how: Any) -> Any:
        reply = self.api.call(*request, **how)
        assert reply.status == status, reply.data
        return reply.json if reply.data else None

    def select(self, tenant: Tenant, query: str = "") -> Any:
        path = f"{tenant.app}/model-selection{query}"
        return self.expect(200, "GET", path, token=tenant.app_token)

    def timed(self) -> Any:
        """A record whose id was made now."""
        return usage(request_id=minted(self.clock.now_ms()))

    def record(self, tenant: Tenant, body: Any, status: int = 202) -> Any:
        return self.expect(status, "POST", f"{tenant.app}/usage", body, token=tenant.app_token)

    def acquire(self, tenant: Tenant, count: int = 1, status: int = 200) -> str:
        taken = tenant.acquire(count, lease_id=(lease_id := str(uuid.uuid4())))
        assert taken.status == status, taken.data
        return lease_id

    def login(self, tenant: Tenant, status: int = 200, secret: str = "") -> Any:
        return self.expect(status, "POST", "/auth/token", tenant.credentials(secret))

    def fetch(self, tenant: Tenant, status: int = 200, secret: str = "") -> Any:
        headers = tenant.basic(secret)
        return self.expect(status, "GET", "/auth/aws-credentials", headers=headers)

    def administer(self, status: int, method: str, path: str, **body: Any) -> Any:
        return self.expect(status, method, path, body or None, key=KEY)

    def units(self) -> tuple[float, float]:
        """Write and read units since the start."""
        samples = scrape(self.api)
        write, read = (
            sum(
                value
                for name, value in samples.items()
                if name.startswith(f'pricekeeper_store_capacity_units_total{{kind="{kind}"')
                and not any(f'{table.name}"' in name for table in COUNTED_APART)
            )
            for kind in ("write", "read")
        )
        return write, read


@contextmanager
def running_world(engine: str, folder: Path, limits: str) -> Iterator[World]:
    """A service on the engine that sums capacity as DynamoDB does."""
    environment = {
        **ENVIRONMENT,
        "PRICEKEEPER_EVENT_LISTENERS_MAX": "0",  # counted apart, in tests/activity
        "PRICEKEEPER_STORE": f"dynamodb://us-east-1?prefix={uuid.uuid4().hex}-&endpoint={engine}",
        "PRICEKEEPER_DATA_DIR": str(folder),
        "PRICEKEEPER_API_RATE_LIMITS": limits,
    }
    clock = StillClock()
    with running_service(read_settings(environment), clock) as url:
        yield World(Api(url), clock)


@pytest.fixture(scope="module")
def world(dynoxide: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(dynoxide, tmp_path_factory.mktemp("costs"), "off") as running:
        yield running


VIEWER = {"name": "night shift", "role": "VIEWER"}
ADMIN_KEYS = "/api/v1/admin-keys"
ADMINISTERED: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "new organisation": (201, "PUT", "/api/v1/orgs/{new}", ORG),
    "new app": (201, "PUT", "{org}/apps/second", {"app_name": "Second"}),
    "new settings of an app": (200, "PUT", "{app}", {"app_name": "Web"}),
    "change of some settings of an app": (200, "PATCH", "{app}", {"session_limit": 7}),
    "rotation": (200, "POST", "{app}/credentials/rotate", {"grace_period_hours": 0}),
    "override": (200, "PUT", "{app}/model-override", {"model_label": "economy"}),
    "freeze": (200, "PUT", "{app}/freeze", {"reason": "a leak"}),
    "revocation of credentials": (200, "POST", "{app}/credentials/revoke", {"reason": "a leak"}),
    "deletion of an app": (204, "DELETE", "{app}", {}),
}
"""What an administrator asks for, with nothing before it: status, method, path and body."""
READ = {
    "aggregates of a range, three labels": f"{{app}}/aggregates?from={DAY}&to={DAY}",
    "forecast of an app, its hours read before": "{app}/forecast",
    "aggregates of today of an organisation with one app": "{org}/aggregates/today",
}
"""What the organisation reads a second time."""
Request = Callable[[World, Tenant], object]
FIRST: dict[str, Request] = {
    "model selection, remembered (5 s)": lambda world, tenant: world.select(tenant),
    "model selection with `force_check`": lambda world, tenant: world.select(tenant, FORCED),
    "acquire, the first on a bucket": lambda world, tenant: world.acquire(tenant),
    "login": lambda world, tenant: world.login(tenant),
    "list of sessions": lambda world, tenant: world.expect(
        200, "GET", "/auth/sessions", token=tenant.app_token
    ),
    "credentials for AWS SDKs": lambda world, tenant: world.fetch(tenant),
}
"""What nothing has to precede."""
REPEATED: dict[str, Request] = {
    "usage record whose id has no time, alone": lambda world, tenant: world.record(tenant, usage()),
    "acquire": lambda world, tenant: world.acquire(tenant),
    "new admin key": lambda world, _: world.administer(201, "POST", ADMIN_KEYS, **VIEWER),
}
"""The second request is measured."""
Operation = Callable[[World, Tenant], Callable[[], object]]
OPERATIONS: dict[str, Operation] = {}
"""The others: what the function does is not counted, what it returns is."""


def operation(name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function
        return function

    return register


@operation("model selection, not remembered")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.clock.moved_ms += 6_000
    return lambda: world.select(tenant)


@operation("fallback to the next model")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, usage(input_tokens=400_000))
    world.select(tenant, FORCED)
    world.clock.moved_ms += 6_000
    world.record(tenant, usage(model_label="standard", input_tokens=400_000))
    world.clock.moved_ms += 2_000
    return lambda: world.select(tenant, FORCED)


@operation("usage record, alone")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, world.timed())
    world.clock.moved_ms += 16
    return lambda: world.record(tenant, world.timed())


@operation("usage record, the first of its day, label and tick")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.clock.moved_ms += TICK_MS
    world.select(tenant)  # whose token is checked again by then
    return lambda: world.record(tenant, world.timed())


@operation("usage record that is repeated")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = world.timed()
    world.record(tenant, body)
    return lambda: world.record(tenant, body)


@operation("usage record whose id has no time, repeated")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = usage()
    world.record(tenant, body)
    return lambda: world.record(tenant, body)


@operation("usage record that is refused (400)")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, usage())
    return lambda: world.record(tenant, usage(timestamp="2020-01-01T00:00:00Z"), 400)


@operation("usage batch of 100, ids made when it is sent")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, world.timed())
    world.clock.moved_ms += 16
    body = {"requests": [world.timed() for _ in range(100)]}
    path = f"{tenant.app}/usage/batch"
    return lambda: world.expect(207, "POST", path, body, token=tenant.app_token)


@operation("usage batch of 100, ids without times")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, usage())
    body = {"requests": [usage() for _ in range(100)]}
    path = f"{tenant.app}/usage/batch"
    return lambda: world.expect(207, "POST", path, body, token=tenant.app_token)


@operation("acquire that is denied")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.acquire(tenant, 10)
    return lambda: world.acquire(tenant, 1, 429)


@operation("adjust")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    path = f"{tenant.app}/leases/{world.acquire(tenant)}/adjust"
    body = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 1}}
    return lambda: world.expect(200, "POST", path, body, token=tenant.app_token)


@operation("release")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    path = f"{tenant.app}/leases/{world.acquire(tenant)}/release"
    return lambda: world.expect(204, "POST", path, token=tenant.app_token)


@operation("list of limits, three labels")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.acquire(tenant)
    return lambda: world.expect(200, "GET", f"{tenant.app}/limits", token=tenant.app_token)


@operation("aggregates of today")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.record(tenant, usage())
    path = f"{tenant.app}/aggregates/today"
    return lambda: world.expect(200, "GET", path, token=tenant.app_token)


@operation("login that evicts the oldest session")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    for _ in range(4):
        world.login(tenant)
    return lambda: world.login(tenant)


@operation("login with a wrong secret")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    (wrong, *_) = world.tenant().secrets.values()
    return lambda: world.login(tenant, 401, wrong)


@operation("credentials for AWS SDKs with a wrong secret")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    (wrong, *_) = world.tenant().secrets.values()
    return lambda: world.fetch(tenant, 401, wrong)


@operation("first use of a token outside the session slots, and every 30 s")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    tenant.app_token = world.fetch(tenant)["Token"]
    return lambda: world.select(tenant)


@operation("revocation of a token outside the session slots")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = {"token": world.fetch(tenant)["Token"]}
    return lambda: world.expect(200, "POST", "/auth/revoke", body, token=tenant.app_token)


@operation("first use of a token, and every 30 s")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    tenant.app_token = world.login(tenant)["access_token"]
    return lambda: world.select(tenant)


@operation("refresh")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    token = world.login(tenant)["refresh_token"]
    return lambda: world.api.refresh(token)


@operation("revocation of an access token")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = {"token": world.login(tenant)["access_token"]}
    return lambda: world.expect(200, "POST", "/auth/revoke", body, token=tenant.app_token)


@operation("revocation of a session by its refresh token")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = {"token": world.login(tenant)["refresh_token"]}
    return lambda: world.expect(200, "POST", "/auth/revoke", body, token=tenant.app_token)


@operation("change of the budgets of an app")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    budget = {"name": "daily", "window": "DAY", "limit_usd_micros": 1_000_000}
    return lambda: world.administer(200, "PATCH", tenant.app, budgets=[budget])


@operation("claim")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    path = f"{tenant.app}/credentials/rotate"
    made = world.administer(200, "POST", path, grace_period_hours=24)
    body = {"token": made["secret_retrieval"]["token"]}
    return lambda: world.expect(200, "POST", "/api/v1/credentials/claim", body)


@operation("claim with a wrong token")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    body = {"token": "pkr_" + "A" * 43}
    return lambda: world.expect(404, "POST", "/api/v1/credentials/claim", body)


@operation("reset of limits, one bucket")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    world.acquire(tenant)
    path = f"{tenant.app}/limits/reset"
    return lambda: world.administer(200, "POST", path, reason="a wrong adjustment")


@operation("void of a usage record")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    sent = usage()
    world.record(tenant, sent)
    path = f"{tenant.org}/usage/{sent['request_id']}/void"
    return lambda: world.administer(200, "POST", path, reason="a load test")


@operation("void of an authorization by an administrator")
def _(world: World, tenant: Tenant) -> Callable[[], object]:
    asked = {"model": "premium", "input_tokens": 1000, "max_output_tokens": 500}
    path, token = f"{tenant.app}/authorizations", tenant.app_token
    granted = world.expect(201, "POST", path, asked, token=token)
    path = f"{tenant.org}/authorizations/{granted['authorization_id']}/void"
    return lambda: world.administer(200, "POST", path, reason="a load test")


@operation("rotation of an admin key")
def _(world: World, _: Tenant) -> Callable[[], object]:
    path = f"{ADMIN_KEYS}/{world.administer(201, 'POST', ADMIN_KEYS, **VIEWER)['key_id']}/rotate"
    return lambda: world.administer(200, "POST", path, grace_period_hours=1)


@operation("deletion of an admin key")
def _(world: World, _: Tenant) -> Callable[[], object]:
    path = f"{ADMIN_KEYS}/{world.administer(201, 'POST', ADMIN_KEYS, **VIEWER)['key_id']}"
    return lambda: world.administer(204, "DELETE", path)


@operation("first use of an admin key, and every 30 s")
def _(world: World, _: Tenant) -> Callable[[], object]:
    key = world.administer(201, "POST", ADMIN_KEYS, **VIEWER)["key"]
    world.expect(200, "GET", "/api/v1/me", key=key)
    world.clock.moved_ms += 30_000
    return lambda: world.expect(200, "GET", "/api/v1/me", key=key)


@operation("use of an admin key that is written down, every ten minutes")
def _(world: World, _: Tenant) -> Callable[[], object]:
    key = world.administer(201, "POST", ADMIN_KEYS, **VIEWER)["key"]
    return lambda: world.expect(200, "GET", "/api/v1/me", key=key)


@operation("use of an admin key")
def _(world: World, _: Tenant) -> Callable[[], object]:
    key = world.administer(201, "POST", ADMIN_KEYS, **VIEWER)["key"]
    world.expect(200, "GET", "/api/v1/me", key=key)
    return lambda: world.expect(200, "GET", "/api/v1/me", key=key)


def prepared(world: World, tenant: Tenant, name: str) -> Callable[[], object]:
    """The request that is measured."""
    places = {"app": tenant.app, "org": tenant.org, "new": str(uuid.uuid4())}
    if name in ADMINISTERED:
        status, method, path, body = ADMINISTERED[name]
        return lambda: world.administer(status, method, path.format(**places), **body)
    if name in READ:
        path = READ[name].format(**places)
        world.expect(200, "GET", path, token=tenant.org_token)
        return lambda: world.expect(200, "GET", path, token=tenant.org_token)
    if name in FIRST:
        return lambda: FIRST[name](world, tenant)
    if name in REPEATED:
        REPEATED[name](world, tenant)
        return lambda: REPEATED[name](world, tenant)
    return OPERATIONS[name](world, tenant)


MEASURED = {*ADMINISTERED, *READ, *FIRST, *REPEATED, *OPERATIONS}


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_an_operation_costs_what_is_documented(world: World, name: str) -> None:
    """The units of one request, when everything that can be remembered is."""
    measured = prepared(world, world.tenant(), name)
    written, read = world.units()
    measured()
    after = world.units()
    units = (after[0] - written, after[1] - read)
    if name in UP_TO:
        assert units[0] == DOCUMENTED[name][0]
        assert units[1] <= DOCUMENTED[name][1]
    else:
        assert units == DOCUMENTED[name]


def test_every_row_is_measured() -> None:
    assert DOCUMENTED.keys() == MEASURED


def test_a_limit_of_the_api_costs_one_unit_alone_and_next_to_nothing_in_company(
    dynoxide: str, tmp_path: Path
) -> None:
    """A busy bucket gives a block of tokens; what is left of it is given back."""
    with running_world(dynoxide, tmp_path, "on") as world:
        tenant = world.tenant()

        def write_units(requests: int, apart_ms: int) -> float:
            before = world.units()[0]
            for _ in range(requests):
                world.select(tenant)
                world.clock.moved_ms += apart_ms
            return world.units()[0] - before

        assert write_units(100, 10) <= 3
        assert 10 <= write_units(10, 60_000) <= 11  # and the rest of the block
