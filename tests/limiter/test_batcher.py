"""Many requests of one process for one bucket: they share writes, and each gets its own answer."""

import asyncio
import uuid

import pytest

from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    CancellationReason,
    InvalidValueError,
    OutcomeUnknownError,
    ReasonCode,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.batcher import BATCH_MAX, IN_FLIGHT_MAX
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter

DAILY = Limit.per_day("n", 100)


class Gate:
    """Holds up writes until it is opened."""

    def __init__(self, hooked: Hooked) -> None:
        self.hooked = hooked
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        hooked.before = self.hold_up

    async def hold_up(self, _: str) -> None:
        self.arrived.set()
        await self.opened.wait()

    def open(self) -> None:
        self.hooked.before = None
        self.opened.set()


@pytest.fixture
def hooked(store: Store) -> Hooked:
    return Hooked(store)


@pytest.fixture
def limiter(hooked: Hooked, clock: ManualClock) -> Limiter:
    return Limiter(hooked, clock=clock, limits=[DAILY])


async def waiting(count: int) -> None:
    """Let every request get into the queue."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_waits_shares_the_next_write(
    limiter: Limiter, hooked: Hooked, meter: StoreMeter, entity: str
) -> None:
    """The first two make the bucket; the other thirty-nine need one write."""
    gate = Gate(hooked)
    tasks = [asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 1})) for _ in range(40)]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()

    assert all(outcome.granted for outcome in await asyncio.gather(*tasks))
    assert meter.calls == {"update": 2, "put": 1}
    assert (await limiter.peek(entity, "r"))["n"].consumed == 40


async def test_a_full_bucket_costs_a_busy_process_few_writes(
    limiter: Limiter, clock: ManualClock, meter: StoreMeter, entity: str
) -> None:
    """Whose refill has to be settled: alone each of them would race the others."""
    await limiter.acquire(entity, "r", {"n": 50})
    clock.advance_ms(86_400_000)
    meter.clear()
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(60))
    )

    assert all(outcome.granted for outcome in outcomes)
    assert meter.calls["update"] <= 2
    assert limiter.meter.lost_races == 0


async def test_those_who_only_take_do_not_wait_for_each_other(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """Their writes are not in each other's way, so that nobody is slower for it."""
    await limiter.acquire(entity, "r", {"n": 1})
    arrived = []
    opened = asyncio.Event()

    async def hold_up(name: str) -> None:
        arrived.append(name)
        await opened.wait()

    hooked.before = hold_up
    tasks = [asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 1})) for _ in range(20)]
    await waiting(10)
    assert len(arrived) == IN_FLIGHT_MAX
    opened.set()
    await asyncio.gather(*tasks)
    assert len(arrived) < 20


async def test_of_those_who_wait_as_many_are_served_as_there_is_for(
    hooked: Hooked, clock: ManualClock, entity: str
) -> None:
    """In the order of their arrival; what is too big does not keep the small ones out."""
    limiter = Limiter(hooked, clock=clock, limits=[Limit.per_day("n", 10)])
    await limiter.acquire(entity, "r", {"n": 10})
    clock.advance_ms(100 * 86_400_000 // 99)
    gate = Gate(hooked)
    first = asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 3}))
    await gate.arrived.wait()
    tasks = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": tokens}))
        for tokens in (200, 5, 4, 2, 1)
    ]
    await waiting(10)
    gate.open()
    outcomes = await asyncio.gather(first, *tasks)

    granted = [outcome.granted for outcome in outcomes]
    assert granted == [True, False, True, False, True, False]
    denied = outcomes[5]
    assert isinstance(denied, Denial)
    assert denied.violations[0].requested == 1
    assert (await limiter.peek(entity, "r"))["n"].remaining == 0


async def test_many_names_share_a_transaction(
    limiter: Limiter, hooked: Hooked, meter: StoreMeter, entity: str
) -> None:
    """Each lease is recorded by itself; the same name twice is one lease."""
    await limiter.acquire(entity, "r", {"n": 0})
    meter.clear()
    gate = Gate(hooked)
    names = [uuid.uuid4() for _ in range(10)]
    tasks = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 2}, lease_id=name))
        for name in (*names, *names[5:])
    ]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()
    outcomes = await asyncio.gather(*tasks)

    assert all(isinstance(outcome, Lease) for outcome in outcomes)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 20
    assert meter.calls["transact"] <= 3
    for name in names:
        await limiter.release(entity, name)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 0


async def test_a_batch_has_a_bound(
    store: Store, clock: ManualClock, meter: StoreMeter, entity: str
) -> None:
    """So that the records of its leases fit into one transaction."""
    limiter = Limiter(store, clock=clock, limits=[Limit.per_day("n", 1_000)])
    await limiter.acquire(entity, "r", {"n": 0})
    meter.clear()
    await asyncio.gather(
        *(
            limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4())
            for _ in range(2 * BATCH_MAX)
        )
    )

    assert meter.calls == {"transact": 3}
    assert (await limiter.peek(entity, "r"))["n"].consumed == 2 * BATCH_MAX


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), OutcomeUnknownError("lost")])
async def test_a_failure_is_told_to_everybody_it_concerns_and_blocks_nobody(
    limiter: Limiter, hooked: Hooked, entity: str, error: Exception
) -> None:
    """Who comes later starts anew."""
    await limiter.acquire(entity, "r", {"n": 100})

    async def fail(_: str) -> None:
        await asyncio.sleep(0)
        raise type(error)(*error.args)

    hooked.before = fail
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(10)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(error)] * 10
    assert len({id(outcome) for outcome in outcomes}) == 10
    hooked.before = None

    assert isinstance(await limiter.try_acquire(entity, "r", {"n": 1}), Denial)


async def test_a_bug_in_the_request_that_runs_a_batch_does_not_leave_the_others_waiting(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """It is told to whoever shared the write; who comes after them starts anew."""
    gate = Gate(hooked)
    tasks = [asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 1})) for _ in range(3)]
    await gate.arrived.wait()
    await waiting(10)
    broken = iter([ZeroDivisionError()])

    async def fail_once(_: str) -> None:
        for error in broken:
            raise error

    gate.open()
    hooked.before = fail_once
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(outcomes[0], ZeroDivisionError)
    assert all(isinstance(outcome, Lease) for outcome in outcomes[1:])


async def test_whose_limits_differ_do_not_share_a_write(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """One after the other, each on its own terms."""
    gate = Gate(hooked)
    tasks = [
        asyncio.create_task(
            limiter.try_acquire(entity, "r", {"n": 10}, limits=[Limit.per_day("n", capacity)])
        )
        for capacity in (100, 100, 50, 50)
    ]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()

    assert all(outcome.granted for outcome in await asyncio.gather(*tasks))


async def test_a_request_that_is_cancelled_in_the_queue_gives_back_what_it_got(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """Though the write was another's as well."""
    gate = Gate(hooked)
    tasks = [asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 10})) for _ in range(5)]
    await gate.arrived.wait()
    await waiting(10)
    for task in tasks[1:3]:
        task.cancel()
    await waiting(2)
    gate.open()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await limiter.close()

    assert [isinstance(outcome, Lease) for outcome in outcomes] == [True, False, False, True, True]
    assert (await limiter.peek(entity, "r"))["n"].consumed == 30


async def test_two_who_ask_for_one_lease_get_it_though_it_takes_all_there_is(
    limiter: Limiter, hooked: Hooked, clock: ManualClock, entity: str
) -> None:
    """Who repeats itself while the first is under way is not denied what that one was granted."""
    other = Limiter(hooked, clock=clock, limits=[DAILY])
    most = await other.acquire(entity, "r", {"n": 60})
    await limiter.acquire(entity, "r", {"n": 40})
    await most.release()  # which the first instance does not know of
    gate, same = Gate(hooked), uuid.uuid4()
    tasks = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": tokens}, lease_id=name))
        for tokens, name in ((0, uuid.uuid4()), (60, same), (60, same))
    ]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()
    outcomes = await asyncio.gather(*tasks)

    assert all(isinstance(outcome, Lease) for outcome in outcomes)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 100


async def test_nobody_is_denied_for_another_who_used_its_name(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """A denied request leaves the name free, also for who waits with it."""
    gate, same = Gate(hooked), uuid.uuid4()
    tasks = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": tokens}, lease_id=name))
        for tokens, name in ((0, uuid.uuid4()), (200, same), (10, same))
    ]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()
    _, denied, granted = await asyncio.gather(*tasks)

    assert isinstance(denied, Denial)
    assert denied.retry_after_ms is None
    assert granted.granted


MISTAKES = [
    ZeroDivisionError("a bug"),
    InvalidValueError("n.capacity", "what is stored makes no sense"),
    TransactionCancelledError([CancellationReason(ReasonCode.CONFLICT)]),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda error: type(error).__name__)
async def test_a_mistake_is_told_to_everybody_it_concerns_and_lets_nobody_through(
    hooked: Hooked, clock: ManualClock, entity: str, mistake: Exception
) -> None:
    """Each raises an error of its own, nobody is left waiting, and the queue goes on."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY], on_unavailable="allow")
    await limiter.acquire(entity, "r", {"n": 0})
    gate = Gate(hooked)
    tasks = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4()))
        for _ in range(5)
    ]
    await gate.arrived.wait()
    await waiting(10)
    gate.open()
    calls = 0

    async def fail_once(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise mistake

    hooked.before = fail_once
    async with asyncio.timeout(10):
        first, *others = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(first, Lease)
    assert [(type(one), str(one), vars(one)) for one in others if isinstance(one, Exception)] == [
        (type(mistake), str(mistake), vars(mistake))
    ] * 4
    assert len({id(one) for one in others}) == 4
    assert (limiter.meter.unlimited, limiter._batcher._queues) == (0, {})
    assert (await limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4())).granted
