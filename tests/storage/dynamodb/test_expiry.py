"""Conditions that see an expired item as none, though the engine still has it."""

from random import Random

import pytest

from fault_proxy import Fault, FaultProxy
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.storage import (
    ITEM_EXISTS,
    Add,
    Check,
    Delete,
    Item,
    Key,
    Put,
    Remove,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.dynamodb.conditions import condition_to_send, is_expired
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG, SESSIONS
from pricekeeper.telemetry import StoreMeter
from storage.dynamodb.conditions import random_attributes, random_condition
from storage.dynamodb.conftest import TestClock
from stores import stored

NOW = 1_800_000_000
KEY = Key("p", "1")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_judges_the_expired_as_absent(seed: int) -> None:
    """For any item, living or expired, and any condition; on an update, the expired always fail."""
    random = Random(seed)
    for _ in range(100):
        item: Item = {"PK": "p", "SK": "1", **random_attributes(random)}
        expires = random.choice([None, NOW - 1, NOW, NOW + 1])
        if expires is not None:
            item["expires_at_epoch"] = expires
        condition = random_condition(random)
        expired = expires is not None and expires <= NOW
        means = condition.holds({} if expired else item)
        for operation in (
            Put(SESSIONS, {"PK": "p", "SK": "1"}, condition),
            Delete(SESSIONS, KEY, condition),
            Check(SESSIONS, KEY, condition),
        ):
            sent = condition_to_send(operation, NOW)
            assert sent is not None
            assert sent.holds(item) is means
            assert sent.holds({}) is condition.holds({})
        sent = condition_to_send(Update(SESSIONS, KEY, (Set("a", 1),), condition), NOW)
        assert sent is not None
        assert sent.holds(item) is (means and not expired)
        assert sent.holds({}) is condition.holds({})
        assert is_expired(SESSIONS, item, NOW) is expired
        assert not is_expired(CONFIG, item, NOW)


def test_what_needs_no_condition_gets_none() -> None:
    assert condition_to_send(Put(SESSIONS, {"PK": "p", "SK": "1"}), NOW) is None
    assert condition_to_send(Delete(SESSIONS, KEY), NOW) is None
    assert condition_to_send(Update(CONFIG, KEY, (Set("a", 1),)), NOW) is None


async def leave(store: DynamoDbStore, key: Key, expires: int, n: int = 7) -> None:
    await store.put(
        Put(SESSIONS, {"PK": key.pk, "SK": key.sk, "n": n, "expires_at_epoch": expires})
    )


@pytest.fixture
async def expired(direct: DynamoDbStore, clock: TestClock, key: Key) -> Key:
    """The key of an item that the engine still has. Its clock is real, so it won't sweep."""
    await leave(direct, key, clock.now_epoch() + 60)
    clock.shift_ms += 60_000
    return key


async def test_an_update_of_the_expired_costs_two_writes(
    store: DynamoDbStore, expired: Key, meter: StoreMeter
) -> None:
    """One that is refused and tells the old item, one that replaces it."""
    assert await store.update(Update(SESSIONS, expired, (Add("n", 1),))) == {
        "PK": expired.pk,
        "SK": expired.sk,
        "n": 1,
    }
    assert meter.attempts == {"UpdateItem": 1, "PutItem": 1}


async def test_an_update_of_the_living_costs_one(
    store: DynamoDbStore, clock: TestClock, meter: StoreMeter, direct: DynamoDbStore, key: Key
) -> None:
    await leave(direct, key, clock.now_epoch() + 60)
    assert (await store.update(Update(SESSIONS, key, (Add("n", 1),))))["n"] == 8
    assert meter.attempts == {"UpdateItem": 1}


async def test_an_update_replaces_only_the_item_it_saw(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, expired: Key
) -> None:
    """A writer who comes in between is built upon, not overwritten."""

    async def another() -> None:
        await direct.put(Put(SESSIONS, {"PK": expired.pk, "SK": expired.sk, "n": 40}))

    proxy.next("PutItem", another)
    assert (await store.update(Update(SESSIONS, expired, (Add("n", 1),))))["n"] == 41


async def test_an_update_does_not_chase_the_expired_for_ever(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, clock: TestClock, expired: Key
) -> None:
    rounds, now_epoch = 0, clock.now_epoch()

    async def another() -> None:
        nonlocal rounds
        rounds += 1
        await leave(direct, expired, now_epoch - 10 * rounds)  # another expiry each time

    proxy.next("PutItem", *[another] * 10)
    with pytest.raises(ContendedError):
        await store.update(Update(SESSIONS, expired, (Add("n", 1),)))
    assert rounds == 4
    assert await direct.get(SESSIONS, expired) is None


@pytest.mark.parametrize("fault", [Fault.CLOSE_BEFORE, Fault.SERVER_ERROR_BEFORE])
async def test_replacing_the_expired_is_sent_again(
    store: DynamoDbStore, proxy: FaultProxy, expired: Key, fault: Fault
) -> None:
    proxy.next("PutItem", fault)
    assert (await store.update(Update(SESSIONS, expired, (Add("n", 1),))))["n"] == 1
    assert proxy.applied("PutItem") == 1


async def test_replacing_the_expired_may_stay_unknown(
    store: DynamoDbStore, proxy: FaultProxy, expired: Key
) -> None:
    """Done, but the reply was lost, and the second copy finds the first one's work."""
    proxy.next("PutItem", Fault.CLOSE_AFTER)
    with pytest.raises(OutcomeUnknownError) as failure:
        await store.update(Update(SESSIONS, expired, (Add("n", 1),)))
    assert failure.value.item == {"PK": expired.pk, "SK": expired.sk, "n": 1}


async def test_an_update_that_expires_its_item_at_once(
    store: DynamoDbStore, direct: DynamoDbStore, clock: TestClock, expired: Key
) -> None:
    """A soft delete of nothing: written, returned, and gone."""
    past = clock.now_epoch() - 5
    new = await store.update(Update(SESSIONS, expired, (Set("expires_at_epoch", past),)))
    assert new["expires_at_epoch"] == past
    assert await direct.get(SESSIONS, expired) is None


async def test_a_transaction_clears_the_expired_away(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, clock: TestClock, expired: Key
) -> None:
    other, fresh = Key(expired.pk, "2"), Key(expired.pk, "3")
    await leave(direct, other, clock.now_epoch() - 1)
    await store.transact(
        [
            Update(SESSIONS, expired, (Add("n", 1),)),
            Update(SESSIONS, other, (Add("n", 2),), attr("n").absent()),
            Update(SESSIONS, fresh, (Add("n", 3),)),
        ]
    )
    found = await direct.batch_get([(SESSIONS, key) for key in (expired, other, fresh)])
    assert found == [{"PK": expired.pk, "SK": str(place), "n": place} for place in (1, 2, 3)]
    sent = [seen.body for seen in proxy.seen if seen.action == "TransactWriteItems"]
    assert len(sent) == 2
    assert len(set(sent)) == 1
    assert proxy.applied("DeleteItem") == 2


async def test_a_transaction_clears_away_only_what_it_saw(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, clock: TestClock, expired: Key
) -> None:
    """A writer who comes in between is built upon, though that item will expire as well."""

    async def another() -> None:
        await leave(direct, expired, clock.now_epoch() + 60, n=40)

    proxy.next("DeleteItem", another)
    await store.transact([Update(SESSIONS, expired, (Add("n", 1),))])
    item = await stored(direct, SESSIONS, expired)
    assert item["n"] == 41


async def test_clearing_away_is_harmless_however_often(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, expired: Key
) -> None:
    proxy.next("DeleteItem", Fault.CLOSE_AFTER, Fault.SERVER_ERROR_BEFORE)
    await store.transact([Update(SESSIONS, expired, (Add("n", 1),))])
    item = await stored(direct, SESSIONS, expired)
    assert item["n"] == 1


async def test_a_transaction_does_not_chase_the_expired_for_ever(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, clock: TestClock, expired: Key
) -> None:

    async def another() -> None:
        await leave(direct, expired, clock.now_epoch() - 1)

    proxy.next("TransactWriteItems", *[another] * 10)
    with pytest.raises(ContendedError):
        await store.transact([Update(SESSIONS, expired, (Add("n", 1),))])
    assert proxy.attempts("TransactWriteItems") == 4
    assert await direct.get(SESSIONS, expired) is None


async def test_reasons_are_told_in_the_callers_terms(
    store: DynamoDbStore, expired: Key, clock: TestClock, direct: DynamoDbStore, proxy: FaultProxy
) -> None:
    """An update that would start from nothing did not fail; one that needs the old values did."""
    needing, checked = Key(expired.pk, "2"), Key(expired.pk, "3")
    await leave(direct, needing, clock.now_epoch() - 1)
    await leave(direct, checked, clock.now_epoch() + 60, n=3)
    with pytest.raises(TransactionCancelledError) as failure:
        await store.transact(
            [
                Update(SESSIONS, expired, (Add("n", 1),)),
                Update(SESSIONS, needing, (Add("n", 1),), attr("n").eq(7)),
                Check(SESSIONS, checked, attr("n").eq(4)),
                Delete(SESSIONS, Key(expired.pk, "4"), ITEM_EXISTS),
                Update(SESSIONS, Key(expired.pk, "5"), (Remove("n"),)),
            ]
        )
    assert [
        (reason.code, reason.item and reason.item["n"]) for reason in failure.value.reasons
    ] == [
        (ReasonCode.NONE, None),
        (ReasonCode.CONDITION_FAILED, None),
        (ReasonCode.CONDITION_FAILED, 3),
        (ReasonCode.CONDITION_FAILED, None),
        (ReasonCode.NONE, None),
    ]
    assert proxy.attempts("DeleteItem") == 0


async def test_a_guarded_update_after_a_lost_reply_does_not_replace(
    store: DynamoDbStore, proxy: FaultProxy, clock: TestClock, expired: Key
) -> None:
    """The first copy may have made the expired item that the second one met."""
    proxy.next("UpdateItem", Fault.CLOSE_BEFORE)
    actions = (Set("n", 1), Set("expires_at_epoch", clock.now_epoch() + 60))
    with pytest.raises(OutcomeUnknownError) as failure:
        await store.update(Update(SESSIONS, expired, actions, attr("n").absent()))
    assert failure.value.item is None


async def test_conditions_of_deletes_and_puts(store: DynamoDbStore, expired: Key) -> None:
    with pytest.raises(ConditionFailedError) as failure:
        await store.delete(Delete(SESSIONS, expired, attr("n").eq(7)))
    assert failure.value.item is None
    assert await store.delete(Delete(SESSIONS, expired, attr("n").ne(7))) is None
