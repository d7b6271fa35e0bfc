"""Several items at once: all or nothing, and one reason for each."""

import pytest

from contract.conftest import Place
from pricekeeper.errors import InvalidOperationError, ReasonCode, TransactionCancelledError
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Check,
    Delete,
    Key,
    Put,
    Store,
    Update,
    Write,
    attr,
)
from pricekeeper.storage.tables import CONFIG, SESSIONS


def put(key: Key, n: int = 0) -> Put:
    return Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": n})


async def value(store: Store, key: Key) -> object:
    item = await store.get(CONFIG, key)
    return None if item is None else item["n"]


async def test_all_kinds_apply_together(store: Store, at: Place) -> None:
    a, b, c, d = (at.key(name) for name in "abcd")
    for key in (b, c, d):
        await store.put(put(key, 1))
    await store.transact(
        [
            put(a, 5),
            Update(CONFIG, b, (Add("n", 9),), attr("n").eq(1)),
            Delete(CONFIG, c),
            Check(CONFIG, d, ITEM_EXISTS),
            Put(SESSIONS, {"PK": at.pk(), "SK": "s"}, ITEM_ABSENT),
        ]
    )
    assert [await value(store, key) for key in (a, b, c, d)] == [5, 10, None, 1]
    assert await store.get(SESSIONS, at.key("a", "s")) is not None


async def test_one_failed_condition_cancels_everything(store: Store, at: Place) -> None:
    a, b, c = (at.key(name) for name in "abc")
    await store.put(put(b, 1))
    await store.put(put(c, 2))
    with pytest.raises(TransactionCancelledError) as failure:
        await store.transact(
            [
                put(a),
                Update(CONFIG, b, (Add("n", 1),), attr("n").eq(99)),
                Check(CONFIG, c, attr("n").eq(2)),
                Delete(CONFIG, at.key("d"), ITEM_EXISTS),
            ]
        )
    reasons = failure.value.reasons
    assert [reason.code for reason in reasons] == [
        ReasonCode.NONE,
        ReasonCode.CONDITION_FAILED,
        ReasonCode.NONE,
        ReasonCode.CONDITION_FAILED,
    ]
    assert reasons[1].item == {"PK": b.pk, "SK": b.sk, "n": 1}
    assert reasons[3].item is None
    assert [await value(store, key) for key in (a, b, c)] == [None, 1, 2]


async def test_a_type_error_inside_cancels_everything(store: Store, at: Place) -> None:
    a, b = at.key("a"), at.key("b")
    await store.put(Put(CONFIG, {"PK": b.pk, "SK": b.sk, "n": "text"}))
    with pytest.raises(InvalidOperationError):
        await store.transact([put(a), Update(CONFIG, b, (Add("n", 1),))])
    assert await value(store, a) is None


async def test_two_operations_on_one_item_are_refused(store: Store, at: Place) -> None:
    """Even if one of them only checks."""
    key = at.key()
    for second in (put(key), Check(CONFIG, key, ITEM_ABSENT)):
        with pytest.raises(InvalidOperationError):
            await store.transact([put(key), second])
    assert await value(store, key) is None


async def test_the_same_key_in_two_tables_is_two_items(store: Store, at: Place) -> None:
    key = at.key()
    await store.transact([put(key, 1), Put(SESSIONS, {"PK": key.pk, "SK": key.sk, "n": 2})])
    assert await value(store, key) == 1


async def test_a_hundred_operations_fit_and_no_more(store: Store, at: Place) -> None:
    operations: list[Write] = [put(at.key("a", str(n)), n) for n in range(101)]
    with pytest.raises(InvalidOperationError):
        await store.transact(operations)
    with pytest.raises(InvalidOperationError):
        await store.transact([])
    assert await value(store, at.key("a", "0")) is None
    await store.transact(operations[:100])
    assert await value(store, at.key("a", "99")) == 99
