"""Clocks that differ: a client that rotates instances and respects each wait gets its rate.

An instance with a slow clock must not make a caller wait until that clock has caught up. Still no
window may admit more than promise 3 allows.
"""

import itertools

import pytest

from limiter.callers import FAILED, SKEW_MS, Admission, Scene, make_scene
from limiter.simulation import Weather, World, excess, store_in
from pricekeeper.limiter import Lease, Limit
from pricekeeper.limiter.taker import HOLD_MS
from slowness import slow

FAST = Limit("n", 20, 50, 1_000)
DEEP = Limit("n", 400, 50, 1_000)
ODD = Limit("n", 7, 3, 777)
SECONDS = 15


async def go_round(scene: Scene, first: int, until_ms: int) -> int:
    """Ask one instance after another, wait for each `retry_after_ms`, and count the grants."""
    world, got = scene.world, 0
    turns = itertools.count(first)
    while world.now_ms < until_ms:
        instance = scene.instances[next(turns) % len(scene.instances)]
        try:
            outcome = await instance.limiter.try_acquire("e", "r", {"n": 1})
        except FAILED:
            continue
        if isinstance(outcome, Lease):
            got += 1
            moment_ms = outcome.granted_at_ms - instance.clock.wrong_by_ms
            scene.admissions.append(Admission(moment_ms, world.now_ms, {"n": 1}, ("e",)))
            await world.sleep_ms(0)
        else:
            assert outcome.retry_after_ms is not None
            await world.sleep_ms(outcome.retry_after_ms)
    return got


@pytest.mark.slow
@pytest.mark.parametrize(
    "delay_ms", [0, 4]
)  # a lease is two round trips: more is slower than the rate
@pytest.mark.parametrize(
    ("clients", "first"),
    [(1, 0), (1, 1), (3, 1)],
    ids=["a fast clock begins", "a slow clock begins", "three clients"],
)
@pytest.mark.parametrize("limit", [FAST, DEEP, ODD], ids=["fast", "deep", "odd"])
async def test_a_client_that_rotates_instances_gets_its_rate(
    limit: Limit, clients: int, first: int, delay_ms: int
) -> None:
    """It gets one capacity and at least 95 % of the refill, and never more than the bound."""
    world = World(3)
    async with store_in(world) as store:
        scene = make_scene(world, store, [limit], Weather(delay_ms_max=delay_ms))
        scene.instances[2].clock.wrong_by_ms = 0
        until_ms = world.now_ms + SECONDS * 1_000
        got: list[int] = []

        async def live(begin: int) -> None:
            got.append(await go_round(scene, begin, until_ms))

        await world.run(*(live(first + client) for client in range(clients)))
        await scene.close()
    promised = SECONDS * 1_000 * limit.refill_amount / limit.refill_period_ms

    assert sum(got) >= limit.capacity + 0.95 * promised
    assert excess(scene.admitted("n", "e"), limit) <= (
        limit.capacity_units + limit.units_per_ms * (2 * SKEW_MS + HOLD_MS)
    )


@pytest.mark.parametrize("limit", [FAST, *slow(DEEP)], ids=["fast", "deep"])
async def test_a_bucket_that_a_slow_clock_has_drained_is_no_exception(limit: Limit) -> None:
    """The fast clock sees refill that the slow one does not, and nothing has overflowed.

    The fast one takes that first; after that, no wait of the slow one may include it again.
    """
    world = World(4)
    async with store_in(world) as store:
        scene = make_scene(world, store, [limit], Weather())
        drained = scene.instances[1].limiter
        assert (await drained.try_acquire("e", "r", {"n": limit.capacity})).granted
        got = 0

        async def live() -> None:
            nonlocal got
            got = await go_round(scene, 1, world.now_ms + SECONDS * 1_000)

        await world.run(live())
        await scene.close()

    assert got >= 0.95 * SECONDS * 1_000 * limit.refill_amount / limit.refill_period_ms
