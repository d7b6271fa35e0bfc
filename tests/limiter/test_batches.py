"""Batches: which requests share one, what it may cost, and what they get when others interfere.

On one store: what the writes mean to each of them is the business of the other tests.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from limiter.hooked import Hooked, once
from pricekeeper.clock import ManualClock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError, UnreadableItemError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX
from pricekeeper.limiter.commands import Debited
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Add, Item, Key, Set, Update, Write, open_store
from pricekeeper.storage.tables import RATE_BUCKETS

DAILY = Limit.per_day("n", 100)
ONE = [Debit("e", "r", {"n": DAILY}, {"n": 1})]


class Watched(Hooked):
    """Knows what was sent, and holds up whatever it is told to."""

    sent: list[Sequence[Write]]
    under_way = 0
    most_under_way = 0
    gate: asyncio.Event | None = None

    async def update(self, operation: Update) -> Item:
        self.sent.append([operation])
        await self._hold_up()
        return await super().update(operation)

    async def transact(self, operations: Sequence[Write]) -> None:
        self.sent.append(operations)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self._hold_up()
        self.under_way -= 1
        await super().transact(operations)

    async def _hold_up(self) -> None:
        if self.gate is not None:
            await self.gate.wait()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Watched]:
    opened = await open_store(SqliteLocation(MEMORY), clock=clock)
    await opened.create_tables()
    watched = Watched(opened)
    watched.sent = []
    yield watched
    await opened.close()


@pytest.fixture
def make(store: Watched, clock: ManualClock) -> Callable[..., Limiter]:
    """Make an instance whose pauses take no time."""

    def made(*limits: Limit) -> Limiter:
        return Limiter(store, clock=clock, limits=limits or [DAILY], jitter=lambda _: 0)

    return made


@pytest.fixture
def limiter(make: Callable[..., Limiter]) -> Limiter:
    return make()


async def turns(count: int = 10) -> None:
    """Let everybody get as far as they can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def begin(
    requests: Iterable[Coroutine[Any, Any, Lease | Denial]],
) -> "list[asyncio.Task[Lease | Denial]]":
    """Start the first request and, once its write is held up, the others, which then wait."""
    tasks = []
    for one in requests:
        tasks.append(asyncio.create_task(one))
        await turns()
    return tasks


async def left(limiter: Limiter) -> int:
    return (await limiter.peek("e", "r"))["n"].remaining


def rival(store: Watched, calls: Sequence[int]) -> Callable[[str], Awaitable[None]]:
    """Whenever the limiter makes one of these calls, counted from 1, ``rf`` has just moved."""
    seen: list[str] = []

    async def before(name: str) -> None:
        seen.append(name)
        if len(seen) in calls:
            await store._store.update(Update(RATE_BUCKETS, Key("e", "r"), (Add("rf", -1),)))

    return before


async def test_transactions_on_one_chain_go_one_after_another(
    limiter: Limiter, store: Watched
) -> None:
    """DynamoDB refuses those that overlap; with parents or with names, they wait."""
    await limiter.acquire("e", "r", {"n": 1}, parents=["org"])
    for name in (None, uuid.uuid4):
        store.gate = asyncio.Event()
        tasks = [
            asyncio.create_task(
                limiter.try_acquire(
                    "e", "r", {"n": 1}, parents=["org"], lease_id=name() if name else None
                )
            )
            for _ in range(6)
        ]
        await turns()
        store.gate.set()
        assert all(outcome.granted for outcome in await asyncio.gather(*tasks))

    assert store.most_under_way == 1


async def test_a_transaction_has_room_for_the_records_of_a_batch(
    make: Callable[..., Limiter], store: Watched
) -> None:
    """And for no more than that: beside its bucket, so many leases."""
    limiter = make(Limit.per_day("n", 1_000))
    await limiter.acquire("e", "r", {"n": 0})
    store.sent.clear()
    await asyncio.gather(
        *(limiter.try_acquire("e", "r", {"n": 1}, lease_id=uuid.uuid4()) for _ in range(250))
    )

    assert [len(sent) for sent in store.sent] == [1 + 99, 1 + 99, 1 + 52]


async def test_what_is_too_big_costs_the_others_no_write(
    make: Callable[..., Limiter], store: Watched
) -> None:
    """All that there is enough for goes into one."""
    limiter = make(Limit.per_day("n", 10))
    await limiter.acquire("e", "r", {"n": 0})
    store.gate = asyncio.Event()
    tasks = await begin(
        limiter.try_acquire("e", "r", {"n": tokens}, lease_id=uuid.uuid4())
        for tokens in (0, 20, 6, 5, 4)
    )
    store.sent.clear()
    store.gate.set()
    outcomes = await asyncio.gather(*tasks)

    assert [outcome.granted for outcome in outcomes] == [True, False, True, False, True]
    assert [len(sent) for sent in store.sent] == [1 + 2]


async def test_whose_limits_differ_are_served_each_on_its_own_terms(
    limiter: Limiter, store: Watched
) -> None:
    """A bucket that is brought up to date in between keeps its share."""
    store.gate = asyncio.Event()
    tasks = [
        asyncio.create_task(
            limiter.try_acquire("e", "r", {"n": 10}, limits=[Limit.per_day("n", capacity)])
        )
        for capacity in (100, 100, 50, 50)
    ]
    await turns()
    store.gate.set()
    await asyncio.gather(*tasks)

    stands = await limiter.peek("e", "r", limits=[Limit.per_day("n", 50)])
    assert stands["n"].remaining == (100 - 20) // 2 - 20


async def test_who_was_served_is_not_told_of_what_became_of_the_others(
    limiter: Limiter, store: Watched
) -> None:
    """Whether it runs the batch or is run by another."""
    await limiter.acquire("e", "r", {"n": 40})
    store.gate = asyncio.Event()
    tasks = await begin(
        limiter.try_acquire("e", "r", {"n": tokens}, lease_id=uuid.uuid4())
        for tokens in (0, 30, 30, 60)
    )

    async def fail(name: str) -> None:
        if name == "batch_get":
            raise StoreUnavailableError("away")

    store.before = fail
    store.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    store.before = None

    assert [type(outcome) for outcome in outcomes] == [Lease, Lease, Lease, StoreUnavailableError]
    assert await left(limiter) == 0


async def test_a_batch_that_makes_progress_has_all_of_its_attempts_again(
    limiter: Limiter, make: Callable[..., Limiter], store: Watched
) -> None:
    """It is contended only if it loses so many times in a row."""
    other = make()
    lease = await other.acquire("e", "r", {"n": 40})
    await limiter.acquire("e", "r", {"n": 0})
    store.gate = asyncio.Event()
    tasks = await begin(
        limiter.try_acquire("e", "r", {"n": tokens}, lease_id=uuid.uuid4())
        for tokens in (0, 60, 40)
    )
    losing = ATTEMPTS_MAX - 4
    meddle = rival(store, [*range(2, 2 + losing), *range(4 + losing, 4 + 2 * losing)])

    async def before(name: str) -> None:
        if name == "batch_get":
            await other._completion.complete(lease.release())
        await meddle(name)

    store.before = before
    store.gate.set()

    assert all(outcome.granted for outcome in await asyncio.gather(*tasks))
    assert limiter.meter.lost_races > ATTEMPTS_MAX


async def test_races_that_were_lost_are_counted(
    limiter: Limiter, make: Callable[..., Limiter], store: Watched
) -> None:
    """Not that what was remembered was out of date, if the first answer shows it."""
    await limiter.acquire("e", "r", {"n": 1}, parents=["org"])
    store.before = rival(store, [1])
    await limiter.acquire("e", "r", {"n": 1})
    assert limiter.meter.lost_races == 0
    store.before = rival(store, [1, 2, 3])
    await limiter.acquire("e", "r", {"n": 1})
    assert limiter.meter.lost_races == 2
    store.before = rival(store, [1])
    lease = await limiter.acquire("e", "r", {"n": 1}, parents=["org"])
    assert limiter.meter.lost_races == 3
    store.before = None
    await make(Limit.per_hour("n", 100)).acquire("e", "r", {"n": 0})
    await lease.release()
    assert limiter.meter.lost_races == 4


async def test_a_grant_counts_for_when_the_bucket_was_refilled_if_that_was_after_our_reading(
    limiter: Limiter, make: Callable[..., Limiter], store: Watched, clock: ManualClock
) -> None:
    """Others' refill is part of what it takes."""
    other = make()
    await limiter.acquire("e", "r", {"n": 1})
    clock.advance_ms(86_400_000)
    asked_ms = clock.now_ms()

    async def settle() -> None:
        clock.advance_ms(50)
        await other.acquire("e", "r", {"n": 1})
        clock.advance_ms(70)

    store.before = once(settle)
    lease = await limiter.acquire("e", "r", {"n": 1})

    assert lease.granted_at_ms == asked_ms + 50


async def test_a_grant_never_counts_for_a_moment_that_is_still_to_come(
    limiter: Limiter, store: Watched, clock: ManualClock
) -> None:
    """Though the bucket was refilled by a clock that is ahead of ours."""
    ahead = ManualClock(clock.now_ms() + 2_000)
    await Limiter(store, clock=ahead, limits=[DAILY]).acquire("e", "r", {"n": 1})

    assert (await limiter.acquire("e", "r", {"n": 1})).granted_at_ms == clock.now_ms()


async def test_who_waits_for_a_worker_that_is_stopped_is_told_that_nobody_knows(
    limiter: Limiter, store: Watched
) -> None:
    """It ends only with the event loop; whoever comes next is served all the same."""
    workers = limiter._workers
    store.gate = asyncio.Event()
    first = asyncio.create_task(workers.take(ONE, ONE))
    await turns()
    waiting = asyncio.create_task(workers.take(ONE, ONE))
    await turns()
    [worker] = workers._tasks
    worker.cancel()
    outcomes = await asyncio.gather(first, waiting, return_exceptions=True)
    store.gate.set()

    assert [type(one) for one in outcomes] == [OutcomeUnknownError, OutcomeUnknownError]
    assert workers._queues == {}
    assert isinstance(await workers.take(ONE, ONE), Debited)
    await turns()
    assert (workers._queues, workers._tasks) == ({}, set())


async def test_a_request_that_left_the_queue_keeps_nobody_waiting(
    limiter: Limiter, store: Watched
) -> None:
    """Nothing is taken for it."""
    workers = limiter._workers
    store.gate = asyncio.Event()
    first = asyncio.create_task(workers.take(ONE, ONE))
    await turns()
    gone, other = (asyncio.create_task(workers.take(ONE, ONE)) for _ in range(2))
    await turns()
    gone.cancel()
    await turns()
    store.gate.set()
    outcomes = await asyncio.gather(first, gone, other, return_exceptions=True)

    assert [type(one) for one in outcomes] == [Debited, asyncio.CancelledError, Debited]
    assert await left(limiter) == 98


async def test_what_cannot_be_read_concerns_only_who_needs_it(
    limiter: Limiter, store: Watched
) -> None:
    """One app's bucket makes no sense: the other apps of its organisation are served."""
    for app in ("a", "b"):
        await limiter.acquire(app, "r", {"n": 1}, parents=["org"])
    strange = Update(RATE_BUCKETS, Key("a", "r"), (Set("lm.n", "1/2/many"),))
    await store._store.update(strange)
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(app, "r", {"n": 1}, parents=["org"]) for app in ("a", "b", "b")),
        return_exceptions=True,
    )

    assert [type(one) for one in outcomes] == [UnreadableItemError, Lease, Lease]
    assert (await limiter.peek("org", "r"))["n"].consumed == 4


async def test_a_denial_is_decided_by_the_store_for_each_who_waited(
    limiter: Limiter, make: Callable[..., Limiter], store: Watched
) -> None:
    """What another gave back meanwhile is there for those it is enough for."""
    other = make()
    lease = await other.acquire("e", "r", {"n": 100})
    assert not (await limiter.try_acquire("e", "r", {"n": 1})).granted
    await lease.adjust({"n": -30})
    outcomes = await asyncio.gather(
        *(limiter.try_acquire("e", "r", {"n": tokens}) for tokens in (40, 20, 20, 10))
    )

    assert [isinstance(outcome, Denial) for outcome in outcomes] == [True, False, True, False]


async def test_what_is_remembered_after_a_transaction_is_what_was_written(
    limiter: Limiter, make: Callable[..., Limiter]
) -> None:
    """Nothing is told of it, so it has to be worked out."""
    for count in (1, 2, 3):
        lease = await limiter.acquire("e", "r", {"n": 5}, parents=["org"])
        assert (lease.limits["n"].remaining, lease.limits["n"].consumed) == (
            100 - 5 * count,
            5 * count,
        )
    assert lease.limits == await make().peek("e", "r")


async def test_a_lease_tells_how_the_limits_stood_right_after_its_grant(limiter: Limiter) -> None:
    """Whenever it is asked, and whatever was taken since."""
    leases = [await limiter.acquire("e", "r", {"n": 1}) for _ in range(3)]

    assert [lease.limits["n"].remaining for lease in leases] == [99, 98, 97]


async def test_a_process_remembers_the_buckets_that_it_had_to_do_with_last(
    limiter: Limiter,
) -> None:
    """So many of them, and none that it knows to be absent."""
    limiter._cache._seen = BoundedCache(2)
    keys = {entity: Key(entity, "r") for entity in ("a", "b", "c")}

    def known() -> str:
        memory = limiter._cache._seen
        return "".join(entity for entity, key in keys.items() if key in memory)

    for entity in ("a", "b"):
        await limiter.acquire(entity, "r", {"n": 1})
    assert limiter._cache.recall(keys["a"]) is not None
    await limiter.acquire("c", "r", {"n": 1})
    assert known() == "ac"
    await limiter.acquire("a", "r", {"n": 1})
    await limiter.acquire("b", "r", {"n": 1})
    assert known() == "ab"
    limiter._cache.remember(keys["a"], None)
    assert known() == "b"
