"""Every fault at once, many writers at once: each acknowledged write is there once.

Each operation leaves a mark of its own beside the counter, so that what became of it can be
told exactly: acknowledged means applied once, unavailable means not at all, unknown means at
most once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fault_proxy import Fault, FaultProxy
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.storage import ITEM_ABSENT, Add, Key, Put, Set, Update, attr
from pricekeeper.storage.dynamodb.client import Limits
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG, SESSIONS
from pricekeeper.telemetry import StoreMeter
from storage.dynamodb.conftest import Opener, TestClock
from stores import stored

ODDS_PCT = {
    Fault.STALL_AFTER: 1,
    Fault.CLOSE_AFTER: 5,
    Fault.RESET_MID_BODY: 3,
    Fault.SHORT_BODY: 2,
    Fault.SERVER_ERROR_AFTER: 4,
    Fault.CORRUPT_AFTER: 3,
    Fault.NONSENSE_AFTER: 2,
    Fault.CLOSE_BEFORE: 5,
    Fault.SERVER_ERROR_BEFORE: 5,
    Fault.THROTTLE: 10,
    Fault.CONFLICT: 10,
    Fault.LATE: 1,
}
WORKERS = 16
ROUNDS = 12

ACKNOWLEDGED, UNAVAILABLE, UNKNOWN = "acknowledged", "unavailable", "unknown"
MAY_HAVE_BEEN_APPLIED = {ACKNOWLEDGED: {1}, UNAVAILABLE: {0}, UNKNOWN: {0, 1}}


async def outcome(call: Coroutine[Any, Any, object]) -> str:
    try:
        await call
    except StoreUnavailableError:
        return UNAVAILABLE
    except OutcomeUnknownError:
        return UNKNOWN
    return ACKNOWLEDGED


async def storm(
    proxy: FaultProxy, seed: int, work: Callable[[str], Coroutine[Any, Any, str]]
) -> dict[str, str]:
    """Let many workers work while everything fails, the engine once altogether."""
    proxy.misbehave(seed, ODDS_PCT)
    outcomes: dict[str, str] = {}
    half_way = asyncio.Event()

    async def worker(name: int) -> None:
        for step in range(ROUNDS):
            mark = f"op-{name}-{step}"
            outcomes[mark] = await work(mark)
            if len(outcomes) == WORKERS * ROUNDS // 2:
                half_way.set()

    async def outage() -> None:
        await half_way.wait()
        await proxy.down()
        await proxy.up()

    await asyncio.gather(outage(), *(worker(name) for name in range(WORKERS)))
    proxy.misbehave(seed, {})
    await proxy.release()
    return outcomes


@pytest.fixture
async def stormy(
    opener: Opener, proxy: FaultProxy, clock: TestClock, meter: StoreMeter
) -> DynamoDbStore:
    limits = Limits(connect_timeout_ms=300, total_timeout_ms=400, attempts_max=4)
    return await opener(proxy.endpoint, clock=clock, meter=meter, limits=limits)


@pytest.mark.parametrize("seed", range(4))
async def test_additions(
    stormy: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, seed: int
) -> None:
    """A bare ADD is applied at most once under all faults, and the sum fits."""

    async def work(mark: str) -> str:
        return await outcome(stormy.update(Update(SESSIONS, key, (Add("n", 1), Add(mark, 1)))))

    outcomes = await storm(proxy, seed, work)
    item = await stored(direct, SESSIONS, key)
    for mark, what in outcomes.items():
        assert item.get(mark, 0) in MAY_HAVE_BEEN_APPLIED[what], (mark, what)
    total = Counter(outcomes.values())
    value = item["n"]
    assert isinstance(value, int)
    assert total[ACKNOWLEDGED] <= value <= total[ACKNOWLEDGED] + total[UNKNOWN]
    assert min(total[ACKNOWLEDGED], total[UNKNOWN]) > 10  # the weather was bad enough


@pytest.mark.parametrize("seed", range(4))
async def test_transactions(
    stormy: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, seed: int
) -> None:
    """Both halves or none, once; sending again under the token leaves few unknown."""
    left, right = Key(key.pk, "left"), Key(key.pk, "right")

    async def work(mark: str) -> str:
        operations = [
            Update(SESSIONS, place, (Add("n", 1), Add(mark, 1))) for place in (left, right)
        ]
        return await outcome(stormy.transact(operations))

    outcomes = await storm(proxy, seed, work)
    one, other = await stored(direct, SESSIONS, left), await stored(direct, SESSIONS, right)
    assert {name: one[name] for name in one if name != "SK"} == {
        name: other[name] for name in other if name != "SK"
    }
    for mark, what in outcomes.items():
        assert one.get(mark, 0) in MAY_HAVE_BEEN_APPLIED[what], (mark, what)
    assert one["n"] == sum(mark in one for mark in outcomes)


@pytest.mark.parametrize("seed", range(3))
async def test_compare_and_set(
    stormy: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, seed: int
) -> None:
    """Guarded writes are sent again: each step is taken once, and who took it is known or asked."""
    await direct.put(Put(SESSIONS, {"PK": key.pk, "SK": key.sk, "version": 0}))

    async def work(mark: str) -> str:
        for _ in range(400):
            item = await stored(direct, SESSIONS, key)
            version = item["version"]
            assert isinstance(version, int)
            step = Update(
                SESSIONS,
                key,
                (Set("version", version + 1), Add(mark, 1)),
                attr("version").eq(version),
            )
            try:
                return await outcome(stormy.update(step))
            except ConditionFailedError:
                continue
        raise AssertionError("never won")

    outcomes = await storm(proxy, seed, work)
    item = await stored(direct, SESSIONS, key)
    for mark, what in outcomes.items():
        assert item.get(mark, 0) in MAY_HAVE_BEEN_APPLIED[what], (mark, what)
    assert item["version"] == sum(mark in item for mark in outcomes)


@pytest.mark.parametrize("seed", range(3))
async def test_creation(
    stormy: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, seed: int
) -> None:

    async def work(mark: str) -> str:
        place = Key(key.pk, mark.rpartition("-")[2])
        put = Put(CONFIG, {"PK": place.pk, "SK": place.sk, "by": mark}, ITEM_ABSENT)
        single = mark.startswith(("op-1-", "op-2-", "op-3-"))
        try:
            return await outcome(stormy.put(put) if single else stormy.transact([put]))
        except (ConditionFailedError, TransactionCancelledError):
            return "lost"

    outcomes = await storm(proxy, seed, work)
    for step in range(ROUNDS):
        item = await direct.get(CONFIG, Key(key.pk, str(step)))
        claims = [
            mark
            for mark, what in outcomes.items()
            if what == ACKNOWLEDGED and mark.endswith(f"-{step}")
        ]
        assert len(claims) <= 1
        if claims:
            assert item is not None
            assert item["by"] == claims[0]
        elif item is not None:
            assert outcomes[str(item["by"])] == UNKNOWN
