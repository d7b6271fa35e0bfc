"""Admission under load: what has no room waits, is refused whole, and never takes a neighbour's."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date

import pytest

from metering.conftest import CATALOGUE, MeteringMaker, a_policy, a_usage
from metering.scripted_store import Held, ScriptedStore, fails
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OverloadedError, StoreUnavailableError
from pricekeeper.metering import (
    GROUP_RECORDS,
    BatchPlaces,
    Metering,
    Recorded,
    Refused,
    admission,
    service,
)
from pricekeeper.metering.admission import AT_WORK_MAX, WAIT_MS_MAX, Admission
from pricekeeper.pricing import Model, PriceBook, Prices
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Policy

PLACES = 1_000
SHARE = PLACES // 2
"""What one organisation gets that is alone."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def wire(clock: ManualClock) -> AsyncIterator[ScriptedStore]:
    store = await open_store(SqliteLocation(MEMORY), clock=clock)
    await store.create_tables()
    yield ScriptedStore(store)
    await store.close()


@pytest.fixture
def metering(
    new_metering: MeteringMaker,
    wire: ScriptedStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Metering:
    monkeypatch.setattr(service, "PENDING_MAX", PLACES)
    return new_metering(wire, clock)


async def turns(count: int = 5) -> None:
    """Let every task proceed."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_has_no_room_waits_and_gets_it(clock: ManualClock) -> None:
    """In the order in which they came: a small request does not overtake a large one."""
    places = Admission(clock, 100)
    await places.take("a", 50)
    order: list[int] = []

    async def take(count: int) -> None:
        await places.take("a", count)
        order.append(count)

    tasks = [asyncio.create_task(take(count)) for count in (30, 1, 10)]
    await turns()
    assert order == []
    places.give_back("a", 5)
    await turns()
    assert order == []  # there is room for ten, and the first wants thirty
    tasks.append(asyncio.create_task(take(2)))
    await turns()
    assert order == []
    places.give_back("a", 45)
    await turns()
    assert order == [30, 1, 10, 2]
    await asyncio.gather(*tasks)
    places.give_back("a", 43)
    assert places.shares.room("a") == 100
    await places.close()


async def test_who_waits_too_long_is_refused(clock: ManualClock) -> None:
    """After a stated time, not before; and nothing is left behind."""
    places = Admission(clock, 100)
    await places.take("a", 50)
    first = asyncio.create_task(places.take("a"))
    await turns()
    clock.advance_ms(WAIT_MS_MAX // 2)
    second = asyncio.create_task(places.take("a"))
    await turns()
    clock.advance_ms(WAIT_MS_MAX // 2 - 1)
    await turns()
    assert not first.done()
    clock.advance_ms(1)
    await turns()
    assert isinstance(first.exception(), OverloadedError)
    assert not second.done()
    places.give_back("a", 50)
    await asyncio.wait([second])
    assert second.exception() is None
    places.give_back("a")
    await places.take("a", 50)  # at once: no request waits any more
    assert places._queues == {}
    await places.close()


async def test_so_many_wait_and_each_organisation_has_its_share_of_that(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it they are refused at once; a neighbour may still wait."""
    monkeypatch.setattr(admission, "WAITING_MAX", 6)
    places = Admission(clock, 90)
    await places.take("a", 45)
    await places.take("b", 22)
    waiting = [asyncio.create_task(places.take("a", 30)) for _ in range(5)]
    await turns()
    assert [task.done() for task in waiting] == [False] * 3 + [True] * 2
    waiting.append(asyncio.create_task(places.take("b", 30)))
    await turns()
    assert not waiting[-1].done()
    clock.advance_ms(WAIT_MS_MAX)
    await asyncio.wait(waiting)
    assert {type(task.exception()) for task in waiting} == {OverloadedError}
    assert places._waiting_shares.room("c") == 6
    await places.close()


async def test_a_place_is_never_lost_to_a_caller_that_is_cancelled(clock: ManualClock) -> None:
    """Neither while it waits nor in the turn in which it is admitted."""
    places = Admission(clock, 100)
    await places.take("a", 50)
    waiting = [asyncio.create_task(places.take("a", 10)) for _ in range(3)]
    await turns()
    waiting[0].cancel()
    places.give_back("a", 10)
    await asyncio.sleep(0)  # admits the second one, which is cancelled before it runs
    waiting[1].cancel()
    await asyncio.wait(waiting[:2])
    await asyncio.wait(waiting, timeout=10)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    places.give_back("a", 50)
    assert places.shares.room("a") == 100
    assert places._queues == {}
    await places.close()


async def test_a_batch_waits_without_a_task(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called with places, without any in time, and if too many wait."""
    monkeypatch.setattr(admission, "WAITING_MAX", 4)
    places = Admission(clock, 400)
    told: list[BatchPlaces | None] = []
    assert not places.queue_batch("a", told.append), "there is room: it need not wait"
    await places.take("a", 200)
    assert places.queue_batch("a", told.append)
    assert places.queue_batch("a", told.append)
    later = asyncio.create_task(places.take("b", 100))
    assert places.queue_batch("a", told.append)
    assert told == [None], "the third of those who may wait is one too many"
    await turns()
    places.give_back("a", 100)
    await turns()
    assert isinstance(told[1], BatchPlaces)
    clock.advance_ms(WAIT_MS_MAX)
    await turns()
    assert told[2:] == [None]
    told[1].end_work()
    await later
    places.give_back("a", 100)
    places.give_back("b", 100)
    assert places.shares.room("a") == 400
    assert places._queues == {}
    assert places._waiting_shares.room("a") == 4
    await places.close()


async def test_a_batch_that_has_no_room_is_refused_as_a_whole(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: ManualClock
) -> None:
    """None of its records is written or refused by itself, and a neighbour has room."""
    held = Held()
    wire.script.append(held)
    batches = [
        asyncio.create_task(metering.record_many(policy, [a_usage() for _ in range(100)]))
        for _ in range(SHARE // 100)
    ]
    await held.reached.wait()
    await turns(1_000)  # until every batch is read and only the store is waited for
    assert metering.admission.shares.room(policy.org_id) == 0
    assert wire.in_flight == 1
    sent = len(wire.sent)
    more = [
        asyncio.create_task(metering.record_many(policy, [a_usage()])),
        asyncio.create_task(metering.record(policy, a_usage())),
    ]
    await turns()
    clock.advance_ms(WAIT_MS_MAX)
    await asyncio.wait(more)
    assert [type(task.exception()) for task in more] == [OverloadedError] * 2
    assert len(wire.sent) == sent
    theirs = asyncio.create_task(metering.record_many(a_policy(), [a_usage(), a_usage()]))
    await turns()
    held.let_go.set()
    answers = await asyncio.gather(*batches, theirs)
    assert all(isinstance(one, Recorded) for answer in answers for one in answer)
    assert metering.admission.shares.room(policy.org_id) == PLACES


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
    for late in (metering.record_many(policy, [a_usage()]), metering.record(policy, a_usage())):
        await asyncio.gather(late, return_exceptions=True)
    assert metering.admission.shares.room(policy.org_id) == PLACES
    assert metering.admission.slots._free == AT_WORK_MAX


class CountingBook(PriceBook):
    """Counts how many records were priced in each turn of the event loop."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store, clock, CATALOGUE)
        self.in_turn: list[int] = [0]

    def recall_prices(self, model: Model, day: date) -> Prices | None:
        if not self.in_turn[-1]:
            asyncio.get_running_loop().call_soon(self.in_turn.append, 0)
        self.in_turn[-1] += 1
        return super().recall_prices(model, day)


async def test_a_batch_takes_many_turns_of_the_loop(
    wire: ScriptedStore, policy: Policy, clock: ManualClock
) -> None:
    """Others are answered in between: ten records in a turn, not a hundred."""
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
    """It is worked on next, though all of the flood's came first, and half of them wait."""
    neighbour, order = a_policy(), []
    await metering.record(policy, a_usage())

    async def send(one: Policy, name: str) -> None:
        async with metering.admission.admit_batch(one.org_id) as places:
            await places.begin_work()
            order.append(name)
            await metering.record_many(one, [a_usage() for _ in range(100)], places)

    flood = [asyncio.create_task(send(policy, "flood")) for _ in range(2 * SHARE // 100)]
    await asyncio.sleep(0)
    theirs = asyncio.create_task(send(neighbour, "neighbour"))
    await asyncio.gather(*flood, theirs)
    assert order.index("neighbour") <= AT_WORK_MAX + 1
    assert len(order) == len(flood) + 1
