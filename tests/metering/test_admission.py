"""Batches under load: refused whole and early, worked on a few at a time, in small groups."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date

import pytest

from metering.conftest import CATALOGUE, MeteringMaker, a_policy, a_usage
from metering.scripted_store import Held, ScriptedStore, fails
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OverloadedError, StoreUnavailableError
from pricekeeper.metering import GROUP_RECORDS, Metering, Recorded, Refused
from pricekeeper.metering.admission import AT_WORK_MAX
from pricekeeper.metering.committer import LANES_MAX, PENDING_MAX
from pricekeeper.pricing import Model, PriceBook, Prices
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Policy

SHARE = PENDING_MAX // 2
"""What one organisation gets that is alone."""


@pytest.fixture
async def wire() -> AsyncIterator[ScriptedStore]:
    store = await open_store(SqliteLocation(MEMORY), clock=ManualClock())
    await store.create_tables()
    yield ScriptedStore(store)
    await store.close()


@pytest.fixture
def metering(new_metering: MeteringMaker, wire: ScriptedStore) -> Metering:
    return new_metering(wire, ManualClock())


def room(metering: Metering, policy: Policy) -> int:
    return metering._committer.shares.room(policy.org_id)


async def test_a_batch_that_has_no_room_is_refused_as_a_whole(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """Not one of its records is written, and none is told to have failed by itself."""
    held = Held()
    wire.script.extend([held] * LANES_MAX)
    batches = [
        asyncio.create_task(metering.record_many(policy, [a_usage() for _ in range(100)]))
        for _ in range(SHARE // 100)
    ]
    await held.reached.wait()
    for _ in range(1_000):  # until every batch is read and only the store is waited for
        await asyncio.sleep(0)
    assert room(metering, policy) == 0
    assert wire.in_flight == LANES_MAX
    sent = len(wire.sent)
    with pytest.raises(OverloadedError):
        metering.require_room(policy.org_id)
    with pytest.raises(OverloadedError):
        await metering.record_many(policy, [a_usage()])
    assert len(wire.sent) == sent
    held.let_go.set()
    answers = await asyncio.gather(*batches)
    assert all(isinstance(one, Recorded) for answer in answers for one in answer)
    assert room(metering, policy) == PENDING_MAX


async def test_places_come_back_however_a_batch_ends(
    metering: Metering, wire: ScriptedStore, policy: Policy
) -> None:
    """Counted, refused, failed in the store, cancelled while it waits or while it is in flight."""
    await metering.record_many(policy, [a_usage(), a_usage("nonsense"), a_usage(input_tokens=-1)])
    wire.script.append(fails(StoreUnavailableError("scripted")))
    failed = await metering.record_many(policy, [a_usage()])
    assert [type(one) for one in failed] == [Refused]
    held = Held()
    wire.script.append(held)
    batches = [
        asyncio.create_task(metering.record_many(policy, [a_usage() for _ in range(5)]))
        for _ in range(3 * AT_WORK_MAX)
    ]
    batches[-1].cancel()  # before it has begun
    await asyncio.sleep(0)
    batches[-2].cancel()  # while it waits for a slot
    await held.reached.wait()
    batches[0].cancel()
    held.let_go.set()
    await asyncio.wait(batches)
    assert [batch.cancelled() for batch in batches].count(True) == 3
    await metering.close()
    assert room(metering, policy) == PENDING_MAX
    assert metering._admission._slots._free == AT_WORK_MAX


class CountingBook(PriceBook):
    """Counts how many records were priced in each turn of the event loop."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store, clock, CATALOGUE)
        self.in_turn: list[int] = [0]

    async def prices_for(self, model: Model, day: date) -> Prices:
        if not self.in_turn[-1]:
            asyncio.get_running_loop().call_soon(self.in_turn.append, 0)
        self.in_turn[-1] += 1
        return await super().prices_for(model, day)


async def test_a_batch_takes_many_turns_of_the_loop(wire: ScriptedStore, policy: Policy) -> None:
    """So that whoever else asks is answered in between: ten records in a turn, not a hundred."""
    clock = ManualClock()
    book = CountingBook(wire, clock)
    metering = Metering(wire, clock, book)
    await metering.record(policy, a_usage())
    book.in_turn = [0]
    await metering.record_many(policy, [a_usage() for _ in range(100)])
    assert max(book.in_turn) == GROUP_RECORDS
    assert sum(book.in_turn) == 100

    book.in_turn = [0]
    await asyncio.gather(
        *(metering.record_many(a_policy(), [a_usage() for _ in range(100)]) for _ in range(40))
    )
    assert sum(book.in_turn) == 4_000
    assert max(book.in_turn) <= GROUP_RECORDS * AT_WORK_MAX
    await metering.close()


async def test_a_neighbours_batch_does_not_wait_behind_a_flood(
    metering: Metering, policy: Policy
) -> None:
    """It is worked on next, though fifty of the flood's came first."""
    neighbour, order = a_policy(), []
    await metering.record(policy, a_usage())

    async def send(one: Policy, name: str) -> None:
        async with metering.admit_batch(one.org_id) as places:
            order.append(name)
            await metering.record_many(one, [a_usage() for _ in range(100)], places)

    flood = [asyncio.create_task(send(policy, "flood")) for _ in range(SHARE // 100)]
    await asyncio.sleep(0)
    theirs = asyncio.create_task(send(neighbour, "neighbour"))
    await asyncio.gather(*flood, theirs)
    assert order.index("neighbour") <= AT_WORK_MAX + 1
    assert len(order) == len(flood) + 1
