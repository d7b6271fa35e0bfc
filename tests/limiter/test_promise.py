"""Promise 3, both ends, in simulated time: never more than the bound, never less than 99 %.

The tests check every window of every run, with latency, contention, clocks that are two seconds
wrong either way, cancellations, lost requests and replies, and late and doubled copies.

A clock reading between the request and its answer decides a grant. Counted by that reading, the
bound is exact at any latency. Counted by the time of the write, acquires in flight at the ends of
a window may add the refill of their own duration. A refund counts in the window in which the
store wrote it.
"""

import dataclasses

import pytest

from limiter.callers import SKEW_MS, Saturating, Unruly, make_scene
from limiter.simulation import Weather, World, excess, net_flow, store_in
from pricekeeper.limiter import Limit
from pricekeeper.limiter.taker import HOLD_MS
from pricekeeper.storage import Key
from pricekeeper.storage.tables import RATE_BUCKETS
from slowness import slow

STORM = Weather(
    delay_ms_max=25,
    refused_pct=3,
    request_lost_pct=3,
    reply_lost_pct=3,
    late_pct=3,
    resent_pct=10,
)
LATENCY = Weather(delay_ms_max=25)
CALM = Weather()
WEATHERS = pytest.mark.parametrize(
    "weather", [STORM, LATENCY, CALM], ids=["storm", "latency", "calm"]
)

FAST = Limit("fast", 20, 50, 1_000)
ODD = Limit("fast", 7, 3, 777)
HUGE = Limit("fast", 5_000, 1_000_000, 60_000)
SLOW = Limit("slow", 30, 1_000, 86_400_000)


def bound(limit: Limit, skew_ms: int, under_way_ms: int = 0) -> int:
    return limit.capacity_units + limit.units_per_ms * (2 * skew_ms + HOLD_MS + under_way_ms)


@WEATHERS
@pytest.mark.parametrize("skew_ms", [SKEW_MS, 0])
@pytest.mark.parametrize("fast", [FAST, ODD, HUGE], ids=["fast", "odd", "huge"])
async def test_no_window_admits_more_than_the_bound(
    fast: Limit, skew_ms: int, weather: Weather
) -> None:
    """Counted by the moment of each decision, exactly as promised."""
    world = World(1)
    async with store_in(world) as store:
        scene = make_scene(world, store, [fast, SLOW], weather, skew_ms=skew_ms)
        tokens = {"fast": max(1, fast.capacity // 10)}

        async def bursts(caller: Saturating) -> None:
            for _ in range(4):
                await caller.live(tokens, world.now_ms + world.random.randrange(500))
                await world.sleep_ms(world.random.randrange(1_500))

        await world.run(
            *(bursts(Saturating(scene, one)) for one in scene.instances for _ in range(3))
        )
        await scene.close()
    assert len(scene.admissions) > 10
    assert excess(scene.admitted("fast", "e"), fast) <= bound(fast, skew_ms)


@WEATHERS
@pytest.mark.parametrize("skew_ms", [SKEW_MS, 0])
@pytest.mark.parametrize("fast", [FAST, ODD, HUGE], ids=["fast", "odd", "huge"])
@pytest.mark.parametrize("seed", [1, *slow(2)])
async def test_no_window_lets_more_through_than_the_bound_whatever_callers_do(
    seed: int, fast: Limit, skew_ms: int, weather: Weather
) -> None:
    """Callers cancel, repeat, adjust and release, with parents and names, on every wire.

    Counted by the store's writes, in every bucket: debits whose sender got the reply, minus
    refunds.
    """
    world = World(seed)
    async with store_in(world) as store:
        scene = make_scene(world, store, [fast, SLOW], weather, skew_ms=skew_ms)
        biggest = {"fast": max(2, fast.capacity // 4), "slow": 2}
        callers = [Unruly(scene, one, biggest) for one in scene.instances for _ in range(4)]
        await world.run(*(caller.live(world.now_ms + 8_000) for caller in callers))
        await scene.close()
    under_way_ms = scene.longest_ms if weather.delay_ms_max else 0
    for entity in ("e", "org", "root"):
        for limit in (fast, SLOW):
            worst = excess(net_flow(world, entity, limit), limit)
            assert worst <= bound(limit, skew_ms, under_way_ms)
    if weather is STORM:
        befell = {fault for one in scene.instances for fault in one.wire.befell}
        assert len(befell - {"none"}) >= 3


ONE_AT_A_TIME = Limit("fast", 1, 10, 1_000)
SECONDLY = Limit.per_second("fast", 20)
DAILY = Limit("slow", 10**6, 86_400, 86_400_000)


@pytest.mark.parametrize("skew_ms", [SKEW_MS, 0])
@pytest.mark.parametrize("weather", [LATENCY, *slow(CALM)], ids=["latency", "calm"])
@pytest.mark.parametrize(
    ("fast", "other", "tokens"),
    [
        (FAST, SLOW, {"fast": 1}),
        (FAST, SLOW, {"fast": 7}),
        (ODD, SLOW, {"fast": 1}),
        (ONE_AT_A_TIME, SLOW, {"fast": 1}),
        (SECONDLY, DAILY, {"fast": 1, "slow": 1}),
    ],
    ids=["fast", "big requests", "odd", "one at a time", "beside a slow one"],
)
async def test_saturating_clients_get_their_rate(
    fast: Limit, other: Limit, tokens: dict[str, int], weather: Weather, skew_ms: int
) -> None:
    """At least 99 %, with latency, contention and wrong clocks."""
    world = World(3)
    async with store_in(world) as store:
        scene = make_scene(world, store, [fast, other], weather, skew_ms=skew_ms)
        callers = [Saturating(scene, one) for one in scene.instances for _ in range(2)]
        until_ms = world.now_ms + 10_000
        await world.run(*(caller.live(tokens, until_ms) for caller in callers))
        await scene.close()
    got = sum(caller.got for caller in callers) * tokens["fast"]
    promised = 10_000 * fast.refill_amount / fast.refill_period_ms

    assert got >= 0.99 * promised
    assert excess(scene.admitted("fast", "e"), fast) <= bound(fast, skew_ms)


async def test_saturating_clients_get_their_rate_minus_lost_replies() -> None:
    """In a storm the whole rate is taken; the tokens of lost replies are not admitted."""
    world = World(4)
    async with store_in(world) as store:
        scene = make_scene(world, store, [FAST, SLOW], STORM)
        callers = [Saturating(scene, one) for one in scene.instances for _ in range(2)]
        until_ms = world.now_ms + 10_000
        await world.run(*(caller.live({"fast": 1}, until_ms) for caller in callers))
        await scene.close()
        item = await store.get(RATE_BUCKETS, Key("e", "r"))
    got = sum(caller.got for caller in callers)

    assert item is not None
    assert item["tc.fast"] >= 0.98 * 50 * 10  # less what blocks gave back at the end
    assert 0 < item["tc.fast"] - got < 0.2 * 50 * 10


async def test_the_simulation_itself_is_repeatable() -> None:
    """The same seed gives the same run, so that a failure can be reproduced."""

    async def run() -> list[object]:
        world = World(5)
        async with store_in(world) as store:
            scene = make_scene(world, store, [FAST, SLOW], STORM)
            callers = [Unruly(scene, one, {"fast": 5}) for one in scene.instances]
            await world.run(*(caller.live(world.now_ms + 2_000) for caller in callers))
            await scene.close()
        return [dataclasses.astuple(one) for one in scene.admissions]

    assert await run() == await run()
