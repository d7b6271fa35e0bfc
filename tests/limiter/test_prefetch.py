"""Prefetching: blocks of tokens in memory, and what is promised about them."""

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from limiter.callers import Saturating, make_scene
from limiter.hooked import Hooked
from limiter.simulation import InstanceClock, Weather, World, excess, store_in
from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.limiter import Limit, Limiter, prefetch
from pricekeeper.limiter.prefetch import BLOCKS_MAX
from pricekeeper.storage import Item, Store, Update
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
    assert (limiter.meter.granted, limiter.meter.prefetched) == (51, 48)
    await limiter.close()
    assert (await limiter.peek(entity, "r"))["n"].consumed == 51


async def test_the_next_block_is_there_before_this_one_is_spent(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """It is fetched while the last quarter lasts, once, and no request waits for it."""
    limits = [Limit.per_day("n", 1_000)]
    limiter = make()
    request = limiter.prepare(entity, "r", {"n": 1}, limits=limits, prefetch=20)
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
    got = [sum(caller.got for caller in callers[index : index + 2]) for index in (0, 2, 4, 6)]

    assert sum(got) >= 0.99 * 100 * 5
    assert min(got) >= 0.6 * sum(got) / 4


async def test_changed_limits_reach_whoever_is_served_from_memory(
    store: Store, clock: ManualClock, entity: str
) -> None:
    """At the next request, though blocks are fetched ahead all the time."""
    allowed = 1_000
    limiter = Limiter(
        store, clock=clock, limits=lambda *_: [Limit.per_day("n", allowed)], prefetch=20
    )
    for _ in range(50):
        await limiter.acquire(entity, "r", {"n": 1})
        await limiter._completion.drain()
    allowed = 100
    got = 0
    while (await limiter.try_acquire(entity, "r", {"n": 1})).granted:
        got += 1
        assert got <= 100, "the old limits are still in force"
        await limiter._completion.drain()
    await limiter.close()

    assert got >= 90


@pytest.mark.parametrize("way", ["alone", "block", "name"])
async def test_a_lease_can_be_charged_for_every_limit_of_its_chain(
    store: Store, clock: ManualClock, entity: str, way: str
) -> None:
    """Also for those that only a parent has, and back again, whichever way it was taken."""
    org = f"{entity}-org"
    limits = {entity: [Limit.per_day("requests", 100)], org: [Limit.per_day("tokens", 1_000)]}
    ahead = 10 if way == "block" else 1
    limiter = Limiter(store, clock=clock, limits=lambda one, _: limits[one], prefetch=ahead)
    for _ in range(3):  # with blocks: makes the bucket, takes a block, is served from it
        name = uuid.uuid4() if way == "name" else None
        lease = await limiter.acquire(entity, "r", {"requests": 1}, parents=[org], lease_id=name)
        await lease.adjust({"tokens": 50})
        await lease.adjust({"tokens": -20})
    await limiter.close()

    own, orgs = await limiter.peek_many([(entity, "r"), (org, "r")])
    assert (own["requests"].consumed, orgs["tokens"].consumed) == (3, 90)


@pytest.mark.parametrize("turns", range(4))
async def test_who_comes_just_as_a_block_arrives_is_served_from_it(turns: int) -> None:
    """Also if it has looked a turn of the event loop too early: one write for both."""
    replied, go_on = asyncio.Event(), asyncio.Event()
    calls = []

    class Held(Hooked):
        async def update(self, operation: Update) -> Item:
            item = await super().update(operation)
            calls.append(operation)
            replied.set()
            await go_on.wait()
            return item

    world = World(1)
    async with store_in(world) as inner:
        limiter = Limiter(Held(inner), clock=InstanceClock(world), limits=[DAILY], prefetch=10)
        await limiter.acquire("e", "r", {"n": 1})  # makes the bucket, by a put
        one = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 1}))
        await replied.wait()
        other = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 1}))
        for _ in range(turns):
            await asyncio.sleep(0)
        go_on.set()

        assert all(outcome.granted for outcome in await asyncio.gather(one, other))
        assert len(calls) == 1
        await limiter.close()


async def test_many_buckets_are_given_back_at_the_same_time() -> None:
    """An instance that had to do with many of them keeps none of their tokens for long."""
    world = World(1)
    async with store_in(world) as store:
        scene = make_scene(
            world, store, [DAILY], Weather(delay_ms_max=25), instances=1, prefetch=20
        )
        limiter = scene.instances[0].limiter
        entities = [f"e{index}" for index in range(100)]

        async def use(entity: str) -> None:
            for _ in range(2):
                await limiter.acquire(entity, "r", {"n": 1})

        await world.run(*(use(entity) for entity in entities))
        await world.pass_ms(HOLD_MS + 4 * 25)
        assert sum([await consumed(store, world, entity) for entity in entities]) == 200
        await scene.close()


async def test_what_cannot_be_given_back_is_counted_though_the_limiter_is_closed_meanwhile() -> (
    None
):
    """The sweeper has begun with it, and nobody waits for the sweeper."""
    world = World(1)
    async with store_in(world) as inner:
        hooked = Hooked(inner)
        limiter = Limiter(hooked, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
        for _ in range(2):
            await limiter.acquire("e", "r", {"n": 1})
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def hold_up_and_fail(_: str) -> None:
            arrived.set()
            await go_on.wait()
            raise StoreUnavailableError("away")

        hooked.before = hold_up_and_fail
        await world.pass_ms(HOLD_MS)
        await arrived.wait()
        closing = asyncio.create_task(limiter.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing

        assert limiter.meter.refunds_lost == 1


async def consumed(store: Store, world: World, entity: str) -> int:
    """What was taken from a bucket and not given back, as one who is not on the wire sees it."""
    looking = Limiter(store, clock=InstanceClock(world), limits=[DAILY])
    return (await looking.peek(entity, "r"))["n"].consumed


THOUSANDS = Limit.per_day("n", 10_000)


async def test_the_oldest_block_is_spent_first_and_only_the_newest_has_a_next_one(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """What is held longest is spent before it has to go back."""
    limiter = make([THOUSANDS], prefetch=20)
    for tokens in (1, 1, 20):  # the last one is more than is left of a block
        await limiter.acquire(entity, "r", {"n": tokens})
    [queue] = limiter._pool._queues.values()
    assert [block.left["n"] for block in queue.blocks] == [19, 380]
    meter.clear()
    for _ in range(16):
        await limiter.acquire(entity, "r", {"n": 1})
    await limiter._completion.drain()

    assert [block.left["n"] for block in queue.blocks] == [3, 380]
    assert meter.calls == {}
    assert (limiter.meter.granted, limiter.meter.prefetched) == (3 + 16, 16)
    await limiter.close()
    assert (await limiter.peek(entity, "r"))["n"].consumed == 1 + 1 + 20 + 16


async def test_at_most_two_blocks_are_held_for_one_kind_of_request(
    make: Callable[..., Limiter], entity: str
) -> None:
    """The oldest makes room: it goes back and nobody is served from it any more."""
    limiter = make([THOUSANDS], prefetch=4)
    for tokens in (1, 1, 4, 13, 40):
        await limiter.acquire(entity, "r", {"n": tokens})
        [queue] = limiter._pool._queues.values() or [None]
        assert queue is None or len(queue.blocks) <= BLOCKS_MAX
    await limiter._completion.drain()

    assert (await limiter.peek(entity, "r"))["n"].consumed == 1 + 1 + 4 + 13 + 40 + 3 * (13 + 40)
    await limiter.close()
    assert (await limiter.peek(entity, "r"))["n"].consumed == 1 + 1 + 4 + 13 + 40


class Held(Hooked):
    """Holds up every write, once it is told to."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None
        self.before = self._hold_up

    async def _hold_up(self, name: str) -> None:
        self.calls.append(name)
        if self.gate is not None:
            await self.gate.wait()


@pytest.fixture
async def world() -> World:
    return World(1)


@pytest.fixture
async def held(world: World) -> AsyncIterator[Held]:
    async with store_in(world) as inner:
        yield Held(inner)


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_block_that_arrives_after_the_close_goes_back_at_once(
    held: Held, world: World
) -> None:
    """Who asked for it is served; the rest is not kept for anybody."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    await limiter.acquire("e", "r", {"n": 1})
    held.gate = asyncio.Event()
    asking = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 1}))
    await turns()
    closing = asyncio.create_task(limiter.close())
    await turns()
    held.gate.set()
    await closing

    assert (await asking).granted
    assert limiter._pool._queues == {}
    assert (await limiter.peek("e", "r"))["n"].consumed == 2


async def test_nothing_is_fetched_ahead_for_a_limiter_that_is_being_closed(
    held: Held, world: World
) -> None:
    """It would only have to go back."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    request = limiter.prepare("e", "r", {"n": 1}, limits=[DAILY], prefetch=20)
    for _ in range(2):
        await request.take()
    held.calls.clear()
    assert all(request.take_at_once() for _ in range(16))  # the next one is about to be fetched
    await limiter.close()

    assert held.calls == ["update"]
    assert (await limiter.peek("e", "r"))["n"].consumed == 18


async def test_no_two_blocks_are_fetched_at_the_same_time(held: Held, world: World) -> None:
    """While one is under way nobody fetches ahead, and who finds too little waits for it."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[THOUSANDS], prefetch=20)
    for _ in range(2):
        await limiter.acquire("e", "r", {"n": 1})
    held.calls.clear()
    held.gate = asyncio.Event()
    big = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 20}))
    await turns()
    for _ in range(16):
        assert (await limiter.try_acquire("e", "r", {"n": 1})).granted
    await turns()
    assert held.calls == ["update"]
    held.gate.set()
    await big
    await limiter._completion.drain()
    assert held.calls == ["update"]
    await limiter.close()


async def test_who_finds_too_little_waits_for_what_is_fetched_ahead(
    held: Held, world: World
) -> None:
    """Instead of fetching one more."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    for _ in range(2):
        await limiter.acquire("e", "r", {"n": 1})
    held.calls.clear()
    held.gate = asyncio.Event()
    for _ in range(19):
        assert (await limiter.try_acquire("e", "r", {"n": 1})).granted
    waiting = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 1}))
    await turns()
    held.gate.set()

    assert (await waiting).granted
    assert held.calls == ["update"]
    await limiter.close()
    assert (await limiter.peek("e", "r"))["n"].consumed == 22


async def test_what_is_held_goes_back_every_time_that_an_instance_is_idle(
    held: Held, world: World
) -> None:
    """And it remembers nothing of those it has not served for a while."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    await limiter.acquire("e", "r", {"n": 1})
    for index in (1, 2, 3):
        await limiter.acquire("e", "r", {"n": 1})
        assert len(limiter._pool._queues) == 1
        await world.pass_ms(HOLD_MS + 1)
        assert (await limiter.peek("e", "r"))["n"].consumed == 1 + index
        assert limiter._pool._queues == {}
    await limiter.close()


async def test_there_is_a_bound_to_what_blocks_are_held_for(
    held: Held, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served without, as if they had not asked for blocks."""
    monkeypatch.setattr(prefetch, "KINDS_MAX", 2)
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    for entity in ("a", "b", "c"):
        for _ in range(3):
            await limiter.acquire(entity, "r", {"n": 1})
    stands = await limiter.peek_many([(entity, "r") for entity in ("a", "b", "c")])

    assert [one["n"].consumed for one in stands] == [21, 21, 3]
    await limiter.close()


async def test_a_block_is_held_for_so_long_since_it_was_asked_for(held: Held, world: World) -> None:
    """Not since the answer came: the bucket may have granted it long before."""
    limiter = Limiter(held, clock=InstanceClock(world), limits=[DAILY], prefetch=20)
    await limiter.acquire("e", "r", {"n": 1})
    held.gate = asyncio.Event()
    asking = asyncio.create_task(limiter.try_acquire("e", "r", {"n": 1}))
    await turns()
    world.now_ms += HOLD_MS
    held.gate.set()
    await asking
    await limiter.acquire("e", "r", {"n": 1})

    assert limiter.meter.prefetched == 0
    await limiter.close()
    assert (await limiter.peek("e", "r"))["n"].consumed == 3


async def test_a_denial_costs_no_more_than_without_blocks(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """A bucket that has nothing to spare is not asked for a block first."""
    limiter = make([DAILY], prefetch=20)
    await limiter.acquire(entity, "r", {"n": 100})
    meter.clear()

    assert not (await limiter.try_acquire(entity, "r", {"n": 1})).granted
    assert meter.calls == {"update": 1}
    await limiter.close()


async def test_nothing_is_fetched_ahead_of_a_block_that_is_gone_by_then(
    held: Held, world: World
) -> None:
    """It has expired between being spent and that: nobody would look for the next one there."""

    class Lagging(InstanceClock):
        lag_ms = 0

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() - self.lag_ms

    clock = Lagging(world)
    limiter = Limiter(held, clock=clock)
    request = limiter.prepare("e", "r", {"n": 1}, limits=[DAILY], prefetch=20)
    for _ in range(2):
        await request.take()
    await turns()
    held.calls.clear()
    clock.lag_ms = 1
    world._wake_next()  # the sweeper, whose turn is before that of what is fetched ahead
    assert all(request.take_at_once() for _ in range(16))
    clock.lag_ms = 0
    await limiter._completion.drain()

    assert held.calls == ["update"]
    assert (await limiter.peek("e", "r", limits=[DAILY]))["n"].consumed == 18
    await limiter.close()


async def test_a_block_serves_only_who_names_the_same_limits(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Who names one with nothing insists on no debt of it, which a block can't know."""
    limiter = make([DAILY, Limit.per_day("m", 10)], prefetch=10)
    using = await limiter.acquire(entity, "r", {"m": 10}, prefetch=1)
    for _ in range(2):
        await limiter.acquire(entity, "r", {"n": 1})
    await using.adjust({"m": 1})

    assert not (await limiter.try_acquire(entity, "r", {"n": 1, "m": 0})).granted
    assert (await limiter.try_acquire(entity, "r", {"n": 1})).granted
    await limiter.close()


async def test_what_a_lease_has_told_of_the_limits_it_tells_again(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Also one out of memory, that works it out when it is first asked."""
    limiter = make([DAILY], prefetch=10)
    for _ in range(3):
        lease = await limiter.acquire(entity, "r", {"n": 1})
    told = lease.limits
    assert told["n"].remaining == 89
    await limiter.acquire(entity, "r", {"n": 1}, prefetch=1)

    assert lease.limits is told
    await limiter.close()
