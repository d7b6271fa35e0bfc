"""A wall clock that leaps destroys nothing, and the service continues by the monotonic clock.

Over a real socket, on both stores. The test sets the wall time of the service's clock.
"""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import METRICS_TOKEN, ORG, dynamodb_url, store_url, usage
from in_loop_service import Account, Service, pass_time, register, serving
from pricekeeper.clock import STEADY_MS, ManualClock, SystemClock, TrustedClock
from pricekeeper.settings import Settings
from pricekeeper.storage.sqlite.store import SqliteStore
from scraping import read_samples
from served import settings_in
from slowness import slow

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ACQUIRE = {"resource": "premium", "consume": {"rpm": 10}}


@pytest.fixture
def clock() -> ManualClock:
    """It begins at the real time: DynamoDB Local deletes what has expired by its own clock."""
    return ManualClock(SystemClock().now_ms())


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    return settings_in(tmp_path, store=store_url(request, request.param, tmp_path))


@pytest.fixture
async def service(settings: Settings, clock: ManualClock) -> AsyncIterator[Service]:
    async with serving(settings, clock) as service:
        yield service


async def log_in(service: Service, account: Account) -> Any:
    granted = await service.call("POST", "/auth/token", account.credentials)
    assert granted.status == 200, granted.json
    return granted.json


async def limits_of(service: Service, account: Account, token: str) -> int:
    return (await service.call("GET", f"{account.path}/limits", token=token)).status


async def test_a_revocation_survives_a_day_that_lasted_70_seconds(
    settings: Settings, clock: ManualClock
) -> None:
    """The revoked token is refused while the clock is ahead, afterwards, and after a restart."""
    async with serving(settings, clock) as service:
        account = await register(service, str(uuid.uuid4()))
        token = (await log_in(service, account))["access_token"]
        kept = (await log_in(service, account))["access_token"]
        revoked = await service.call("POST", "/auth/revoke", {"token": token}, token=token)
        assert revoked.status == 200
        clock.jump_ms(DAY_MS)
        await pass_time(clock, 70_000)
        assert await limits_of(service, account, token) == 401
        assert await limits_of(service, account, kept) == 200  # answers continue
        clock.jump_ms(-DAY_MS)
        assert await limits_of(service, account, token) == 401
    async with serving(settings, clock) as service:
        assert await limits_of(service, account, token) == 401
        assert await limits_of(service, account, kept) == 200


async def test_a_receipt_survives_50_hours_that_lasted_70_seconds(
    settings: Settings, clock: ManualClock
) -> None:
    """The same record is a duplicate while the clock is ahead, afterwards, and after a restart."""
    record = usage()
    async with serving(settings, clock) as service:
        account = await register(service, str(uuid.uuid4()))
        token = (await log_in(service, account))["access_token"]

        async def count(service: Service) -> str:
            reply = await service.call("POST", f"{account.path}/usage", record, token=token)
            assert reply.status == 202, reply.json
            return str(reply.json["status"])

        assert await count(service) == "accepted"
        clock.jump_ms(50 * HOUR_MS)
        await pass_time(clock, 70_000)
        assert await count(service) == "duplicate"
        clock.jump_ms(-50 * HOUR_MS)
        assert await count(service) == "duplicate"
    async with serving(settings, clock) as service:
        assert await count(service) == "duplicate"


@pytest.mark.parametrize("leap_ms", [-HOUR_MS, DAY_MS], ids=["back an hour", "ahead a day"])
async def test_buckets_refill_by_the_monotonic_clock(
    service: Service, clock: ManualClock, leap_ms: int
) -> None:
    """Neither for the length of the leap nor after it does a drained bucket deny too long."""
    account = await register(service, str(uuid.uuid4()))
    token = (await log_in(service, account))["access_token"]

    async def acquire() -> int:
        path = f"{account.path}/limits/acquire"
        return (await service.call("POST", path, ACQUIRE, token=token)).status

    assert await acquire() == 200
    assert await acquire() == 429
    clock.jump_ms(leap_ms)
    assert await acquire() == 429  # the leap itself refills nothing
    clock.advance_ms(60_000)
    assert await acquire() == 200
    assert await acquire() == 429
    clock.jump_ms(-leap_ms)
    assert await acquire() == 429
    clock.advance_ms(60_000)
    assert await acquire() == 200


@pytest.mark.parametrize("leap_ms", [-HOUR_MS, *slow(DAY_MS)])
async def test_logins_are_put_off_while_the_time_is_in_doubt(
    service: Service, clock: ManualClock, leap_ms: int
) -> None:
    """Every way to get a credential says 503 and why; when the clock is back, all of them work."""
    account = await register(service, str(uuid.uuid4()))
    granted = await log_in(service, account)
    refresh = {"grant_type": "refresh_token", "refresh_token": granted["refresh_token"]}
    rotate = f"{account.path}/credentials/rotate"
    rotated = await service.provision("POST", rotate, {"grace_period_hours": 1})
    claim = {"token": rotated.json["secret_retrieval"]["token"]}
    clock.jump_ms(leap_ms)
    org = f"/api/v1/orgs/{uuid.uuid4()}"
    config = {key: value for key, value in ORG.items() if key != "rate_limits"}
    for path, body in (("/auth/token", account.credentials), ("/auth/refresh", refresh)):
        put_off = await service.call("POST", path, body)
        assert (put_off.status, put_off.json["code"]) == (503, "CLOCK_IN_DOUBT")
        assert put_off.json["error"] == "temporarily_unavailable"
        assert int(put_off.headers["retry-after"]) > 0
    for put_off in (
        await service.call("POST", "/api/v1/credentials/claim", claim),
        await service.provision("POST", rotate, {"grace_period_hours": 1}),
        await service.provision("PUT", org, config),
    ):
        assert (put_off.status, put_off.json["code"]) == (503, "CLOCK_IN_DOUBT")
        assert int(put_off.headers["retry-after"]) > 0
    assert (await service.provision("GET", org)).status == 404  # nothing was made
    changed = await service.provision("PUT", account.path, {"app_name": "Renamed"})
    assert changed.status == 200  # settings may be changed: that issues nothing
    clock.jump_ms(-leap_ms)
    assert (await service.call("POST", "/auth/refresh", refresh)).status == 200
    assert (await service.call("POST", "/auth/token", account.credentials)).status == 200
    assert (await service.call("POST", "/api/v1/credentials/claim", claim)).status == 200
    assert (await service.provision("PUT", org, config)).status == 201


async def test_a_leap_is_said_and_heals_by_itself(service: Service, clock: ManualClock) -> None:
    account = await register(service, str(uuid.uuid4()))

    async def said() -> tuple[int, str, float, float]:
        ready = await service.call("GET", "/readyz")
        samples = read_samples(await service.text("/metrics", METRICS_TOKEN))
        return (
            ready.status,
            ready.json["status"],
            samples["pricekeeper_clock_in_doubt"],
            samples["pricekeeper_clock_leap_seconds"],
        )

    assert await said() == (200, "ready", 0, 0)
    clock.jump_ms(-HOUR_MS)
    assert await said() == (200, "clock in doubt", 1, -3_600)
    assert (await service.call("POST", "/auth/token", account.credentials)).status == 503
    clock.advance_ms(STEADY_MS)  # it was set right, or a machine that was paused runs on
    assert await said() == (200, "ready", 0, 0)
    assert (await service.call("POST", "/auth/token", account.credentials)).status == 200


async def test_an_instance_that_the_store_contradicts_is_not_ready(
    dynoxide: str, tmp_path: Path, clock: ManualClock
) -> None:
    """Others have the right time, and can do what it can't; it answers all the same."""
    settings = settings_in(tmp_path, store=dynamodb_url(dynoxide))
    async with serving(settings, TrustedClock(clock)) as service:
        account = await register(service, str(uuid.uuid4()))
        token = (await log_in(service, account))["access_token"]
        assert (await service.call("GET", "/readyz")).status == 200
        clock.jump_ms(DAY_MS)
        ready = await service.call("GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (503, "clock in doubt")
        assert int(ready.headers["retry-after"]) > 0
        assert await limits_of(service, account, token) == 200
        clock.jump_ms(-DAY_MS)
        assert (await service.call("GET", "/readyz")).status == 200


async def test_a_start_behind_the_stores_newest_moment_issues_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A machine that has lost its time, until it has heard it again; tokens still count."""
    settings = settings_in(tmp_path)
    async with serving(settings, clock) as service:
        account = await register(service, str(uuid.uuid4()))
        token = (await log_in(service, account))["access_token"]
        clock.advance_ms(70_000)
        assert isinstance(service.inside.store, SqliteStore)
        await service.inside.store.sweep()  # it notes the time, as the sweeper does
        assert await limits_of(service, account, token) == 200
    clock.jump_ms(-DAY_MS)
    async with serving(settings, clock) as service:
        assert (await service.call("POST", "/auth/token", account.credentials)).status == 503
        assert await limits_of(service, account, token) == 200
        clock.jump_ms(DAY_MS)
        assert (await service.call("POST", "/auth/token", account.credentials)).status == 200
