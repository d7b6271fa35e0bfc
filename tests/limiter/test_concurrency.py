"""Real concurrency on every store: many tasks, one bucket, exact to the token."""

import asyncio
import uuid
from collections.abc import Callable, Sequence

import pytest

from pricekeeper.errors import ContendedError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX
from pricekeeper.storage import Add, Key, Put, Store, Update
from pricekeeper.storage.tables import RATE_BUCKETS
from stores import ShiftedClock

TASKS = 100
FIFTY = Limit.per_day("n", 50)


@pytest.fixture
def clock() -> ShiftedClock:
    """Real time: pauses between attempts are real, too."""
    return ShiftedClock()


async def close(limiters: Sequence[Limiter]) -> None:
    """Close them, so that they return their blocks."""
    await asyncio.gather(*(one.close() for one in limiters))


@pytest.mark.parametrize("instances", [1, 4])
async def test_a_hundred_tasks_get_exactly_what_is_there(
    make: Callable[..., Limiter], entity: str, instances: int
) -> None:
    """From a bucket that is new to all: fifty are granted, the others denied."""
    limiters = [make([FIFTY]) for _ in range(instances)]
    outcomes = await asyncio.gather(
        *(limiters[task % instances].try_acquire(entity, "r", {"n": 1}) for task in range(TASKS))
    )

    assert sum(outcome.granted for outcome in outcomes) == 50
    status = (await limiters[0].peek(entity, "r"))["n"]
    assert (status.remaining, status.consumed) == (0, 50)


async def test_a_hundred_tasks_on_a_bucket_that_is_always_full(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Every write settles refill; a request that loses a race is granted anyway."""
    limiters = [make([Limit("n", 100_000, 1_000_000, 1_000)]) for _ in range(4)]
    for _ in range(3):
        outcomes = await asyncio.gather(
            *(limiters[task % 4].try_acquire(entity, "r", {"n": 1}) for task in range(TASKS))
        )
        assert all(outcome.granted for outcome in outcomes)

    await close(limiters)
    assert (await limiters[0].peek(entity, "r"))["n"].consumed == 3 * TASKS


async def test_the_count_of_what_was_consumed_is_exact(
    make: Callable[..., Limiter], entity: str
) -> None:
    """With concurrent acquires, adjustments and releases, some of named leases."""
    limiters = [make([Limit.per_second("n", 10_000)]) for _ in range(4)]

    async def use(task: int) -> int:
        limiter = limiters[task % 4]
        name = uuid.uuid4() if task % 5 == 0 else None
        lease = await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
        if task % 2:
            await lease.adjust({"n": task % 7 - 3})
        if task % 3 == 0:
            await lease.release()
        return sum(lease.held.values())

    held = await asyncio.gather(*(use(task) for task in range(TASKS)))

    await close(limiters)
    assert (await limiters[0].peek(entity, "r"))["n"].consumed == sum(held)


async def test_a_hundred_tasks_share_a_parent(make: Callable[..., Limiter], entity: str) -> None:
    """Ten apps with twenty each, an organisation with fifty: fifty are granted."""
    limits = {"app": 20, "org": 50}
    limiters = [
        make(lambda one, _: [Limit.per_day("n", limits[one.rpartition("/")[2][:3]])])
        for _ in range(2)
    ]
    outcomes = await asyncio.gather(
        *(
            limiters[task % 2].try_acquire(
                f"{entity}/app{task % 10}", "r", {"n": 1}, parents=[f"{entity}/org"]
            )
            for task in range(TASKS)
        )
    )

    assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 50
    assert all(
        violation.entity == f"{entity}/org"
        for outcome in outcomes
        if isinstance(outcome, Denial)
        for violation in outcome.violations
    )
    await close(limiters)
    apps = await limiters[0].peek_many([(f"{entity}/app{app}", "r") for app in range(10)])
    assert sum(app["n"].consumed for app in apps) == 50


async def test_an_acquire_that_loses_every_race_raises_contended_and_is_not_denied(
    make: Callable[..., Limiter], store: Store, clock: ShiftedClock, entity: str
) -> None:
    """The bucket has enough, but another instance changes it before every attempt."""
    limiter = make([Limit.per_second("n", 10)])
    await limiter.acquire(entity, "r", {"n": 1})

    class Rival:
        """Moves ``rf`` before every write."""

        def __init__(self) -> None:
            self.moved = 0

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def update(self, operation: Update) -> object:
            self.moved += 1
            key = Key(entity, "r")
            await store.update(Update(RATE_BUCKETS, key, (Add("rf", -1),)))
            return await store.update(operation)

        async def put(self, operation: Put) -> None:
            await store.put(operation)

    rival = Rival()
    victim = Limiter(rival, clock=clock, limits=[Limit.per_second("n", 10)])  # type: ignore[arg-type]
    with pytest.raises(ContendedError):
        await victim.acquire(entity, "r", {"n": 1})
    assert rival.moved == ATTEMPTS_MAX


async def test_adjustments_that_race_each_other_stop_at_the_bound_together(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Twelve leases on four instances; each adjustment alone would fit."""
    instances = [make([Limit.per_day("n", 10)]) for _ in range(4)]
    leases = [
        await instances[place % 4].acquire(entity, "r", {"n": 0}, lease_id=uuid.uuid4())
        for place in range(12)
    ]
    await asyncio.gather(*(lease.adjust({"n": 9}, adjustment_id=uuid.uuid4()) for lease in leases))

    assert (await instances[0].peek(entity, "r"))["n"].remaining == -40
    assert sum(lease.held["n"] for lease in leases) == 10 + 40
    for lease in leases:
        await lease.release()
    assert (await instances[0].peek(entity, "r"))["n"].consumed == 0


async def test_two_instances_that_use_one_id_for_two_amounts_apply_one_of_them(
    make: Callable[..., Limiter], entity: str
) -> None:
    """The second gets an error, although neither instance knew of the other."""
    name, same = uuid.uuid4(), uuid.uuid4()
    limiter, other = make([FIFTY]), make([FIFTY])
    leases = [await one.acquire(entity, "r", {"n": 10}, lease_id=name) for one in (limiter, other)]
    outcomes = await asyncio.gather(
        *(
            lease.adjust({"n": tokens}, adjustment_id=same)
            for lease, tokens in zip(leases, (5, 7), strict=True)
        ),
        return_exceptions=True,
    )

    assert sorted(type(one).__name__ for one in outcomes) == ["ConflictError", "NoneType"]
    await close([limiter, other])
    consumed = (await limiter.peek(entity, "r"))["n"].consumed
    assert consumed == (15 if outcomes[0] is None else 17)


async def test_adjustments_of_one_lease_from_two_instances_are_all_counted(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Each write builds on the previous one, also on another instance's."""
    name, instances = uuid.uuid4(), [make([FIFTY]) for _ in range(5)]
    leases = [await one.acquire(entity, "r", {"n": 10}, lease_id=name) for one in instances]
    await asyncio.gather(*(lease.adjust({"n": 3}) for lease in leases))

    assert await instances[0].adjust(entity, name, {"n": 0}, adjustment_id=uuid.uuid4()) == {
        "n": 25
    }
    assert (await instances[0].peek(entity, "r"))["n"].remaining == 25


async def test_resets_among_racing_acquires_grant_one_capacity_each_at_most(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Six instances take and give back while one resets; none fails, no token is created."""
    instances = [make([FIFTY]) for _ in range(6)]
    granted = 0

    async def saturate(limiter: Limiter, place: int) -> None:
        nonlocal granted
        for turn in range(20):
            name = uuid.uuid4() if place % 2 else None
            outcome = await limiter.try_acquire(entity, "r", {"n": 2}, lease_id=name)
            if isinstance(outcome, Lease):
                granted += 2
                if turn % 4 == 0:
                    await outcome.release()
                    granted -= 2

    async def reset() -> None:
        for _ in range(2):
            await instances[0].reset(entity)
            await asyncio.sleep(0)

    await asyncio.gather(*(saturate(one, place) for place, one in enumerate(instances)), reset())

    assert granted <= 3 * 50
    assert 0 <= (await instances[0].peek(entity, "r"))["n"].remaining <= 50
