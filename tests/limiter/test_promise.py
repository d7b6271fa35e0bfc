"""Promise 3, both ends, in simulated time: never more than the bound, never less than 99 %.

Every window of every run is looked at. Latency, contention, clocks that are two seconds wrong
either way, cancellations, lost requests and replies, late and doubled copies are all there.
"""

import pytest

from limiter.callers import SKEW_MS, Saturating, Unruly, make_scene
from limiter.simulation import Weather, World, excess, store_in
from pricekeeper.limiter import Limit

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

FAST = Limit("fast", 20, 50, 1_000)
ODD = Limit("fast", 7, 3, 777)
SLOW = Limit("slow", 30, 1_000, 86_400_000)
HUGE = Limit("fast", 5_000, 1_000_000, 60_000)


def bound(limit: Limit, skew_ms: int, late_ms: int = 0) -> int:
    return limit.capacity_units + limit.units_per_ms * (2 * skew_ms + late_ms)


@pytest.mark.parametrize("weather", [STORM, LATENCY, CALM], ids=["storm", "latency", "calm"])
@pytest.mark.parametrize("fast", [FAST, ODD, HUGE], ids=["fast", "odd", "huge"])
@pytest.mark.parametrize("skew_ms", [SKEW_MS, 0])
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_window_admits_more_than_the_bound(
    seed: int, skew_ms: int, fast: Limit, weather: Weather
) -> None:
    """Whatever callers and wires do: admitted <= capacity + rate * (t + 2 * skew)."""
    world = World(seed)
    limits = [fast, SLOW]
    async with store_in(world) as store:
        scene = make_scene(world, store, limits, weather, skew_ms=skew_ms)
        biggest = {"fast": max(2, fast.capacity // 4), "slow": 2}
        callers = [Unruly(scene, instance, biggest) for instance in scene.instances * 4]
        await world.run(*(caller.live(world.now_ms + 15_000) for caller in callers))
        await scene.close()
    for entity in ("e", "org", "root"):
        for limit in limits:
            worst = excess(scene.admitted(limit.name, entity), limit)
            assert worst <= bound(limit, skew_ms)
