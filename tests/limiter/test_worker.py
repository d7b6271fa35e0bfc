"""One worker for a chain: whatever waits for it goes into one write, and each gets its answer."""

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    CancellationReason,
    InvalidValueError,
    OutcomeUnknownError,
    OverloadedError,
    ReasonCode,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.worker import QUEUE_MAX
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter

_T = TypeVar("_T")
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


async def begin(
    gate: Gate, requests: Sequence[Coroutine[Any, Any, _T]]
) -> "list[asyncio.Task[_T]]":
    """Start the first request and, once its write is held up, all others, which then wait."""
    first = asyncio.create_task(requests[0])
    await gate.arrived.wait()
    tasks = [first, *(asyncio.create_task(one) for one in requests[1:])]
    await waiting(10)
    return tasks


async def waiting(count: int) -> None:
    """Let every request get into the queue."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_waits_shares_the_next_write(
    limiter: Limiter, hooked: Hooked, meter: StoreMeter, entity: str
) -> None:
    """The first makes the bucket, in two writes; the other thirty-nine need one."""
    gate = Gate(hooked)
    tasks = await begin(gate, [limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(40)])
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


@pytest.mark.parametrize("named", [True, False], ids=["named", "loose"])
async def test_acquires_adjustments_and_releases_share_a_write(
    limiter: Limiter, hooked: Hooked, meter: StoreMeter, entity: str, *, named: bool
) -> None:
    """Whatever waits for the same buckets: each bucket and each lease is written once."""

    def name() -> uuid.UUID | None:
        return uuid.uuid4() if named else None

    leases = [await limiter.acquire(entity, "r", {"n": 5}, lease_id=name()) for _ in range(6)]
    meter.clear()
    gate = Gate(hooked)
    tasks = await begin(
        gate,
        [
            leases[0].adjust({"n": 1}),
            leases[1].adjust({"n": 7}),
            leases[2].adjust({"n": -3}),
            leases[3].release(),
            limiter.try_acquire(entity, "r", {"n": 10}, lease_id=name()),
            leases[4].adjust({"n": 2}),
            limiter.try_acquire(entity, "r", {"n": 20}, lease_id=name()),
        ],
    )
    gate.open()
    outcomes = await asyncio.gather(*tasks)

    assert meter.calls == {"transact" if named else "update": 2}
    assert [lease.held for lease in leases] == [
        {"n": 6},
        {"n": 12},
        {"n": 2},
        {},
        {"n": 7},
        {"n": 5},
    ]
    assert [one.granted for one in outcomes if isinstance(one, Lease)] == [True, True]
    stands = (await limiter.peek(entity, "r"))["n"]
    assert (stands.remaining, stands.consumed) == (100 - 62, 62)


async def test_what_is_given_back_serves_who_waits_with_it(
    limiter: Limiter, hooked: Hooked, meter: StoreMeter, entity: str
) -> None:
    """In the same write, though the bucket had nothing left before it."""
    lease = await limiter.acquire(entity, "r", {"n": 90})
    other = await limiter.acquire(entity, "r", {"n": 10})
    meter.clear()
    gate = Gate(hooked)
    first = asyncio.create_task(other.adjust({"n": -1}))
    await gate.arrived.wait()
    requests = [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 81})),
        asyncio.create_task(lease.adjust({"n": -80})),
    ]
    await waiting(10)
    gate.open()
    outcome, _ = await asyncio.gather(*requests)
    await first

    assert isinstance(outcome, Lease)
    assert meter.calls == {"update": 2}
    assert (await limiter.peek(entity, "r"))["n"].remaining == 0


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
    tasks = await begin(
        gate,
        [
            limiter.try_acquire(entity, "r", {"n": 2}, lease_id=name)
            for name in (*names, *names[5:])
        ],
    )
    gate.open()
    outcomes = await asyncio.gather(*tasks)

    assert all(isinstance(outcome, Lease) for outcome in outcomes)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 20
    assert meter.calls["transact"] == 2
    for name in names:
        await limiter.release(entity, name)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 0


async def test_a_transaction_has_as_many_operations_as_a_store_takes(
    store: Store, clock: ManualClock, meter: StoreMeter, entity: str
) -> None:
    """A hundred: the bucket, and the records of ninety-nine leases."""
    limiter = Limiter(store, clock=clock, limits=[Limit.per_day("n", 1_000)])
    await limiter.acquire(entity, "r", {"n": 0})
    meter.clear()
    await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4()) for _ in range(198))
    )

    assert meter.calls == {"transact": 2}
    assert (await limiter.peek(entity, "r"))["n"].consumed == 198


async def test_a_full_queue_refuses_who_comes_then_and_nobody_elses_requests(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """So many wait for one chain; one more is told, and another chain is served as ever."""
    await limiter.acquire(entity, "r", {"n": 0})
    gate = Gate(hooked)
    tasks = await begin(
        gate, [limiter.try_acquire(entity, "r", {"n": 0}) for _ in range(1 + QUEUE_MAX)]
    )
    with pytest.raises(OverloadedError):
        await limiter.try_acquire(entity, "r", {"n": 0})
    other = asyncio.create_task(limiter.try_acquire(f"{entity}-other", "r", {"n": 0}))
    await waiting(2)
    gate.open()

    assert (await other).granted
    assert all(outcome.granted for outcome in await asyncio.gather(*tasks))


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


async def test_a_bug_is_told_to_whoever_shared_the_write_and_leaves_nobody_waiting(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """Who comes after them starts anew."""
    gate = Gate(hooked)
    tasks = await begin(gate, [limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(3)])
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
    tasks = await begin(
        gate,
        [
            limiter.try_acquire(entity, "r", {"n": 10}, limits=[Limit.per_day("n", capacity)])
            for capacity in (100, 100, 50, 50)
        ],
    )
    gate.open()

    assert all(outcome.granted for outcome in await asyncio.gather(*tasks))


async def test_a_request_that_is_cancelled_in_the_queue_gives_back_what_it_got(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """Though the write was another's as well."""
    gate = Gate(hooked)
    tasks = await begin(gate, [limiter.try_acquire(entity, "r", {"n": 10}) for _ in range(5)])
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
    tasks = await begin(
        gate,
        [
            limiter.try_acquire(entity, "r", {"n": tokens}, lease_id=name)
            for tokens, name in ((0, uuid.uuid4()), (60, same), (60, same))
        ],
    )
    gate.open()
    outcomes = await asyncio.gather(*tasks)

    assert all(isinstance(outcome, Lease) for outcome in outcomes)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 100


async def test_nobody_is_denied_for_another_who_used_its_name(
    limiter: Limiter, hooked: Hooked, entity: str
) -> None:
    """A denied request leaves the name free, also for who waits with it."""
    gate, same = Gate(hooked), uuid.uuid4()
    tasks = await begin(
        gate,
        [
            limiter.try_acquire(entity, "r", {"n": tokens}, lease_id=name)
            for tokens, name in ((0, uuid.uuid4()), (200, same), (10, same))
        ],
    )
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
    tasks = await begin(
        gate,
        [limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4()) for _ in range(5)],
    )
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
    assert (limiter.meter.unlimited, limiter._workers._queues) == (0, {})
    assert (await limiter.try_acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4())).granted
