"""Which requests are retried, how often, and the final error of the caller."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from fault_proxy import Canned, Fault, FaultProxy
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ThrottledError,
    TransactionCancelledError,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Delete,
    Key,
    Put,
    Query,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.dynamodb.client import Limits
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG, SESSIONS
from pricekeeper.telemetry import StoreMeter
from storage.dynamodb.conftest import Opener, TestClock
from stores import stored

LOST_AFTER = [
    Fault.STALL_AFTER,
    Fault.CLOSE_AFTER,
    Fault.RESET_MID_BODY,
    Fault.SHORT_BODY,
    Fault.SERVER_ERROR_AFTER,
    Fault.CORRUPT_AFTER,
    Fault.NONSENSE_AFTER,
]
LOST_BEFORE = [Fault.CLOSE_BEFORE, Fault.SERVER_ERROR_BEFORE]
NOT_APPLIED = [Fault.THROTTLE, Fault.CONFLICT]


def add(key: Key, n: int = 1) -> Update:
    return Update(CONFIG, key, (Add("n", n),))


async def value(store: DynamoDbStore, key: Key) -> Any:
    item = await store.get(CONFIG, key)
    return 0 if item is None else item["n"]


@pytest.mark.parametrize("fault", LOST_AFTER + LOST_BEFORE)
async def test_a_bare_add_is_never_sent_again(
    impatient: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault
) -> None:
    """However the reply is lost: it may have been applied, so the caller must know."""
    proxy.next("UpdateItem", fault)
    with pytest.raises(OutcomeUnknownError) as failure:
        await impatient.update(add(key))
    assert failure.value.item is None
    assert await value(direct, key) == (fault in LOST_AFTER)
    assert proxy.attempts("UpdateItem") == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda store, key: store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk})),
        lambda store, key: store.delete(Delete(CONFIG, key)),
        lambda store, key: store.update(Update(CONFIG, key, (Add("n", 1),), attr("n").ge(0))),
        lambda store, key: store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk}, ITEM_EXISTS)),
    ],
    ids=["put", "delete", "conditional-add", "overwrite"],
)
async def test_no_write_that_could_apply_twice_is_sent_again(
    store: DynamoDbStore,
    direct: DynamoDbStore,
    proxy: FaultProxy,
    key: Key,
    write: Callable[[DynamoDbStore, Key], Awaitable[object]],
) -> None:
    """A condition that still holds afterwards is no guard."""
    await direct.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}))
    for action in ("PutItem", "UpdateItem", "DeleteItem"):
        proxy.next(action, Fault.CLOSE_AFTER)
    with pytest.raises(OutcomeUnknownError):
        await write(store, key)
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("fault", NOT_APPLIED)
async def test_what_was_surely_not_applied_is_sent_again(
    store: DynamoDbStore, proxy: FaultProxy, meter: StoreMeter, key: Key, fault: Fault
) -> None:
    proxy.next("UpdateItem", fault, fault, fault)
    assert (await store.update(add(key)))["n"] == 1
    assert meter.attempts == {"UpdateItem": 4}
    assert meter.faults == {"throttled" if fault is Fault.THROTTLE else "conflict": 3}


@pytest.mark.parametrize("fault", NOT_APPLIED)
async def test_patience_has_an_end(
    store: DynamoDbStore, proxy: FaultProxy, clock: TestClock, key: Key, fault: Fault
) -> None:
    """Eight attempts with seven pauses, each drawn from a range that doubles."""
    proxy.next("UpdateItem", *[fault] * 20)
    with pytest.raises(ThrottledError if fault is Fault.THROTTLE else ContendedError):
        await store.update(add(key))
    assert proxy.attempts("UpdateItem") == 8
    random = Random(7)
    longest = [25, 50, 100, 200, 400, 800, 1600]
    assert clock.pauses_ms == [random.randint(0, most) for most in longest]


async def test_patience_ends_by_time_as_well(
    opener: Opener, proxy: FaultProxy, clock: TestClock, key: Key
) -> None:
    limits = Limits(patience_ms=60, pause_first_ms=50)
    store = await opener(proxy.endpoint, clock=clock, limits=limits)
    proxy.next("UpdateItem", *[Fault.THROTTLE] * 20)
    with pytest.raises(ThrottledError):
        await store.update(add(key))
    assert sum(clock.pauses_ms) <= 60
    assert 1 <= proxy.attempts("UpdateItem") < 8


async def test_nobody_there(
    store: DynamoDbStore, proxy: FaultProxy, meter: StoreMeter, key: Key
) -> None:
    """No connection, nothing sent: any write is tried again, and surely not applied."""
    await proxy.down()
    with pytest.raises(StoreUnavailableError):
        await store.update(add(key))
    assert meter.faults == {"unreachable": 8}


async def test_somebody_comes_back(
    store: DynamoDbStore, proxy: FaultProxy, clock: TestClock, meter: StoreMeter, key: Key
) -> None:
    await proxy.down()

    async def back() -> None:
        if len(clock.pauses_ms) == 3:
            await proxy.up()

    clock.before_waking = back
    assert (await store.update(add(key)))["n"] == 1
    assert meter.faults == {"unreachable": 3}


@pytest.mark.parametrize("fault", LOST_AFTER + LOST_BEFORE)
async def test_reads_are_sent_again(
    impatient: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault
) -> None:
    await direct.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 4}))
    for action in ("GetItem", "BatchGetItem", "Query"):
        proxy.next(action, fault)
    assert await value(impatient, key) == 4
    assert (await impatient.batch_get([(CONFIG, key)]))[0] is not None
    assert len((await impatient.query(Query(CONFIG, key.pk))).items) == 1
    assert len(proxy.seen) == 6


async def test_a_read_that_never_comes_back_is_unavailable(
    store: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    """It is not unknown: there was nothing to apply."""
    proxy.next("GetItem", *[Fault.CLOSE_AFTER] * 10)
    with pytest.raises(StoreUnavailableError):
        await store.get(CONFIG, key)
    assert proxy.attempts("GetItem") == 3


@pytest.mark.parametrize("fault", LOST_BEFORE)
async def test_a_guarded_write_is_sent_again(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault
) -> None:
    proxy.next("PutItem", fault)
    await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}, ITEM_ABSENT))
    proxy.next("UpdateItem", fault, fault)
    await store.update(Update(CONFIG, key, (Set("n", 2), Add("m", 1)), attr("n").eq(1)))
    proxy.next("DeleteItem", fault)
    assert await store.delete(Delete(CONFIG, key, ITEM_EXISTS)) == {
        "PK": key.pk,
        "SK": key.sk,
        "n": 2,
        "m": 1,
    }
    assert await direct.get(CONFIG, key) is None


@pytest.mark.parametrize("fault", LOST_AFTER)
async def test_a_guarded_write_may_meet_its_own_work(
    impatient: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault
) -> None:
    """The owner is unknown then, but the caller sees the item and may recognise it."""
    await direct.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}))
    proxy.next("UpdateItem", fault)
    actions = (Set("n", 2), Set("by", "me"))
    with pytest.raises(OutcomeUnknownError) as failure:
        await impatient.update(Update(CONFIG, key, actions, attr("n").eq(1)))
    assert failure.value.item == {"PK": key.pk, "SK": key.sk, "n": 2, "by": "me"}
    assert proxy.applied("UpdateItem") == 2


async def test_a_condition_that_fails_at_once_is_certain(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    """Throttles before it change nothing about that."""
    await direct.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}))
    proxy.next("UpdateItem", Fault.THROTTLE, Fault.CONFLICT)
    with pytest.raises(ConditionFailedError):
        await store.update(Update(CONFIG, key, (Set("n", 3),), attr("n").eq(2)))


@pytest.mark.parametrize(
    "then",
    [
        [Fault.THROTTLE] * 10,
        [Fault.CONFLICT] * 10,
        [Fault.CLOSE_BEFORE] * 10,
        [Canned({"__type": "#AccessDeniedException"})],
        [Canned({"__type": "#ValidationException"})],
        [Canned({"__type": "#SomethingNewException"})],
    ],
    ids=["throttled", "conflict", "lost-again", "denied", "invalid", "new"],
)
async def test_a_lost_reply_stays_lost(
    store: DynamoDbStore, proxy: FaultProxy, key: Key, then: list[Fault | Canned]
) -> None:
    """Later attempts prove nothing: the first may have been applied."""
    operation = Put(CONFIG, {"PK": key.pk, "SK": key.sk}, ITEM_ABSENT)
    proxy.next("PutItem", Fault.CLOSE_AFTER, *then)
    with pytest.raises(OutcomeUnknownError):
        await store.put(operation)
    proxy.next("TransactWriteItems", Fault.CLOSE_AFTER, *then)
    with pytest.raises(OutcomeUnknownError):
        await store.transact([Put(CONFIG, {"PK": key.pk, "SK": "2"}, ITEM_ABSENT)])


@pytest.mark.parametrize("fault", LOST_AFTER + LOST_BEFORE + NOT_APPLIED)
async def test_a_transaction_is_applied_once(
    impatient: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault
) -> None:
    """Re-sent under one token, byte for byte, it is exact under every fault."""
    proxy.next("TransactWriteItems", fault, fault)
    await impatient.transact([add(key), add(Key(key.pk, "2"))])
    assert [await value(direct, Key(key.pk, sk)) for sk in "12"] == [1, 1]
    assert len({seen.body for seen in proxy.seen}) == 1
    assert len(proxy.seen) == 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.CONFLICT, ContendedError),
        (Fault.THROTTLE, ThrottledError),
        (Fault.CLOSE_AFTER, OutcomeUnknownError),
        (Fault.CLOSE_BEFORE, OutcomeUnknownError),
    ],
)
async def test_a_transaction_gives_up(
    store: DynamoDbStore, proxy: FaultProxy, key: Key, fault: Fault, error: type[StoreError]
) -> None:
    proxy.next("TransactWriteItems", *[fault] * 20)
    with pytest.raises(error):
        await store.transact([add(key)])
    assert proxy.attempts("TransactWriteItems") == (3 if error is OutcomeUnknownError else 8)


async def test_a_transaction_cancelled_after_a_lost_reply_is_certain(
    store: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    proxy.next("TransactWriteItems", Fault.CLOSE_BEFORE)
    with pytest.raises(TransactionCancelledError):
        await store.transact([Update(CONFIG, key, (Add("n", 1),), ITEM_EXISTS)])


async def test_two_transactions_are_two(
    store: DynamoDbStore, direct: DynamoDbStore, key: Key
) -> None:
    """Without a token from the caller, equal operations are not the same transaction."""
    for _ in range(2):
        await store.transact([add(key)])
    assert await value(direct, key) == 2


async def test_a_bug_in_the_request_is_not_repeated(
    store: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    proxy.next("UpdateItem", Canned({"__type": "x#ValidationException", "message": "no"}))
    with pytest.raises(InvalidOperationError, match="no"):
        await store.update(add(key))
    proxy.next("UpdateItem", Canned({"__type": "x#AccessDeniedException"}))
    with pytest.raises(StoreMisconfiguredError):
        await store.update(add(key))
    assert len(proxy.seen) == 2


@pytest.mark.parametrize("status", [301, 403, 413])
async def test_an_answer_from_something_else_is_ambiguous(
    store: DynamoDbStore, proxy: FaultProxy, key: Key, status: int
) -> None:
    """A gateway in between: who knows what it did with the request."""
    proxy.next("UpdateItem", Canned({"message": "go away"}, status))
    with pytest.raises(OutcomeUnknownError):
        await store.update(add(key))


async def test_a_stale_connection_is_not_used_twice(
    store: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    """Aiohttp itself must never send a POST again: one attempt of ours is one request."""
    await store.update(add(key))
    proxy.next("UpdateItem", Fault.CLOSE_AFTER)
    with pytest.raises(OutcomeUnknownError):
        await store.update(add(key))
    assert proxy.attempts("UpdateItem") == 2


async def test_a_late_copy_of_a_guarded_write_is_refused(
    impatient: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    """The first copy was only slow: when it arrives, the second has made it void."""
    await direct.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}))
    proxy.next("UpdateItem", Fault.LATE)
    await impatient.update(Update(CONFIG, key, (Set("n", 2), Add("m", 1)), attr("n").eq(1)))
    proxy.next("TransactWriteItems", Fault.LATE)
    await impatient.transact([Update(CONFIG, key, (Add("m", 10),))])
    await proxy.release()
    item = await stored(direct, CONFIG, key)
    assert (item["n"], item["m"]) == (2, 11)


async def test_cancelling_a_caller_in_flight(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    proxy.next("UpdateItem", Fault.STALL_AFTER)
    task = asyncio.create_task(store.update(add(key)))
    await proxy.came_by("UpdateItem", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await store.update(add(key)))["n"] == 2
    assert await value(direct, key) == 2


async def test_cancelling_a_caller_between_attempts(
    store: DynamoDbStore, proxy: FaultProxy, clock: TestClock, key: Key
) -> None:
    asleep, forever = asyncio.Event(), asyncio.Event()

    async def sleep() -> None:
        asleep.set()
        await forever.wait()

    clock.before_waking = sleep
    proxy.next("UpdateItem", Fault.THROTTLE)
    task = asyncio.create_task(store.update(add(key)))
    await asleep.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert proxy.attempts("UpdateItem") == 1


async def test_closing_waits_for_what_was_accepted(
    store: DynamoDbStore, proxy: FaultProxy, key: Key
) -> None:
    proxy.next("UpdateItem", Fault.THROTTLE, Fault.THROTTLE)
    task = asyncio.create_task(store.update(add(key)))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert task.done()
    assert (await task)["n"] == 1
    for call in (
        store.update(add(key)),
        store.delete(Delete(CONFIG, key)),
        store.transact([add(key)]),
        store.create_tables(),
    ):
        with pytest.raises(StoreClosedError):
            await call
    await store.close()


async def test_capacity_is_counted_by_table(
    store: DynamoDbStore, meter: StoreMeter, key: Key
) -> None:
    """In half units, under the tables' plain names; a stale read costs half."""
    await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "v": "x" * 2000}))
    await store.put(Put(SESSIONS, {"PK": key.pk, "SK": key.sk}))
    await store.get(CONFIG, key)
    await store.get(CONFIG, key, consistent=False)
    await store.batch_get([(CONFIG, key), (SESSIONS, key)])
    await store.query(Query(SESSIONS, key.pk), consistent=False)
    assert meter.write_half_units == {"Config": 4, "Sessions": 2}
    assert meter.read_half_units == {"Config": 2 + 1 + 2, "Sessions": 2 + 1}
    assert meter.calls == {"put": 2, "get": 2, "batch_get": 1, "query": 1}


async def test_transactions_cost_double(
    opener: Opener, dynoxide: str, meter: StoreMeter, key: Key
) -> None:
    """Two units an operation. dynoxide adds them up rightly."""
    store = await opener(dynoxide, meter=meter)
    await store.create_tables()
    await store.transact([add(key), add(Key(key.pk, "2"))])
    assert meter.write_half_units == {"Config": 8}
    assert meter.attempts["TransactWriteItems"] == 1


async def test_connections_are_bounded(
    opener: Opener, proxy: FaultProxy, meter: StoreMeter, key: Key
) -> None:
    store = await opener(proxy.endpoint, meter=meter, limits=Limits(connections_max=2))
    most = 0

    async def look() -> None:
        nonlocal most
        most = max(most, proxy.connections)

    proxy.next("UpdateItem", *[look] * 40)
    await asyncio.gather(*(store.update(add(key)) for _ in range(40)))
    assert most == 2
    assert not meter.faults


async def test_waiting_for_a_connection_is_not_having_sent(
    opener: Opener, proxy: FaultProxy, meter: StoreMeter, key: Key
) -> None:
    """Who did not get one in time knows that nothing was applied."""
    limits = Limits(
        connections_max=1, connect_timeout_ms=400, total_timeout_ms=1500, attempts_max=1
    )
    store = await opener(proxy.endpoint, meter=meter, limits=limits)
    proxy.next("UpdateItem", Fault.STALL_AFTER)
    outcomes = await asyncio.gather(
        store.update(add(key)), store.update(add(key)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError, StoreUnavailableError]
    assert meter.faults == {"ambiguous": 1, "unreachable": 1}
