"""The unreliable wire itself: every fault is what it says, and a seed says which."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import ITEM_ABSENT, Add, Key, Put, Store, Update, open_store
from pricekeeper.storage.tables import CONFIG

KEY = Key("a", "1")
COUNT = Update(CONFIG, KEY, (Add("n", 1),))


@pytest.fixture
async def real() -> AsyncIterator[Store]:
    store = await open_store(SqliteLocation(MEMORY), clock=ManualClock())
    await store.create_tables()
    yield store
    await store.close()


async def _count(store: Store) -> int:
    item = await store.get(CONFIG, KEY)
    return 0 if item is None else int(item["n"])


@pytest.mark.parametrize(
    ("faults", "error", "applied"),
    [
        (Faults(), None, 1),
        (Faults(refused_pct=100), StoreUnavailableError, 0),
        (Faults(request_lost_pct=100), OutcomeUnknownError, 0),
        (Faults(reply_lost_pct=100), OutcomeUnknownError, 1),
        (Faults(late_pct=100), OutcomeUnknownError, 0),
        (Faults(resent_pct=100), None, 1),
    ],
)
async def test_a_fault_does_what_it_says(
    real: Store, faults: Faults, error: type[Exception] | None, applied: int
) -> None:
    """The caller's error, and the store's content; a bare ADD is never sent twice."""
    turns = Interleaving(1)
    store = FaultyStore(real, turns, faults)
    (outcome,) = await turns.run(store.update(COUNT))
    assert isinstance(outcome, error or dict)
    assert await _count(real) == applied


async def test_a_late_write_arrives_in_the_end(real: Store) -> None:
    turns = Interleaving(1)
    store = FaultyStore(real, turns, Faults(late_pct=100))
    await turns.run(store.update(COUNT))
    await store.deliver()
    assert await _count(real) == 1


async def test_a_crash_comes_before_or_after_the_write(real: Store) -> None:
    turns = Interleaving(1)
    store = FaultyStore(real, turns, Faults(crashed_pct=100))
    outcomes = await turns.run(*(store.update(COUNT) for _ in range(20)))
    assert all(isinstance(outcome, Crashed) for outcome in outcomes)
    assert 0 < await _count(real) < 20


async def test_a_guarded_write_that_was_sent_twice_shows_the_item(real: Store) -> None:
    """As an adapter does: the first copy may have been what the second one met."""
    turns = Interleaving(1)
    store = FaultyStore(real, turns, Faults(resent_pct=100))
    item = {"PK": "a", "SK": "1", "by": "me"}
    (outcome,) = await turns.run(store.put(Put(CONFIG, item, ITEM_ABSENT)))
    assert isinstance(outcome, OutcomeUnknownError)
    assert outcome.item == item


async def test_a_seed_is_an_order(real: Store) -> None:
    """The same seed lets the same tasks through in the same order; another one does not."""

    async def order(seed: int) -> list[int]:
        turns, seen = Interleaving(seed), list[int]()
        store = FaultyStore(real, turns, Faults(refused_pct=20))

        async def work(name: int) -> None:
            for _ in range(5):
                try:
                    await store.update(COUNT)
                except StoreUnavailableError:
                    seen.append(-name)
                seen.append(name)

        await turns.run(*(work(name) for name in range(1, 5)))
        return seen

    same = [await order(3) for _ in range(30)]
    assert same == same[:1] * 30
    assert await order(4) != same[0]


async def test_nothing_fails_outside_an_interleaving(real: Store) -> None:
    """So a test can set up and look at the result through the same store."""
    store = FaultyStore(real, Interleaving(1), Faults(refused_pct=100))
    await asyncio.gather(store.update(COUNT), store.update(COUNT))
    assert await _count(store) == 2
