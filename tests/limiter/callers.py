"""Callers of a limiter in a simulated world: some saturate a bucket, some do everything wrong.

Each admission is recorded with its moment, so that a test can check every window.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from limiter.simulation import InstanceClock, Weather, Wire, World
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.limiter import Lease, Limit, Limiter
from pricekeeper.storage import Store

SKEW_MS = 2_000
FAILED = (StoreUnavailableError, OutcomeUnknownError)


@dataclass
class Admission:
    """Tokens that a caller was admitted and has not given back."""

    moment_ms: int
    """The true time of the clock reading that decided it."""
    told_ms: int
    """The true time at which the caller knew."""
    tokens: dict[str, int]
    entities: tuple[str, ...]


@dataclass
class Instance:
    """A process with a limiter, a wrong clock and an unreliable wire."""

    limiter: Limiter
    clock: InstanceClock
    wire: Wire


@dataclass
class Scene:
    """One world, one store, several instances, and all their admissions."""

    world: World
    instances: list[Instance]
    admissions: list[Admission] = field(default_factory=list)
    longest_ms: int = 0
    """The longest time from a request to its answer."""

    def instance(self) -> Instance:
        return self.world.random.choice(self.instances)

    def admitted(self, limit: str, entity: str, *, told: bool = False) -> list[tuple[int, int]]:
        return [
            (one.told_ms if told else one.moment_ms, one.tokens.get(limit, 0))
            for one in self.admissions
            if entity in one.entities
        ]

    async def close(self) -> None:
        await self.world.run(*(instance.limiter.close() for instance in self.instances))


def make_scene(
    world: World,
    store: Store,
    limits: Sequence[Limit],
    weather: Weather,
    *,
    instances: int = 3,
    skew_ms: int = SKEW_MS,
) -> Scene:
    """Instances whose clocks are wrong by up to ``skew_ms``, the first two by all of it."""
    wrong = [skew_ms, -skew_ms, *(world.random.randint(-skew_ms, skew_ms) for _ in range(9))]
    made = []
    for wrong_by_ms in wrong[:instances]:
        clock, wire = InstanceClock(world, wrong_by_ms), Wire(store, world, weather)
        limiter = Limiter(
            wire,
            clock=clock,
            limits=limits,
            jitter=world.random.randrange,
        )
        made.append(Instance(limiter, clock, wire))
    return Scene(world, made)


class Saturating:
    """Takes all that it can get, and waits for exactly `retry_after_ms`."""

    def __init__(self, scene: Scene, instance: Instance, entity: str = "e") -> None:
        self._scene = scene
        self._instance = instance
        self._entity = entity
        self.got = 0

    async def live(self, tokens: Mapping[str, int], until_ms: int) -> None:
        world, limiter = self._scene.world, self._instance.limiter
        while world.now_ms < until_ms:
            try:
                outcome = await limiter.try_acquire(self._entity, "r", tokens)
            except FAILED:
                continue
            if isinstance(outcome, Lease):
                self.got += 1
                moment_ms = outcome.granted_at_ms - self._instance.clock.wrong_by_ms
                self._scene.admissions.append(
                    Admission(moment_ms, world.now_ms, dict(tokens), (self._entity,))
                )
                await asyncio.sleep(0)
            else:
                assert outcome.retry_after_ms is not None
                await world.sleep_ms(outcome.retry_after_ms)


class Unruly:
    """Names some leases, repeats requests, gives up, gives back, and uses more than it said."""

    def __init__(self, scene: Scene, instance: Instance, biggest: Mapping[str, int]) -> None:
        self._scene = scene
        self._instance = instance
        self._biggest = biggest
        self._random = scene.world.random

    async def live(self, until_ms: int) -> None:
        while self._scene.world.now_ms < until_ms:
            await self._once()

    async def _once(self) -> None:
        world, dice = self._scene.world, self._random
        tokens = {name: dice.randint(0, most) for name, most in self._biggest.items()}
        parents = ("org", "root")[: dice.choice([0, 0, 0, 1, 2])]
        lease_id = uuid.UUID(int=dice.getrandbits(128)) if dice.random() < 0.3 else None
        asked_ms = world.now_ms
        asking = asyncio.create_task(
            self._instance.limiter.try_acquire("e", "r", tokens, parents=parents, lease_id=lease_id)
        )
        try:
            if dice.random() < 0.1:
                await world.sleep_ms(dice.randrange(30))
                asking.cancel()
            outcome = await asking
        except asyncio.CancelledError:
            return
        except FAILED:
            await world.sleep_ms(dice.randrange(50))
            return
        if not isinstance(outcome, Lease):
            wait_ms = outcome.retry_after_ms or 0
            await world.sleep_ms(dice.choice([0, 1, wait_ms, dice.randrange(300)]))
            return
        self._scene.longest_ms = max(self._scene.longest_ms, world.now_ms - asked_ms)
        moment_ms = outcome.granted_at_ms - self._instance.clock.wrong_by_ms
        admission = Admission(moment_ms, world.now_ms, tokens, ("e", *parents))
        self._scene.admissions.append(admission)
        if lease_id is not None and dice.random() < 0.3:
            await self._ask_again(lease_id, tokens, parents)
        await world.sleep_ms(dice.choice([0, 0, 5, 900, 4_000]))
        await self._done_with(outcome, admission, named=lease_id is not None)

    async def _ask_again(
        self, lease_id: uuid.UUID, tokens: Mapping[str, int], parents: Sequence[str]
    ) -> None:
        """Ask another instance for the same lease; it must not take tokens again."""
        limiter = self._scene.instance().limiter
        try:
            again = await limiter.try_acquire("e", "r", tokens, parents=parents, lease_id=lease_id)
        except FAILED:
            return
        assert isinstance(again, Lease)
        assert again.id == str(lease_id)

    async def _done_with(self, lease: Lease, admission: Admission, *, named: bool) -> None:
        dice = self._random
        what = dice.random()
        times = dice.randint(1, 3)
        if what < 0.25:
            admission.tokens = dict.fromkeys(admission.tokens, 0)
            for _ in range(times):
                await self._release(lease, named=named)
        elif what < 0.5:
            delta = {name: -dice.randint(0, count) for name, count in admission.tokens.items()}
            admission.tokens = {
                name: count + delta[name] for name, count in admission.tokens.items()
            }
            await self._adjust(lease, delta, times)
        elif what < 0.6:
            await self._adjust(lease, {name: dice.randint(0, 2) for name in lease.held}, times)

    async def _release(self, lease: Lease, *, named: bool) -> None:
        try:
            if named and self._random.random() < 0.5:
                await self._scene.instance().limiter.release(lease.entity, lease.id)
            else:
                await lease.release()
        except FAILED:
            pass

    async def _adjust(self, lease: Lease, delta: Mapping[str, int], times: int) -> None:
        adjustment_id = uuid.UUID(int=self._random.getrandbits(128))
        for _ in range(times):
            with contextlib.suppress(*FAILED):
                await lease.adjust(delta, adjustment_id=adjustment_id)
