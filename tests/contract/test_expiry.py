"""An item whose time has come is absent, long before the store removes it."""

import pytest

from contract.conftest import Place
from pricekeeper.errors import ConditionFailedError, TransactionCancelledError
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Check,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Set,
    Store,
    Update,
    attr,
)
from pricekeeper.storage.tables import CONFIG, SESSIONS
from stores import ShiftedClock, stored

HOUR_MS = 3_600_000


@pytest.fixture
async def expired(store: Store, clock: ShiftedClock, at: Place) -> Key:
    """The key of an item that is still in the table, but whose hour has passed."""
    key = at.key()
    await store.put(Put(SESSIONS, lasting(key, clock, n=7)))
    clock.shift_ms += HOUR_MS
    return key


def lasting(key: Key, clock: ShiftedClock, seconds: int = 3600, **attributes: int) -> Item:
    return {
        "PK": key.pk,
        "SK": key.sk,
        "expires_at_epoch": clock.now_epoch() + seconds,
        **attributes,
    }


async def test_it_is_there_until_its_second_comes(
    store: Store, clock: ShiftedClock, at: Place
) -> None:
    """Alive before, gone at the very second."""
    key = at.key()
    await store.put(Put(SESSIONS, lasting(key, clock)))
    clock.shift_ms += HOUR_MS - 10_000
    assert await store.get(SESSIONS, key) is not None
    clock.shift_ms += 10_000
    assert await store.get(SESSIONS, key) is None


async def test_reads_do_not_see_it(store: Store, expired: Key) -> None:
    assert await store.get(SESSIONS, expired) is None
    assert await store.batch_get([(SESSIONS, expired)]) == [None]
    assert (await store.query(Query(SESSIONS, expired.pk))).items == ()


async def test_a_query_fills_its_limit_with_the_living(
    store: Store, clock: ShiftedClock, at: Place
) -> None:
    """Expired items in between neither count nor cut the page short."""
    for n in range(12):
        seconds = 7200 if n % 4 == 3 else 3600
        await store.put(Put(SESSIONS, lasting(at.key("a", f"{n:02}"), clock, seconds, n=n)))
    clock.shift_ms += HOUR_MS
    page = await store.query(Query(SESSIONS, at.pk("a"), limit=2))
    assert [item["n"] for item in page.items] == [3, 7]
    page = await store.query(Query(SESSIONS, at.pk("a"), limit=2, after=page.after))
    assert [item["n"] for item in page.items] == [11]
    assert page.after == ""


async def test_put_if_absent_succeeds(store: Store, clock: ShiftedClock, expired: Key) -> None:
    await store.put(Put(SESSIONS, lasting(expired, clock, n=1), ITEM_ABSENT))
    read = await stored(store, SESSIONS, expired)
    assert read["n"] == 1


async def test_conditions_see_no_item(store: Store, clock: ShiftedClock, expired: Key) -> None:
    """What holds only of the old values fails, and no old item is carried back."""
    for failing in (
        store.put(Put(SESSIONS, lasting(expired, clock), attr("n").eq(7))),
        store.put(Put(SESSIONS, lasting(expired, clock), ITEM_EXISTS)),
        store.update(Update(SESSIONS, expired, (Set("n", 1),), attr("n").eq(7))),
        store.delete(Delete(SESSIONS, expired, ITEM_EXISTS)),
    ):
        with pytest.raises(ConditionFailedError) as failure:
            await failing
        assert failure.value.item is None


async def test_a_condition_that_absence_satisfies_holds(
    store: Store, clock: ShiftedClock, expired: Key
) -> None:
    """Even if the old values would have failed it."""
    await store.put(Put(SESSIONS, lasting(expired, clock, n=2), attr("n").ne(7)))
    read = await stored(store, SESSIONS, expired)
    assert read["n"] == 2


async def test_an_update_starts_from_nothing(
    store: Store, clock: ShiftedClock, expired: Key
) -> None:
    """The old counter is not built upon, and the item is alive again."""
    until = clock.now_epoch() + 60
    new = await store.update(
        Update(SESSIONS, expired, (Add("n", 1), Set("expires_at_epoch", until)))
    )
    assert new == {"PK": expired.pk, "SK": expired.sk, "n": 1, "expires_at_epoch": until}
    assert await store.get(SESSIONS, expired) == new


async def test_an_update_without_expiry_revives_for_good(store: Store, expired: Key) -> None:
    new = await store.update(Update(SESSIONS, expired, (Add("n", 1),)))
    assert new == {"PK": expired.pk, "SK": expired.sk, "n": 1}
    assert await store.get(SESSIONS, expired) == new


async def test_an_update_whose_condition_absence_satisfies(store: Store, expired: Key) -> None:
    new = await store.update(Update(SESSIONS, expired, (Add("n", 1),), attr("n").absent()))
    assert new["n"] == 1


async def test_deleting_it_returns_nothing(store: Store, expired: Key) -> None:
    assert await store.delete(Delete(SESSIONS, expired)) is None
    assert await store.get(SESSIONS, expired) is None


async def test_a_transaction_sees_no_item_either(
    store: Store, clock: ShiftedClock, expired: Key, at: Place
) -> None:
    other, third = at.key("b"), at.key("c")
    for key in (other, third):
        await store.put(Put(SESSIONS, lasting(key, clock, n=40)))
    clock.shift_ms += HOUR_MS
    await store.transact(
        [
            Put(SESSIONS, lasting(expired, clock, n=1), ITEM_ABSENT),
            Update(SESSIONS, other, (Add("n", 2), Set("expires_at_epoch", clock.now_epoch() + 60))),
            Check(SESSIONS, third, ITEM_ABSENT),
        ]
    )
    first, second = await store.batch_get([(SESSIONS, expired), (SESSIONS, other)])
    assert first is not None
    assert second is not None
    assert (first["n"], second["n"]) == (1, 2)


async def test_a_cancelled_transaction_carries_no_expired_item(
    store: Store, expired: Key, at: Place
) -> None:
    with pytest.raises(TransactionCancelledError) as failure:
        await store.transact(
            [
                Check(SESSIONS, expired, attr("n").eq(7)),
                Put(SESSIONS, {"PK": at.pk("b"), "SK": "1"}),
            ]
        )
    assert [reason.item for reason in failure.value.reasons] == [None, None]
    assert await store.get(SESSIONS, at.key("b")) is None


async def test_a_table_that_keeps_everything(store: Store, clock: ShiftedClock, at: Place) -> None:
    """Settings never expire, even if an attribute has that name."""
    key = at.key()
    await store.put(Put(CONFIG, lasting(key, clock, -10, n=1)))
    read = await stored(store, CONFIG, key)
    assert read["n"] == 1
    assert len((await store.query(Query(CONFIG, key.pk))).items) == 1
    new = await store.update(Update(CONFIG, key, (Add("n", 1),), attr("n").eq(1)))
    assert new["n"] == 2
