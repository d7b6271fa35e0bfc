"""Several instances on one organisation's bucket, with slow writes."""

import statistics
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from limiter.conflicting_store import ConflictingStore, Traffic
from limiter.simulation import InstanceClock, World
from memory_store import MemoryStore
from pricekeeper.errors import ContendedError
from pricekeeper.limiter import Lease, Limit, Limiter
from pricekeeper.storage import Key
from pricekeeper.storage.tables import RATE_BUCKETS
from slowness import slow

AMPLE = [Limit.per_minute("rpm", 600_000), Limit.per_minute("tpm", 60_000_000)]
RATE = 500
SATURATED = [Limit.per_minute("rpm", 600_000), Limit.per_second("tpm", 20_000)]


@dataclass
class Service:
    """Instances behind a load balancer, as the REST API uses the limiter."""

    world: World
    store: MemoryStore
    limiters: Sequence[Limiter]
    traffic: Traffic
    latencies_ms: list[int] = field(default_factory=list)
    contended: int = 0

    @property
    def p99_ms(self) -> int:
        return round(statistics.quantiles(self.latencies_ms, n=100)[98])

    async def close(self) -> None:
        await self.world.run(*(one.close() for one in self.limiters))

    async def call(self, turn: int, app: str, begin_ms: int) -> None:
        """Acquire at one instance; adjust at the next one after the model has answered."""
        world, name = self.world, uuid.UUID(int=self.world.random.getrandbits(128))
        await world.sleep_ms(begin_ms)
        first, second = (self.limiters[(turn + step) % len(self.limiters)] for step in (0, 1))
        consume = {"rpm": 1, "tpm": 100}
        try:
            began_ms = world.now_ms
            acquired = await first.try_acquire(app, "r", consume, parents=["org"], lease_id=name)
            self.latencies_ms.append(world.now_ms - began_ms)
            if not acquired.granted:
                return
            await world.sleep_ms(world.random.randint(50, 400))
            began_ms = world.now_ms
            delta = {"tpm": world.random.randint(-60, 20)}
            await second.adjust(app, name, delta, adjustment_id=name)
            self.latencies_ms.append(world.now_ms - began_ms)
        except ContendedError:
            self.contended += 1


def make_service(world: World, limits: Sequence[Limit], instances: int = 3) -> Service:
    traffic, store = Traffic(), MemoryStore(InstanceClock(world))
    limiters = [
        Limiter(
            ConflictingStore(store, world, traffic, instance),
            clock=InstanceClock(world),
            limits=limits,
            jitter=world.random.randrange,
        )
        for instance in range(instances)
    ]
    return Service(world, store, limiters, traffic)


@pytest.mark.parametrize(
    ("limits", "apps", "secs"),
    [(SATURATED, 1, 2), *slow((SATURATED, 10, 4), (AMPLE, 1, 4), (AMPLE, 10, 4))],
    ids=["saturated-1", "saturated-10", "ample-1", "ample-10"],
)
async def test_three_instances_hold_five_hundred_pairs_a_second_on_one_organisation(
    apps: int, limits: list[Limit], secs: int
) -> None:
    """No call raises `ContendedError`; 99 of 100 take less than half a second."""
    world = World(1)
    service = make_service(world, limits)
    await world.run(
        *(
            service.call(turn, f"app-{turn % apps}", turn * 1_000 // RATE)
            for turn in range(secs * RATE)
        )
    )
    await service.close()

    assert service.contended == 0
    assert service.p99_ms < 500
    assert sum(one.meter.lost_races for one in service.limiters) > 0, "the instances never met"
    denied = sum(one.meter.denied for one in service.limiters)
    assert (denied > 0) == (limits is SATURATED)


@pytest.mark.parametrize("instances", [2, *slow(1, 5)])
async def test_every_call_gets_through_with_any_number_of_instances(instances: int) -> None:
    """Each leaves the others enough time; a single instance never waits."""
    world = World(2)
    service = make_service(world, AMPLE, instances)
    await world.run(
        *(service.call(turn, f"app-{turn % 10}", turn * 1_000 // RATE) for turn in range(2 * RATE))
    )
    await service.close()

    assert service.contended == 0
    assert service.p99_ms < (50 if instances == 1 else 1_000)


async def test_many_requests_of_one_process_share_the_writes_of_their_buckets() -> None:
    """Two apps of one organisation: 39 acquires and 320 adjustments, all at the same moment."""
    world = World(3)
    service = make_service(world, AMPLE, instances=1)
    [limiter] = service.limiters
    acquired: list[Lease] = []

    async def acquire(turn: int) -> None:
        name = uuid.UUID(int=world.random.getrandbits(128))
        lease = await limiter.acquire(
            f"app-{turn % 2}", "r", {"rpm": 1, "tpm": 100}, parents=["org"], lease_id=name
        )
        acquired.append(lease)

    await world.run(*(acquire(turn) for turn in range(320)))
    before = Counter(service.traffic.calls)
    assert before["put"] <= 320 + 3
    adjusting = [
        limiter.adjust(one.entity, one.id, {"tpm": 1}, adjustment_id=one.id) for one in acquired
    ]
    await world.run(*adjusting, *(acquire(turn) for turn in range(39)))
    await service.close()

    calls = service.traffic.calls - before
    assert calls["put"] == 39  # leases
    assert calls["update"] <= 320 + 2 * 3 * 3  # marks of leases, and a few writes a bucket
    assert (calls["transact"], calls["batch_get"]) == (0, 0)
    item = await service.store.get(RATE_BUCKETS, Key("org", "r"))
    assert item is not None
    assert item["tc.tpm"] == 359 * 100 + 320
