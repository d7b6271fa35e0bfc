"""Real concurrency: 64 tasks at once, and the sums are exact."""

import asyncio

import pytest

from contract.conftest import Place
from pricekeeper.errors import ConditionFailedError, StoreClosedError, TransactionCancelledError
from pricekeeper.settings import StoreLocation
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Add,
    Delete,
    Key,
    Put,
    Query,
    Set,
    Store,
    Update,
    attr,
)
from pricekeeper.storage.tables import CONFIG
from stores import stored

TASKS = 64


async def test_no_addition_is_lost(store: Store, at: Place) -> None:
    key = at.key()

    async def add(times: int) -> list[int]:
        return [
            (await store.update(Update(CONFIG, key, (Add("n", 1),))))["n"] for _ in range(times)
        ]

    seen = await asyncio.gather(*(add(10) for _ in range(TASKS)))
    assert sorted(n for values in seen for n in values) == list(range(1, TASKS * 10 + 1))


async def test_compare_and_set_has_one_winner_per_round(store: Store, at: Place) -> None:
    """Each version is written by one task alone; losers learn the current version."""
    key = at.key()
    await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "version": 0}))

    async def climb(name: int) -> int:
        wins, version = 0, 0
        while version < 40:
            actions = (Set("version", version + 1), Set("by", name))
            try:
                await store.update(Update(CONFIG, key, actions, attr("version").eq(version)))
            except ConditionFailedError as failure:
                assert failure.item is not None
                version = failure.item["version"]
            else:
                wins, version = wins + 1, version + 1
        return wins

    assert sum(await asyncio.gather(*(climb(name) for name in range(TASKS)))) == 40


async def test_put_if_absent_has_one_winner(store: Store, at: Place) -> None:
    """And the item is the winner's."""
    key = at.key()

    async def create(name: int) -> int | None:
        item = {"PK": key.pk, "SK": key.sk, "by": name}
        try:
            await store.put(Put(CONFIG, item, ITEM_ABSENT))
        except ConditionFailedError:
            return None
        return name

    winners = [w for w in await asyncio.gather(*map(create, range(TASKS))) if w is not None]
    item = await stored(store, CONFIG, key)
    assert winners == [item["by"]]


async def test_a_delete_has_one_taker(store: Store, at: Place) -> None:
    key = at.key()
    item = {"PK": key.pk, "SK": key.sk, "n": 1}
    await store.put(Put(CONFIG, item))
    deletes = (store.delete(Delete(CONFIG, key, ITEM_EXISTS)) for _ in range(TASKS))
    outcomes = await asyncio.gather(*deletes, return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, dict)] == [item]
    assert sum(isinstance(outcome, ConditionFailedError) for outcome in outcomes) == TASKS - 1


async def test_transfers_keep_the_sum(store: Store, at: Place) -> None:
    accounts = [at.key("a", str(n)) for n in range(8)]
    for key in accounts:
        await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 10}))
    moved = 0

    async def transfer(step: int) -> None:
        nonlocal moved
        source, target = accounts[step % 8], accounts[(step * 5 + 3) % 8]
        if source == target:
            return
        amount = 1 + step % 4
        try:
            await store.transact(
                [
                    Update(CONFIG, source, (Add("n", -amount),), attr("n").ge(amount)),
                    Update(CONFIG, target, (Add("n", amount),)),
                ]
            )
            moved += 1
        except TransactionCancelledError as failure:
            assert [reason.code for reason in failure.reasons][1] == "None"

    async def watch() -> None:
        for _ in range(20):
            page = await store.query(Query(CONFIG, at.pk("a")))
            assert all(int(item["n"]) >= 0 for item in page.items)

    await asyncio.gather(*(transfer(step) for step in range(TASKS * 4)), watch())
    page = await store.query(Query(CONFIG, at.pk("a")))
    assert sum(int(item["n"]) for item in page.items) == 80
    assert moved > TASKS


async def test_a_cancelled_caller_changes_nothing_for_the_others(store: Store, at: Place) -> None:
    """Half of the callers give up; each write is whole or absent, the others are all there."""
    keys = [at.key("a", f"{n:03}") for n in range(TASKS)]

    async def write(key: Key) -> None:
        await store.transact(
            [
                Put(CONFIG, {"PK": key.pk, "SK": key.sk}),
                Put(CONFIG, {"PK": key.pk, "SK": f"{key.sk}-twin"}),
            ]
        )

    tasks = [asyncio.create_task(write(key)) for key in keys]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None for outcome in outcomes[1::2])
    assert all(isinstance(o, asyncio.CancelledError) or o is None for o in outcomes[::2])
    await store.put(Put(CONFIG, {"PK": at.pk("b"), "SK": "1"}))
    for key in keys:
        twins = await store.batch_get([(CONFIG, key), (CONFIG, Key(key.pk, f"{key.sk}-twin"))])
        assert (twins[0] is None) == (twins[1] is None)
    for key in keys[1::2]:
        assert await store.get(CONFIG, key) is not None


async def test_closing_drains_and_then_refuses(
    store: Store, at: Place, location: StoreLocation
) -> None:
    """Accepted calls finish; later ones fail, because the store is closed."""
    key = at.key()
    pending = [
        asyncio.create_task(store.update(Update(CONFIG, key, (Add("n", 1),)))) for _ in range(TASKS)
    ]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), *pending)
    await store.close()
    for call in (
        store.get(CONFIG, key),
        store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk})),
        store.batch_get([(CONFIG, key)]),
        store.query(Query(CONFIG, key.pk)),
    ):
        with pytest.raises(StoreClosedError):
            await call
    del location


async def test_creating_tables_twice_is_fine(store: Store, at: Place) -> None:
    key = at.key()
    await store.put(Put(CONFIG, {"PK": key.pk, "SK": key.sk, "n": 1}))
    await asyncio.gather(store.create_tables(), store.create_tables())
    item = await stored(store, CONFIG, key)
    assert item["n"] == 1
