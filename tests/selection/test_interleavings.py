"""Seeded interleavings on a real store behind a bad wire: the chain never moves back.

Several instances decide at once, with policies of different age, while spends grow, operators
give commands, requests and replies are lost, writes arrive late, and instances die. The same
checks must catch variants of the store that drop what the flip relies on.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeAlias

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreError
from pricekeeper.selection import Selector
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Add, Item, Put, Set, Store, Update, attr, open_store
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel
from selection.conftest import NOON_MS, World
from selection.policies import ECONOMY, PREMIUM, QUOTAS, STANDARD, TURBO, policy

INSTANCES = 4
DECISIONS = 5
FAULTS = Faults(
    refused_pct=4, request_lost_pct=4, reply_lost_pct=6, late_pct=6, resent_pct=4, crashed_pct=2
)
SPENDS = (
    (PREMIUM, 999),
    (PREMIUM, 1_000),
    (TURBO, 100),
    (STANDARD, 499),
    (STANDARD, 500),
    (ECONOMY, 199),
)
RAISED = policy(quotas={**QUOTAS, PREMIUM: 10**6})
ORDERS = (
    policy(),
    policy(ordering=(TURBO, STANDARD, ECONOMY)),
    policy(ordering=(PREMIUM, ECONOMY)),
)
SEEDS = 100


Broken: TypeAlias = Callable[[Store, Interleaving, Faults], Store]


class Witness(FaultyStore):
    """Sees every change of the record, and insists that the chain only moves forward."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.given_up: frozenset[str] = frozenset()
        self.quotas: dict[str, int] = {}
        self.index = -1
        self.flips = 0
        self.comebacks = 0

    async def update(self, operation: Update) -> Item:
        item = await super().update(operation)
        self.comebacks += Set("comeback_version", item.get("comeback_version")) in operation.actions
        self._look(item)
        return item

    async def put(self, operation: Put) -> None:
        await super().put(operation)
        if operation.table is STICKY_STATE:
            self._look(operation.item)

    def _look(self, item: Item) -> None:
        index = item.get("active_model_index", -1)
        given_up = frozenset(item.get("given_up_model_labels", ()))
        assert index >= self.index, f"the record moved back from {self.index} to {index}"
        assert given_up >= self.given_up, f"{set(self.given_up - given_up)} came back"
        if index > self.index:
            self.flips += 1
        self.index, self.given_up = index, given_up
        for label in given_up:
            quota = item.get(f"given_up_quota.{label}", 0)
            assert quota >= self.quotas.get(label, 0), f"{label} was given up at less"
            self.quotas[label] = quota

    def barred(self, mine: Policy) -> set[str]:
        """The labels that this policy must not lead back to."""
        return {
            label
            for label in self.given_up
            if mine.quotas.get(ModelLabel(label), 0) <= self.quotas[label]
        }


class UnconditionalPut(FaultyStore):
    """Broken: a flip overwrites the whole item."""

    async def update(self, operation: Update) -> Item:
        item = Update(operation.table, operation.key, operation.actions).apply(None)
        await super().put(Put(operation.table, item))
        return item


class Unconditional(FaultyStore):
    """Broken: a flip asks for nothing before it writes."""

    async def update(self, operation: Update) -> Item:
        return await super().update(Update(operation.table, operation.key, operation.actions))


class FirstFlipOnly(FaultyStore):
    """Broken: a flip is possible only where there is none."""

    async def update(self, operation: Update) -> Item:
        absent = attr("active_model_label").absent()
        return await super().update(
            Update(operation.table, operation.key, operation.actions, absent)
        )


class Replacing(FaultyStore):
    """Broken: a flip replaces the set of given-up labels instead of adding to it."""

    async def update(self, operation: Update) -> Item:
        replacing = tuple(
            Set(action.attribute, action.value) if isinstance(action, Add) else action
            for action in operation.actions
        )
        return await super().update(
            Update(operation.table, operation.key, replacing, operation.condition)
        )


class Simulation:
    """One seed's course of events, checked while it happens and when all is calm."""

    def __init__(self, seed: int, policies: Sequence[Policy], broken: Broken | None = None) -> None:
        self.clock = ManualClock(NOON_MS)
        self.policies = policies
        self._broken = broken
        self._turns = Interleaving(seed, self._time_passes)
        self.befell: Counter[str] = Counter()

    async def check(self, final: Sequence[ModelLabel]) -> None:
        """Run, then see that everybody gives the final label of each policy."""
        meter = StoreMeter()
        real = await open_store(SqliteLocation(MEMORY), clock=self.clock, meter=meter)
        await real.create_tables()
        world, witness = World(real, self.clock), Witness(real)
        seen = self._broken(witness, Interleaving(0), Faults()) if self._broken else witness
        try:
            await self._run(world, witness, seen)
            for mine, label in zip(self.policies, final, strict=True):
                self.clock.advance_ms(5_000)
                for instance in (*world.instances, world.instance(seen)):
                    assert (await instance.assess(mine)).label == label
            item = await world.sticky_item(self.policies[0])
            assert item["active_model_label"] == final[0], "the record stayed behind"
            assert item["given_up_model_labels"] == witness.given_up
            assert witness.flips <= len(witness.given_up), "a step was made twice"
            # Of the policies that are in use here one brings a label back, at most once.
            backs = sum(PREMIUM in witness.given_up and one is RAISED for one in self.policies)
            assert item.get("comeback_version", 0) == witness.comebacks == backs, "came back twice"
        finally:
            await world.close()
            await real.close()

    async def _run(self, world: World, witness: Witness, seen: Store) -> None:
        turns = self._turns
        wire = FaultyStore(seen, turns, FAULTS)
        seeds = [turns.random.random() for _ in range(INSTANCES)]
        deciding = [self._decide(world.instance(wire), witness, Random(seed)) for seed in seeds]
        outcomes = await turns.run(self._spend(world), *deciding)
        self.befell = wire.befell
        for outcome in outcomes:
            if isinstance(outcome, AssertionError):
                raise outcome
        await wire.deliver()

    async def _decide(self, instance: Selector, witness: Witness, random: Random) -> None:
        for _ in range(DECISIONS):
            self.clock.advance_ms(5_000)  # nothing remembered counts any more
            mine = random.choice(self.policies)
            barred = witness.barred(mine)
            try:
                decision = await instance.assess(mine)
            except StoreError:
                continue
            assert decision.label not in barred, f"{decision.label} was recommended again"

    async def _spend(self, world: World) -> None:
        for label, micros in SPENDS:
            if self._turns.random.random() < 0.5:  # else it comes in one go with the one before
                await self._turns.turn()
            await self._turns.alone(world.spend(self.policies[0], {label: micros}))

    def _time_passes(self, random: Random) -> None:
        self.clock.advance_ms(random.choice((0, 10, 5_000)))


async def raised_quota(seed: int, broken: Broken | None = None) -> Simulation:
    """Check that the chain holds, though some instances know already that a quota was raised."""
    simulation = Simulation(seed, (policy(), RAISED), broken)
    await simulation.check((ECONOMY, PREMIUM))
    return simulation


async def different_orders(seed: int, broken: Broken | None = None) -> Simulation:
    """Check that apps that order the models differently share one record."""
    simulation = Simulation(seed, ORDERS, broken)
    await simulation.check((ECONOMY, ECONOMY, ECONOMY))
    return simulation


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_chain_never_moves_back_and_all_converge(seed: int) -> None:
    """Only a raised quota moves it back; each step is made once."""
    await raised_quota(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_apps_with_different_orders_share_a_record_that_never_forgets(seed: int) -> None:
    """Each finds its own way, and none comes back to what any of them has given up."""
    await different_orders(seed)


async def test_the_wire_was_as_bad_as_it_should_be() -> None:
    """Every kind of fault has happened."""
    befell: Counter[str] = Counter()
    for seed in range(SEEDS // 4):
        befell += (await raised_quota(seed)).befell

    assert set(befell) == {"refused", "request_lost", "reply_lost", "late", "resent", "crashed"}


@pytest.mark.parametrize(
    ("broken", "scenario", "caught"),
    [
        (UnconditionalPut, raised_quota, "moved back"),
        (Unconditional, raised_quota, "moved back"),
        (FirstFlipOnly, raised_quota, "stayed behind"),
        (Replacing, different_orders, "came back"),
    ],
)
async def test_a_flip_without_what_it_relies_on_is_caught(
    broken: Broken, scenario: Callable[[int, Broken], Awaitable[Simulation]], caught: str
) -> None:
    """The same checks fail for a store that drops the condition, the index or the union."""
    for seed in range(SEEDS):
        try:
            await scenario(seed, broken)
        except AssertionError as failure:
            if caught in str(failure):
                return
    pytest.fail(f"no seed has caught {broken}")
