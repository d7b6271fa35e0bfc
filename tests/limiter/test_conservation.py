"""No token is lost or created: in the end, the buckets lack exactly what the leases hold.

The wire delays but loses nothing. Callers give up at any moment, adjust, release or keep their
leases, from memory or not, with parents and with names.
"""

import asyncio
import contextlib
import uuid
from dataclasses import dataclass, field

import pytest

from limiter.callers import Instance, Scene, make_scene
from limiter.simulation import InstanceClock, Weather, World, store_in
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.limiter import Lease, Limit, Limiter
from pricekeeper.limiter.items import lease_key, lease_of
from pricekeeper.storage import Store
from pricekeeper.storage.tables import RATE_BUCKETS

WIDE = [Limit("fast", 200, 500, 1_000), Limit("slow", 10_000, 1_000, 86_400_000)]
TIGHT = [Limit("fast", 25, 60, 1_000), Limit("slow", 60, 1_000, 86_400_000)]


@dataclass
class Ledger:
    """Every granted lease, and the names of leases whose caller gave up waiting."""

    leases: list[tuple[Lease, tuple[str, ...]]] = field(default_factory=list)
    given_up: list[uuid.UUID] = field(default_factory=list)

    async def held(self, store: Store, entity: str, limit: str) -> int:
        """Sum the records of the leases: a caller that left may not know its own."""
        total = 0
        for lease, chain in self.leases:
            item = await store.get(RATE_BUCKETS, lease_key("e", lease.id))
            record = lease_of("e", lease.id, item)
            assert record is not None
            if entity in chain and not record.released:
                total += record.held.get(limit, 0)
        return total


async def live(
    scene: Scene, instance: Instance, ledger: Ledger, until_ms: int, more_max: int
) -> None:
    world, dice = scene.world, scene.world.random
    while world.now_ms < until_ms:
        tokens = {name: dice.randint(0, 5) for name in dice.sample(["fast", "slow"], 2)[:1]}
        parents = ("org", "root")[: dice.choice([0, 0, 1, 2])]
        name = uuid.UUID(int=dice.getrandbits(128)) if dice.random() < 0.2 else None
        asking = asyncio.create_task(
            instance.limiter.try_acquire("e", "r", tokens, parents=parents, lease_id=name)
        )
        if not await patient(world, asking, 0.3):
            ledger.given_up += [name] if name else []
            continue
        lease = asking.result()
        if not isinstance(lease, Lease):
            await world.sleep_ms(dice.randrange(60))
            continue
        ledger.leases.append((lease, ("e", *parents)))
        await world.sleep_ms(dice.choice([0, 0, 0, 1, 5, 100, 400]))
        step = dice.random()
        if step < 0.3:
            await patient(world, asyncio.create_task(lease.release()), 0.2)
        elif step < 0.6:
            delta = {limit: dice.randint(-count, more_max) for limit, count in lease.held.items()}
            await patient(world, asyncio.create_task(lease.adjust(delta)), 0.2)


async def patient(world: World, task: "asyncio.Task[object]", impatience: float) -> bool:
    """Wait for it, or give up after a while. Return whether it succeeded."""
    if world.random.random() < impatience:
        await world.sleep_ms(world.random.randrange(30))
        task.cancel()
    try:
        await task
    except (asyncio.CancelledError, ContendedError):
        return False
    return True


@pytest.mark.parametrize(
    ("limits", "more_max"), [(WIDE, 6), (TIGHT, 6), (TIGHT, 1_000)], ids=["wide", "tight", "greedy"]
)
@pytest.mark.parametrize("seed", [1, 8])
async def test_what_was_taken_is_what_the_leases_hold(
    seed: int, limits: list[Limit], more_max: int
) -> None:
    """In every bucket; after closing, no block is left in memory.

    The greedy callers ask for more than the buckets bear; then less is taken, and less is held.
    """
    world, ledger = World(seed), Ledger()
    async with store_in(world) as store:
        scene = make_scene(
            world,
            store,
            limits,
            Weather(delay_ms_max=25),
            instances=2,
            skew_ms=0,
        )
        until_ms = world.now_ms + 900
        await world.run(
            *(
                live(scene, one, ledger, until_ms, more_max)
                for one in scene.instances
                for _ in range(5)
            )
        )
        await scene.close()
        for one in scene.instances:
            assert one.limiter.taker.returns.blocks == {}
        consumed = await what_was_taken(store, world, limits, ledger)
        held = {
            (entity, limit.name): await ledger.held(store, entity, limit.name)
            for entity in ("e", "org", "root")
            for limit in limits
        }
    assert len(ledger.leases) > (20 if more_max == 6 else 4)
    assert (sum(one.limiter.meter.debts_cut for one in scene.instances) > 0) == (more_max == 1_000)
    assert consumed == held


async def what_was_taken(
    store: Store, world: World, limits: list[Limit], ledger: Ledger
) -> dict[tuple[str, str], int]:
    """Read the store after releasing the leases whose callers gave up."""
    looking = Limiter(store, clock=InstanceClock(world), limits=limits)
    for name in ledger.given_up:
        with contextlib.suppress(NotFoundError):
            await looking.release("e", name)
    return {
        (entity, limit): status.consumed
        for entity in ("e", "org", "root")
        for limit, status in (await looking.peek(entity, "r")).items()
    }
