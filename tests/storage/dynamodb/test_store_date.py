"""What time it is at DynamoDB: each reply has a date, which our clock is compared with."""

import uuid
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from attribution import BY
from fault_proxy import Canned, FaultProxy
from http_fixtures import ORG
from pricekeeper.bootstrap import open_services
from pricekeeper.clock import STEADY_MS, Doubt, ManualClock, SystemClock, TrustedClock, doubt_of
from pricekeeper.errors import ClockInDoubtError, StoreMisconfiguredError
from pricekeeper.settings import DynamoDbLocation, Settings
from pricekeeper.storage import Key
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client
from pricekeeper.values import parse_org_id

DAY_MS = 24 * 3_600_000
KEY = Key("absent", "absent")


def http_date(epoch_ms: int) -> str:
    return format_datetime(datetime.fromtimestamp(epoch_ms // 1000, UTC), usegmt=True)


async def opened(
    endpoint: str, prefix: str, clock: TrustedClock, meter: StoreMeter | None = None
) -> DynamoDbStore:
    location = DynamoDbLocation("us-east-1", prefix, endpoint)
    return await DynamoDbStore.open(location, clock=clock, meter=meter or StoreMeter())


@pytest.mark.parametrize("engine", ["dynamodb_local", "dynoxide"])
@pytest.mark.parametrize("wrong_by_ms", [-DAY_MS, 0, DAY_MS])
async def test_a_clock_is_compared_with_the_engines(
    engine: str, wrong_by_ms: int, request: pytest.FixtureRequest
) -> None:
    """By its very first reply, even a refusal. A clock that is wrong goes by the engine's time."""
    right_ms = SystemClock().now_ms()
    clock = TrustedClock(ManualClock(right_ms + wrong_by_ms))
    store = await opened(request.getfixturevalue(engine), f"no-{uuid.uuid4().hex}-", clock)
    with pytest.raises(StoreMisconfiguredError):  # there are no tables
        await store.get(CONFIG, KEY)
    assert doubt_of(clock) is (Doubt.CONTRADICTED if wrong_by_ms else None)
    assert abs(clock.now_ms() - right_ms) < 60_000
    await store.close()


async def test_a_correction_is_believed_when_the_store_agrees(
    proxy: FaultProxy, prefix: str
) -> None:
    machine = ManualClock(SystemClock().now_ms())
    start_ms, clock = machine.now_ms(), TrustedClock(machine)
    store = await opened(proxy.endpoint, prefix, clock)
    await store.get(CONFIG, KEY)
    assert doubt_of(clock) is None
    machine.jump_ms(DAY_MS)
    for _ in range(3):
        proxy.date = http_date(start_ms + machine.monotonic_ms())
        await store.get(CONFIG, KEY)
        assert doubt_of(clock) is Doubt.CONTRADICTED
        assert abs(clock.now_ms() - start_ms - machine.monotonic_ms()) < 1_000
        machine.advance_ms(STEADY_MS)
    proxy.date = http_date(machine.now_ms())
    await store.get(CONFIG, KEY)
    assert doubt_of(clock) is None
    assert clock.now_ms() == machine.now_ms()
    await store.close()


async def test_dates_that_are_none_change_nothing(proxy: FaultProxy, prefix: str) -> None:
    """A proxy in between may say anything."""
    clock = TrustedClock(ManualClock(SystemClock().now_ms()))
    store = await opened(proxy.endpoint, prefix, clock)
    for date in ("yesterday", "-1", "Mon, 99 Foo 2026 25:00:00 GMT"):
        proxy.date = date
        await store.get(CONFIG, KEY)
        assert doubt_of(clock) is None
    await store.close()


@pytest.mark.parametrize("name", ["InvalidSignatureException", "RequestTimeTooSkewed"])
async def test_a_signature_of_a_wrong_time_is_made_anew(
    proxy: FaultProxy, prefix: str, name: str
) -> None:
    """AWS refuses requests that were signed more than five minutes off, and states its time."""
    right_ms, meter = SystemClock().now_ms(), StoreMeter()
    clock = TrustedClock(ManualClock(right_ms - DAY_MS))
    store = await opened(proxy.endpoint, prefix, clock, meter)
    refusal = Canned({"__type": f"x#{name}"}, 400, {"Date": http_date(right_ms)})
    proxy.next("GetItem", refusal)
    assert await store.get(CONFIG, KEY) is None
    assert meter.attempts == {"GetItem": 2}
    proxy.next("GetItem", refusal)
    with pytest.raises(StoreMisconfiguredError):  # the time is known by now: it is another reason
        await store.get(CONFIG, KEY)
    assert meter.attempts == {"GetItem": 3}
    await store.close()


async def test_a_service_with_a_wrong_clock_issues_nothing(
    dynamodb_local: str, tmp_path: Path
) -> None:
    """From its start until its clock is right, and what it reads meanwhile is read rightly."""
    machine = ManualClock(SystemClock().now_ms() + DAY_MS)
    prefix = f"date-{uuid.uuid4().hex[:8]}-"
    location = DynamoDbLocation("us-east-1", prefix, dynamodb_local)
    settings = Settings(location, data_dir=tmp_path)
    org_id = parse_org_id(str(uuid.uuid4()))
    async with open_services(settings, clock=TrustedClock(machine)) as services:
        assert doubt_of(services.clock) is Doubt.CONTRADICTED
        with pytest.raises(ClockInDoubtError):
            await services.credentials.provision(Client(org_id), ORG, BY)
        machine.jump_ms(-DAY_MS)
        made = await services.credentials.provision(Client(org_id), ORG, BY)
        assert made.retrieval is not None
        await services.credentials.claim(made.retrieval.token.reveal(), BY)
