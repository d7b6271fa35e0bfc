"""A caller's token: the same operations once, from any process, at any second."""

import asyncio
import uuid

import pytest

from fault_proxy import Canned, Fault, FaultProxy
from pricekeeper.errors import (
    InvalidOperationError,
    OutcomeUnknownError,
    ReasonCode,
    TokenReusedError,
    TransactionCancelledError,
)
from pricekeeper.storage import ITEM_ABSENT, Add, Check, Key, Put, Set, Update, Write, attr
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG, REQUEST_DEDUP, SESSIONS
from pricekeeper.telemetry import StoreMeter
from storage.dynamodb.conftest import Opener, TestClock

CANCELLED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"


@pytest.fixture
def token() -> str:
    return str(uuid.uuid4())


@pytest.fixture
async def elsewhere(opener: Opener, dynamodb_local: str, clock: TestClock) -> DynamoDbStore:
    """The same tables from another process: it shares nothing with the store but the clock."""
    return await opener(dynamodb_local, clock=clock)


def add(key: Key, n: int = 1) -> Update:
    return Update(SESSIONS, key, (Add("n", n),))


async def count(store: DynamoDbStore, key: Key) -> object:
    item = await store.get(SESSIONS, key)
    return None if item is None else item["n"]


@pytest.mark.parametrize("seconds", [0, 1, 299, 599])
async def test_the_same_operations_elsewhere_and_later(
    store: DynamoDbStore, elsewhere: DynamoDbStore, clock: TestClock, key: Key, seconds: int
) -> None:
    """They succeed and change nothing, though the expiry of items is judged at another second."""
    operations: list[Write] = [
        add(key),
        Put(SESSIONS, {"PK": key.pk, "SK": "2"}, ITEM_ABSENT),
        Check(SESSIONS, Key(key.pk, "3"), ITEM_ABSENT),
    ]
    await store.transact(operations, token=key.pk)
    clock.shift_ms += seconds * 1000
    await elsewhere.transact(operations, token=key.pk)
    await store.transact(operations, token=key.pk)
    assert await count(store, key) == 1


async def test_other_operations_elsewhere(
    store: DynamoDbStore, elsewhere: DynamoDbStore, clock: TestClock, key: Key, token: str
) -> None:
    """The token is taken, wherever and whatever kind of operations come with it."""
    await store.transact([add(key)], token=token)
    clock.shift_ms += 3000
    for operations in (
        [add(key, 2)],
        [add(Key(key.pk, "2"))],
        [add(key), add(Key(key.pk, "2"))],
        [Put(CONFIG, {"PK": key.pk, "SK": "1"})],
    ):
        with pytest.raises(TokenReusedError):
            await elsewhere.transact(operations, token=token)
    assert await count(store, key) == 1
    assert await store.get(CONFIG, key) is None


async def test_a_token_is_free_after_ten_minutes(
    store: DynamoDbStore, clock: TestClock, key: Key, token: str
) -> None:
    """As on every store: then it means a new transaction."""
    await store.transact([add(key)], token=token)
    clock.shift_ms += 600_000
    await store.transact([add(key, 5)], token=token)
    assert await count(store, key) == 6


async def test_a_cancelled_transaction_leaves_its_token_free(
    store: DynamoDbStore, elsewhere: DynamoDbStore, clock: TestClock, key: Key, token: str
) -> None:
    """For the same operations once their condition holds, or for others."""
    operations = [Update(SESSIONS, key, (Add("n", 1),), attr("n").ge(1))]
    with pytest.raises(TransactionCancelledError):
        await store.transact(operations, token=token)
    await store.update(add(key))
    clock.shift_ms += 2000
    await elsewhere.transact(operations, token=token)
    assert await count(store, key) == 2
    await store.transact(operations, token=token)
    assert await count(store, key) == 2


async def test_reasons_do_not_mention_the_receipt(
    store: DynamoDbStore, key: Key, token: str
) -> None:
    """One reason for each operation of the caller."""
    with pytest.raises(TransactionCancelledError) as failure:
        await store.transact(
            [add(key), Check(SESSIONS, Key("x", "y"), attr("n").eq(1))], token=token
        )
    codes = [reason.code for reason in failure.value.reasons]
    assert codes == [ReasonCode.NONE, ReasonCode.CONDITION_FAILED]


async def test_the_first_copy_is_recognised_even_if_its_receipt_is_not_told(
    store: DynamoDbStore, proxy: FaultProxy, key: Key, token: str
) -> None:
    """DynamoDB does not promise to name every failed condition: so the receipt is looked up."""
    operations = [Put(SESSIONS, {"PK": key.pk, "SK": key.sk}, ITEM_ABSENT)]
    await store.transact(operations, token=token)
    told = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    proxy.next("TransactWriteItems", Canned({"__type": CANCELLED, "CancellationReasons": told}))
    await store.transact(operations, token=token)
    proxy.next("TransactWriteItems", Canned({"__type": CANCELLED, "CancellationReasons": told}))
    with pytest.raises(TransactionCancelledError):
        await store.transact(operations, token=str(uuid.uuid4()))
    assert proxy.attempts("GetItem") == 2


async def test_the_repetition_of_what_has_become_impossible(
    store: DynamoDbStore, key: Key, token: str
) -> None:
    """It was applied when it was possible, and that is the answer."""
    await store.transact([add(key)], token=token)
    await store.put(Put(SESSIONS, {"PK": key.pk, "SK": key.sk, "n": "text"}))
    await store.transact([add(key)], token=token)
    with pytest.raises(InvalidOperationError):
        await store.transact([add(key)], token=str(uuid.uuid4()))


async def test_a_receipt_that_cannot_be_looked_up(
    store: DynamoDbStore, proxy: FaultProxy, key: Key, token: str
) -> None:
    """The transaction may have been applied by an earlier call, so its fate is unknown."""
    told = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    proxy.next("TransactWriteItems", Canned({"__type": CANCELLED, "CancellationReasons": told}))
    proxy.next("GetItem", *[Fault.THROTTLE] * 8)
    with pytest.raises(OutcomeUnknownError):
        await store.transact([add(key)], token=token)


async def test_repeating_an_unknown_outcome_settles_it(
    store: DynamoDbStore, elsewhere: DynamoDbStore, proxy: FaultProxy, key: Key, token: str
) -> None:
    """What a token is for: the caller repeats the call, here or elsewhere, until it knows."""
    for fault in (Fault.CLOSE_AFTER, Fault.CLOSE_BEFORE):
        place, its_token = Key(key.pk, fault.name), f"{token[:30]}{fault.name[-5:]}"
        proxy.next("TransactWriteItems", *[fault] * 3)
        with pytest.raises(OutcomeUnknownError):
            await store.transact([add(place)], token=its_token)
        await elsewhere.transact([add(place)], token=its_token)
        assert await count(store, place) == 1


async def test_a_late_copy_after_the_call_was_repeated(
    impatient: DynamoDbStore, elsewhere: DynamoDbStore, proxy: FaultProxy, key: Key, token: str
) -> None:
    """The first call was given up as unknown but its copies arrive after all: applied once."""
    proxy.next("TransactWriteItems", *[Fault.LATE] * 3)
    with pytest.raises(OutcomeUnknownError):
        await impatient.transact([add(key)], token=token)
    await elsewhere.transact([add(key)], token=token)
    await proxy.release()
    assert await count(elsewhere, key) == 1


async def test_an_expired_item_under_a_token(
    store: DynamoDbStore, elsewhere: DynamoDbStore, clock: TestClock, key: Key, token: str
) -> None:
    """Starting from nothing happens once as well, though it takes more than one request."""
    expires = clock.now_epoch() + 60
    await store.put(
        Put(SESSIONS, {"PK": key.pk, "SK": key.sk, "n": 7, "expires_at_epoch": expires})
    )
    clock.shift_ms += 60_000
    operations = [add(key)]
    await store.transact(operations, token=token)
    clock.shift_ms += 5_000
    await elsewhere.transact(operations, token=token)
    assert await count(store, key) == 1


async def test_many_at_once(
    store: DynamoDbStore, elsewhere: DynamoDbStore, proxy: FaultProxy, key: Key, token: str
) -> None:
    """Both processes, faults on the way: one is applied and all are told that it was."""
    proxy.misbehave(3, {Fault.CONFLICT: 20, Fault.CLOSE_AFTER: 10, Fault.THROTTLE: 10})
    operations = [add(key), Update(SESSIONS, Key(key.pk, "2"), (Set("by", token),))]
    outcomes = await asyncio.gather(
        *(s.transact(operations, token=token) for s in (store, elsewhere) for _ in range(10)),
        return_exceptions=True,
    )
    assert all(o is None or isinstance(o, OutcomeUnknownError) for o in outcomes)
    assert await count(elsewhere, key) == 1


async def test_a_token_takes_the_place_of_one_operation(
    store: DynamoDbStore, meter: StoreMeter, key: Key, token: str
) -> None:
    """99 operations and a token fill a transaction."""
    operations: list[Write] = [Put(CONFIG, {"PK": key.pk, "SK": str(n)}) for n in range(100)]
    with pytest.raises(InvalidOperationError):
        await store.transact(operations, token=token)
    await store.transact(operations[:99], token=token)
    await store.transact(operations)
    assert meter.attempts["TransactWriteItems"] == 2


async def test_the_receipt_goes_away_by_itself(
    store: DynamoDbStore, clock: TestClock, key: Key, token: str
) -> None:
    """It is an item like any other, and expires."""
    before = clock.now_epoch()
    await store.transact([add(key)], token=token)
    receipt = await store.get(REQUEST_DEDUP, Key(f"TRANSACTION#{token}"))
    assert receipt is not None
    expires = receipt["expires_at_epoch"]
    assert isinstance(expires, int)
    assert before + 600 <= expires <= clock.now_epoch() + 600
