"""Voids on an unreliable wire: each and its entry are both there or neither, and never twice."""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from attribution import BY
from audit_trail.voids import Voiding, check_totals, check_voids, put_shop
from faulty_store import Crashed, Faults, FaultyStore, InterleavedClock, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.metering.aggregator import Aggregator
from pricekeeper.settings import MEMORY, SqliteLocation, StoreLocation
from pricekeeper.storage import Store, Write
from pricekeeper.ticks import TICK_MS
from stores import ShiftedClock
from tenants.conftest import new_org_id

FAULTS = Faults(refused_pct=2, request_lost_pct=3, reply_lost_pct=7, late_pct=7, crashed_pct=4)
WORKERS = 3


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: an aggregator looks at everything that is there."""
    return f"voids-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def seeds(location: StoreLocation) -> range:
    if location == SqliteLocation(MEMORY):
        return range(40)
    return range(6) if isinstance(location, SqliteLocation) else range(4)


async def try_to_void(
    new_voiding: Callable[[], Voiding], targets: list[str], acknowledged: set[str]
) -> None:
    """Void all of it, each up to twice if no reply says that it is done."""
    voiding = new_voiding()
    for target in targets:
        for _ in range(2):
            try:
                await voiding.void(target, BY)
            except (StoreError, Crashed):
                voiding = new_voiding()
            else:
                acknowledged.add(target)
                break


async def test_whatever_happens_a_void_and_its_entry_are_both_there_or_neither(
    store: Store, clock: ShiftedClock, seeds: range
) -> None:
    """Several want to void the same; budgets and totals have what the journal has."""
    befell, done = Counter[str](), 0
    sums = []
    for seed in seeds:
        random, hands = Random(seed), ManualClock(clock.now_ms())
        policy = await put_shop(store, hands, new_org_id())
        made = [Voiding(store, hands, policy)]
        targets = [f"usage/{await made[0].record(random)}" for _ in range(3)]
        targets += [f"authorization/{await made[0].authorize()}" for _ in range(2)]
        wanted = random.sample(targets, 4)

        turns, began_ms = Interleaving(seed), hands.now_ms()
        shaky = FaultyStore(store, turns, FAULTS)
        waiting = InterleavedClock(hands, turns, hands.advance_ms)

        def new_voiding(
            shaky: FaultyStore = shaky,
            waiting: InterleavedClock = waiting,
            made: list[Voiding] = made,
        ) -> Voiding:
            made.append(Voiding(shaky, waiting, made[0].policy))
            return made[-1]

        acknowledged = set[str]()
        work = (
            try_to_void(new_voiding, random.sample(wanted, len(wanted)), acknowledged)
            for _ in range(WORKERS)
        )
        assert await turns.run(*work) == [None] * WORKERS, seed
        await shaky.deliver()
        befell += shaky.befell

        voided, found = await check_voids(store, clock, policy, (began_ms, hands.now_ms()))
        assert acknowledged <= voided <= set(wanted), seed
        done += len(voided)
        sums.append(found)
        for voiding in made:
            await voiding.close()
    assert done > len(seeds)
    assert len(seeds) < 40 or min(befell.values()) > 10, befell
    await check_totals(store, clock, sums)


async def test_a_correction_that_arrives_late_is_in_the_totals_once_somebody_repeats_the_void(
    store: Store, clock: ShiftedClock
) -> None:
    """Its tick was closed without it, so an acknowledged void has its day repaired."""
    late: list[tuple[Write, ...]] = []

    class HeldUp:
        """A store on which every transaction is held up."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def transact(self, operations: Sequence[Write]) -> None:
            late.append(tuple(operations))
            raise OutcomeUnknownError("held up")

    began_ms = clock.now_ms()
    policy = await put_shop(store, clock, new_org_id())
    voiding = Voiding(store, clock, policy)
    target = f"usage/{await voiding.record(Random(1))}"
    shaky = Voiding(HeldUp(), clock, policy)  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknownError):
        await shaky.void(target, BY)
    clock.shift_ms += 5 * TICK_MS
    assert not (await Aggregator(store, clock).run_once()).failed
    await store.transact(late[0])
    await voiding.void(target, BY)
    voided, sums = await check_voids(store, clock, policy, (began_ms, began_ms + TICK_MS))
    assert voided == {target}
    await check_totals(store, clock, [sums])
    for one in (voiding, shaky):
        await one.close()
