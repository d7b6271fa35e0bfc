"""Prefetching: blocks of tokens in memory, and what is promised about them."""

import asyncio
import gc
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from limiter.callers import Saturating, make_scene
from limiter.hooked import Hooked
from limiter.simulation import InstanceClock, Weather, World, excess, store_in
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter

DAILY = Limit.per_day("n", 100)
HOLD_MS = 1_000


async def left(limiter: Limiter, entity: str = "e") -> int:
    return (await limiter.peek(entity, "r"))["n"].remaining


async def spree(limiter: Limiter, entity: str) -> int:
    times = 0
    while (await limiter.try_acquire(entity, "r", {"n": 1})).granted:
        times += 1
    return times


async def test_no_more_is_admitted_than_the_bucket_grants(
    make: Callable[..., Limiter], entity: str
) -> None:
    """What one instance holds in memory is not there for another, and nothing is there twice."""
    one, other = (make([DAILY], prefetch=20) for _ in range(2))
    for _ in range(2):
        await one.acquire(entity, "r", {"n": 1})

    assert await left(one, entity) == 79
    assert await spree(other, entity) == 79
    assert await spree(one, entity) == 19
    assert one.meter.prefetched == 19
    for limiter in (one, other):
        await limiter.close()
    assert (await one.peek(entity, "r"))["n"].consumed == 100


async def test_closing_gives_back_what_was_not_spent(
    make: Callable[..., Limiter], entity: str
) -> None:
    """And from then on nothing is fetched ahead any more."""
    limiter = make([DAILY], prefetch=20)
    for _ in range(5):
        await limiter.acquire(entity, "r", {"n": 1})
    assert await left(limiter, entity) == 79
    await limiter.close()
    assert await left(limiter, entity) == 95

    await limiter.acquire(entity, "r", {"n": 1})
    assert await left(limiter, entity) == 94


async def test_a_lease_outlives_its_block(make: Callable[..., Limiter], entity: str) -> None:
    """What it gives back once the block is gone goes to the bucket."""
    limiter = make([DAILY], prefetch=20)
    leases = [await limiter.acquire(entity, "r", {"n": 1}) for _ in range(5)]
    await limiter.close()
    for lease in leases:
        await lease.release()

    assert await left(limiter, entity) == 100
    assert (await limiter.peek(entity, "r"))["n"].consumed == 0


async def test_a_lease_with_a_name_is_never_out_of_a_block(
    make: Callable[..., Limiter], entity: str
) -> None:
    """It has to be recorded, so that others can release it."""
    limiter, other, name = make([DAILY], prefetch=20), make([DAILY]), uuid.uuid4()
    for _ in range(5):
        await limiter.acquire(entity, "r", {"n": 1})
    await limiter.acquire(entity, "r", {"n": 1}, lease_id=name)

    await other.release(entity, name)
    await limiter.close()
    assert await left(limiter, entity) == 95


async def test_a_block_is_half_of_what_is_there_at_most(
    make: Callable[..., Limiter], entity: str
) -> None:
    """So that others find something, too."""
    limiter = make([DAILY], prefetch=10_000)
    await limiter.acquire(entity, "r", {"n": 1})
    await limiter.acquire(entity, "r", {"n": 1})

    assert await left(limiter, entity) == 99 - 49
    await limiter.close()


async def test_what_does_not_fit_a_block_is_taken_without(
    make: Callable[..., Limiter], entity: str
) -> None:
    """A request for more than is left in memory takes another block, or its own tokens."""
    limiter = make([DAILY], prefetch=3)
    for tokens in (1, 1, 30, 2, 40):
        assert (await limiter.try_acquire(entity, "r", {"n": tokens})).granted
    await limiter.close()

    assert await left(limiter, entity) == 100 - 74


async def test_leases_of_a_block_go_back_to_the_block(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """And take more from it, as long as it lasts: without a write."""
    limiter = make([DAILY], prefetch=10)
    await limiter.acquire(entity, "r", {"n": 1})
    leases = [await limiter.acquire(entity, "r", {"n": 1}) for _ in range(5)]
    meter.clear()
    await leases[0].adjust({"n": 4})
    await leases[1].release()
    await leases[2].release()
    assert meter.calls == {}
    await leases[3].adjust({"n": 50})
    assert meter.calls == {"update": 1}
    await limiter.close()

    assert (await limiter.peek(entity, "r"))["n"].consumed == 1 + 5 + 1 + 51


async def test_blocks_are_taken_from_parents_as_well(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """All or nothing, as any other request."""
    limiter, org = make([DAILY], prefetch=10), f"{entity}-org"
    await limiter.acquire(org, "r", {"n": 70}, prefetch=1)
    meter.clear()
    for _ in range(11):
        await limiter.acquire(entity, "r", {"n": 1}, parents=[org])
    assert meter.calls == {"batch_get": 1, "transact": 2}
    await limiter.close()

    assert await left(limiter, entity) == 89
    assert await left(limiter, org) == 19


async def test_of_many_at_once_one_fetches_and_the_others_wait(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """Fifty tasks, a block of forty-nine: two writes, and the first that made the bucket."""
    limiter = make([Limit.per_day("n", 1_000)], prefetch=49)
    await limiter.acquire(entity, "r", {"n": 1})
    meter.clear()
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(50))
    )

    assert all(outcome.granted for outcome in outcomes)
    assert meter.calls == {"update": 2}
    await limiter.close()
    assert (await limiter.peek(entity, "r"))["n"].consumed == 51


async def test_the_next_block_is_there_before_this_one_is_spent(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """It is fetched while the last quarter lasts, once, and no request waits for it."""
    limits = [Limit.per_day("n", 1_000)]
    limiter = make()
    request = limiter.standing(entity, "r", {"n": 1}, limits=limits, prefetch=20)
    for _ in range(2):
        await request.take()  # makes the bucket, then takes a block
    meter.clear()

    assert all(request.take_at_once() for _ in range(15))
    await limiter._completion.drain()
    assert meter.calls == {}
    assert all(request.take_at_once() for _ in range(2))
    await limiter._completion.drain()
    assert meter.calls == {"update": 1}
    assert all(request.take_at_once() for _ in range(2 + 15))
    await limiter._completion.drain()
    assert meter.calls == {"update": 1}
    await limiter.close()
    assert (await limiter.peek(entity, "r", limits=limits))["n"].consumed == 2 + 15 + 2 + 17


async def test_a_block_that_cannot_be_fetched_ahead_is_missed_by_who_needs_it(
    store: Store,
) -> None:
    """Tried once; what is there is spent; then the store's error is told, and nowhere else."""
    world = World(1)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    async with store_in(world) as inner:
        hooked = Hooked(inner)
        limiter = Limiter(hooked, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
        for _ in range(2):
            await limiter.acquire("e", "r", {"n": 1})
        tried = 0

        async def fail(_: str) -> None:
            nonlocal tried
            tried += 1
            raise StoreUnavailableError("away")

        hooked.before = fail
        for _ in range(19):
            await limiter.acquire("e", "r", {"n": 1})
            await limiter._completion.drain()
        gc.collect()
        assert (tried, complaints) == (1, [])
        with pytest.raises(StoreUnavailableError):
            await limiter.acquire("e", "r", {"n": 1})
        hooked.before = None
        assert (await limiter.try_acquire("e", "r", {"n": 1})).granted
        await limiter.close()
        assert (await limiter.peek("e", "r"))["n"].consumed == 22


async def test_who_waited_for_a_block_that_was_too_small_takes_its_own(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """All of them in one more write, and nobody is left behind those who come later."""
    limiter = make([Limit.per_day("n", 1_000)], prefetch=5)
    await limiter.acquire(entity, "r", {"n": 1})
    meter.clear()
    outcomes = await asyncio.gather(
        *(limiter.try_acquire(entity, "r", {"n": 1}) for _ in range(40))
    )

    assert all(outcome.granted for outcome in outcomes)
    assert meter.calls["update"] <= 10
    await limiter.close()
    assert (await limiter.peek(entity, "r"))["n"].consumed == 41


async def test_an_idle_instance_gives_back_what_it_held() -> None:
    """After ``hold_ms`` at the latest, whether anybody comes or not."""
    world = World(1)
    async with store_in(world) as store:
        limiter = Limiter(store, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
        for _ in range(5):
            await limiter.acquire("e", "r", {"n": 1})
        await world.pass_ms(HOLD_MS - 1)
        assert await left(limiter) == 79
        await world.pass_ms(2)
        assert await left(limiter) == 95
        await limiter.close()


async def test_a_token_is_not_spent_after_it_was_held_too_long(store: Store) -> None:
    """Not even if giving back is slow: the block is closed first."""
    world = World(1)
    async with store_in(world) as inner:
        hooked = Hooked(inner)
        limiter = Limiter(hooked, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
        for _ in range(2):
            await limiter.acquire("e", "r", {"n": 1})
        granted = limiter.meter.prefetched
        world.now_ms += HOLD_MS
        await limiter.acquire("e", "r", {"n": 1})

        assert limiter.meter.prefetched == granted
        await limiter.close()
        assert (await limiter.peek("e", "r"))["n"].consumed == 3


async def test_a_crash_loses_the_block_and_no_more(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Tokens that were in memory refill; they are admitted to nobody."""
    crashed, other = make([DAILY], prefetch=20), make([DAILY])
    for _ in range(5):
        await crashed.acquire(entity, "r", {"n": 1})
    sweeper = crashed._pool._sweeper
    assert sweeper is not None
    sweeper.cancel()  # the process is gone

    assert await left(other, entity) == 100 - 5 - 16
    assert await spree(other, entity) == 79


async def test_tokens_that_cannot_be_given_back_are_lost_and_counted(store: Store) -> None:
    """They are never kept for another try, which could give them back twice."""
    world = World(1)
    async with store_in(world) as inner:
        hooked = Hooked(inner)
        limiter = Limiter(hooked, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
        for _ in range(2):
            await limiter.acquire("e", "r", {"n": 1})

        async def fail(_: str) -> None:
            raise StoreUnavailableError("away")

        hooked.before = fail
        await limiter.close()
        hooked.before = None

        assert limiter.meter.refunds_lost == 1
        assert await left(limiter) == 79


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("skew_ms", [0, 2_000])
async def test_the_bound_is_loosened_by_what_refills_while_a_block_is_held(
    seed: int, skew_ms: int
) -> None:
    """Over every window: admitted <= capacity + rate * (t + 2 * skew + hold)."""
    limit = Limit("n", 50, 100, 1_000)
    world = World(seed)
    async with store_in(world) as store:
        scene = make_scene(
            world,
            store,
            [limit],
            Weather(delay_ms_max=5),
            skew_ms=skew_ms,
            prefetch=10,
            hold_ms=500,
        )

        async def bursts(caller: Saturating) -> None:
            for _ in range(12):
                await caller.live({"n": 1}, world.now_ms + world.random.randrange(300))
                await world.sleep_ms(world.random.randrange(1_200))

        await world.run(
            *(bursts(Saturating(scene, one)) for one in scene.instances for _ in range(2))
        )
        await scene.close()
        assert sum(one.limiter.meter.prefetched for one in scene.instances) > 100
    worst = excess(scene.admitted("n", "e"), limit)
    assert worst <= limit.capacity_units + limit.units_per_ms * (2 * skew_ms + 500)


async def test_instances_that_prefetch_share_and_get_the_whole_rate() -> None:
    """Four that saturate a bucket: at least 99 % of the rate, and a fair part for each."""
    limit = Limit.per_second("n", 100)
    world = World(7)
    async with store_in(world) as store:
        scene = make_scene(
            world, store, [limit], Weather(delay_ms_max=5), instances=4, skew_ms=0, prefetch=10
        )
        callers = [Saturating(scene, one) for one in scene.instances for _ in range(2)]
        until_ms = world.now_ms + 5_000
        await world.run(*(caller.live({"n": 1}, until_ms) for caller in callers))
        await scene.close()
    got = [sum(caller.got for caller in callers[place : place + 2]) for place in (0, 2, 4, 6)]

    assert sum(got) >= 0.99 * 100 * 5
    assert min(got) >= 0.6 * sum(got) / 4
