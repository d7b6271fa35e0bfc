"""The taker: waiting requests share writes, and each gets its own grant or denial."""

import asyncio
import uuid
from collections.abc import Callable

import pytest

from limiter.balances import left
from limiter.hooked import Hooked
from limiter.simulation import InstanceClock, Weather, Wire, World, store_in
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    OverloadedError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.limiter import Debit, Denial, Lease, Limit, Limiter
from pricekeeper.limiter.taker import HOLD_MS, WAITING_MAX
from pricekeeper.storage import Key, Set, Store, Update
from pricekeeper.storage.tables import RATE_BUCKETS

DAILY = Limit.per_day("n", 100)


async def test_waiting_requests_are_granted_while_the_tokens_last(
    make: Callable[..., Limiter], entity: str
) -> None:
    """In the order of arrival; a request that is too big does not block small ones."""
    limiter = make([DAILY])
    wanted = [60, 50, 30, 200, 10, 1]
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": tokens}) for tokens in wanted)
    )
    assert [one.granted for one in outcomes] == [True, False, True, False, True, False]
    waits = [one.retry_after_ms is None for one in outcomes if isinstance(one, Denial)]
    assert waits == [False, True, False]
    assert await left(limiter, entity) == 0


async def test_requests_with_other_limits_are_served_on_their_own_terms(
    make: Callable[..., Limiter], entity: str
) -> None:
    limiter = make()
    outcomes = await asyncio.gather(
        *(
            limiter.try_acquire(entity, "r", {"n": 50}, limits=[Limit.per_day("n", capacity)])
            for capacity in (100, 200)
        )
    )
    assert all(one.granted for one in outcomes)


async def test_a_caller_that_leaves_while_it_is_denied_gets_its_tokens_back_once(
    hooked: Hooked, clock: ManualClock
) -> None:
    """One bucket has granted, the other one was emptied by another instance."""
    for turns in range(60):
        limiter, other = (Limiter(hooked, clock=clock, limits=[DAILY]) for _ in range(2))
        entity, org = f"e{turns}", f"o{turns}"
        await limiter.acquire(entity, "r", {"n": 50}, parents=[org])
        await other.acquire(org, "r", {"n": 50})
        debits = tuple(Debit(Key(one, "r"), {"n": DAILY}, {"n": 9}) for one in (entity, org))

        async def owe(_: str) -> None:  # so that the denial waits for a write
            hooked.before = None
            limiter.taker.give_back([Debit(Key(org, "r"), {"n": DAILY}, {"n": -1})])  # noqa: B023

        hooked.before = owe
        taking = asyncio.create_task(limiter.taker.take(debits))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_over = taking.done()
        taking.cancel()
        await asyncio.wait([taking])
        await limiter.close()
        assert await left(limiter, entity) == 50, turns
        if is_over:
            break
    assert is_over


@pytest.mark.parametrize("tokens", [{"m": 1}, {"m": 9}, {"m": 1, "n": 1}, {"n": 1, "m": 1}])
async def test_a_denied_request_does_not_fail_one_with_more_limits(
    make: Callable[..., Limiter], entity: str, tokens: dict[str, int]
) -> None:
    """While limits change, callers that wait for a bucket have different ones."""
    limiter = make([DAILY])
    await limiter.acquire(entity, "r", {"n": 100})
    denied, other = await asyncio.gather(
        limiter.try_acquire(entity, "r", {"n": 1}),
        limiter.try_acquire(entity, "r", tokens, limits=[DAILY, Limit.per_day("m", 5)]),
    )
    assert not denied.granted
    assert other.granted == (tokens == {"m": 1})


async def test_if_one_bucket_refuses_the_others_keep_their_tokens(
    make: Callable[..., Limiter], entity: str
) -> None:
    limits = {entity: DAILY, "org": Limit.per_day("n", 5)}
    limiter = make(lambda one, _: [limits.get(one, limits["org"])])
    parents = [f"{entity}-org"]
    assert not (await limiter.try_acquire(entity, "r", {"n": 6}, parents=parents)).granted
    await limiter.close()
    assert await left(limiter, entity) == 100


async def test_a_bucket_that_cannot_be_read_concerns_only_those_who_need_it(
    make: Callable[..., Limiter], store: Store, entity: str
) -> None:
    """The other apps of its organisation are served."""
    limiter, org = make([DAILY]), f"{entity}-org"
    await limiter.acquire(entity, "r", {"n": 1}, parents=[org])
    await store.update(Update(RATE_BUCKETS, Key(entity, "r"), (Set("rf", "yesterday"),)))
    broken, served = await asyncio.gather(
        *(make([DAILY]).try_acquire(one, "r", {"n": 1}, parents=[org]) for one in (entity, "e")),
        return_exceptions=True,
    )
    assert isinstance(broken, UnreadableItemError)
    assert isinstance(served, Lease)


async def test_a_failure_is_raised_to_all_waiting_requests_and_the_next_one_is_served(
    hooked: Hooked, clock: ManualClock
) -> None:
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])

    async def fail(_: str) -> None:
        raise StoreUnavailableError("away")

    hooked.before = fail
    outcomes = await asyncio.gather(
        *(limiter.try_acquire("e", "r", {"n": 1}) for _ in range(5)), return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [StoreUnavailableError] * 5
    assert len({id(one) for one in outcomes}) == 5
    hooked.before = None
    assert (await limiter.try_acquire("e", "r", {"n": 100})).granted


async def test_a_full_queue_refuses_one_more_and_no_other_bucket(
    hooked: Hooked, clock: ManualClock
) -> None:
    limiter, go_on = (
        Limiter(hooked, clock=clock, limits=[Limit.per_day("n", 10**6)]),
        asyncio.Event(),
    )

    async def hold_up(_: str) -> None:
        await go_on.wait()

    hooked.before = hold_up
    request = limiter.prepare("e", "r", {"n": 1})
    first = asyncio.create_task(request.take())
    await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(request.take()) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await request.take()
    other = asyncio.create_task(limiter.prepare("other", "r", {"n": 1}).take())
    await asyncio.sleep(0)
    go_on.set()
    hooked.before = None
    outcomes = await asyncio.gather(first, other, *waiting)
    assert not any(isinstance(one, Denial) for one in outcomes)


async def test_the_queue_is_bounded_also_while_others_keep_winning(
    hooked: Hooked, clock: ManualClock
) -> None:
    options = {"limits": [Limit.per_day("n", 10**6)], "jitter": lambda _: 0}
    limiter = Limiter(hooked, clock=clock, **options)  # type: ignore[arg-type]
    request, waiting = limiter.prepare("e", "r", {"n": 1}), list[asyncio.Task[object]]()

    async def lose(name: str) -> None:
        if name == "put":
            if len(waiting) < 3 * WAITING_MAX:
                waiting.extend(asyncio.create_task(request.take()) for _ in range(WAITING_MAX))
            await asyncio.sleep(0)
            raise ContendedError("others were quicker")

    hooked.before = lose
    with pytest.raises(ContendedError):
        await request.take()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, OverloadedError) for one in outcomes) >= WAITING_MAX


async def test_a_caller_that_leaves_the_queue_leaves_no_tokens_taken(
    hooked: Hooked, clock: ManualClock
) -> None:
    """At any turn of the event loop."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    await limiter.acquire("e", "r", {"n": 1})
    for turns in range(20):
        task = asyncio.create_task(limiter.prepare("e", "r", {"n": 5}).take())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await limiter.close()
        if was_done:
            break
        assert await left(limiter, "e") == 99, turns


async def test_a_lease_tells_the_limits_right_after_its_grant(
    make: Callable[..., Limiter], entity: str
) -> None:
    limiter = make([DAILY])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await limiter.acquire(entity, "r", {"n": 30})
    assert lease.limits["n"].remaining == 90


async def test_two_requests_for_one_lease_get_it_though_it_takes_the_whole_bucket(
    make: Callable[..., Limiter], entity: str
) -> None:
    limiter, name = make([DAILY]), uuid.uuid4()
    one, other = await asyncio.gather(
        *(limiter.acquire(entity, "r", {"n": 100}, lease_id=name) for _ in range(2))
    )
    assert one.id == other.id
    assert await left(limiter, entity) == 0


async def test_a_block_goes_back_after_its_time_and_on_close() -> None:
    """By the monotonic clock; the next request is not served from it."""
    world = World(1)
    async with store_in(world) as store:
        clock = InstanceClock(world)
        limiter = Limiter(Wire(store, world, Weather()), clock=clock, limits=[DAILY])
        request = limiter.prepare("e", "r", {"n": 1}, ahead=10)
        for end in ("time", "close"):
            await world.run(request.take())
            await world.run(request.take())
            assert request.take_at_once()
            if end == "time":
                await world.pass_ms(3 * HOLD_MS)
            else:
                await world.run(limiter.close())
            assert not request.take_at_once()
        assert await left(limiter, "e") == 100 - 6


@pytest.mark.parametrize("ahead", [0, 10])
async def test_a_block_is_taken_only_by_a_request_that_asks_for_one_or_meets_others(
    make: Callable[..., Limiter], entity: str, ahead: int
) -> None:
    limiter = make([DAILY])
    request = limiter.prepare(entity, "r", {"n": 1}, ahead=ahead)
    for _ in range(2):
        await request.take()
    assert await left(limiter, entity) == 98 - ahead
    await limiter.close()
    assert await left(limiter, entity) == 98
