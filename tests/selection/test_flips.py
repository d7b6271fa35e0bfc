"""Flips, on every store: made once however many find the quota exceeded, and gone at midnight."""

import asyncio
from collections.abc import Sequence

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.errors import OutcomeUnknownError, QuotaExceededError, StoreUnavailableError
from pricekeeper.selection import Reason, Selector
from pricekeeper.storage import Item, Key, Store, Table
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel
from selection.conftest import FailingStore, GatedStore, NeverFirst, SettableClock, World
from selection.policies import ECONOMY, PREMIUM, QUOTAS, STANDARD, policy

INSTANCES = 20
BEYOND_ANY_CACHE_MS = 5_000


class MeetingStore(FaultyStore):
    """A store whose readers wait for each other, so that all of them have seen the same."""

    def __init__(self, store: Store, readers: int) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._readers = readers
        self._arrived = 0
        self._met = asyncio.Event()

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        found = await super().batch_get(keys, consistent=consistent)
        self._arrived += 1
        if self._arrived == self._readers:
            self._met.set()
        await self._met.wait()
        return found

    def meet_again(self) -> None:
        self._arrived = 0
        self._met.clear()


async def all_select(instances: Sequence[Selector], mine: Policy) -> set[ModelLabel | None]:
    decisions = await asyncio.gather(*(instance.assess(mine) for instance in instances))
    return {decision.label for decision in decisions}


async def test_twenty_instances_flip_once_per_step_and_agree(world: World) -> None:
    """All have read that the quota is exceeded before the first of them writes."""
    mine = policy(client=world.app)
    meeting = MeetingStore(world.store, INSTANCES)
    instances = [world.instance(meeting) for _ in range(INSTANCES)]
    steps = [(PREMIUM, 1_000, STANDARD, 1), (STANDARD, 500, ECONOMY, 2)]
    for flips, (label, spent, following, index) in enumerate(steps, start=1):
        await world.spend(mine, {label: spent})
        meeting.meet_again()
        world.clock.advance_ms(BEYOND_ANY_CACHE_MS)

        assert await all_select(instances, mine) == {following}

        item = await world.sticky_item(mine)
        assert (item["active_model_label"], item["active_model_index"]) == (following, index)
        assert item["previous_model_label"] == label
        assert world.flips() == flips
        assert sum(one.meter.flips_lost for one in instances) == flips * (INSTANCES - 1)


async def test_whoever_loses_a_flip_adopts_the_winners_without_reading_again(world: World) -> None:
    """The failed condition brings the item along, even if it is further down the chain."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    slow = world.instance(gate)
    deciding = asyncio.create_task(slow.select(mine))
    await gate.reached.wait()
    await world.spend(mine, {STANDARD: 500})
    await world.instance().select(mine)
    gate.opened.set()

    decision = await deciding

    assert (decision.label, decision.choice.reason) == (ECONOMY, Reason.STICKY_FALLBACK)
    assert (slow.meter.flips, slow.meter.flips_lost) == (0, 1)


@pytest.mark.parametrize(
    ("zone", "starts", "ends"),
    [
        ("America/New_York", "2030-03-10T05:00:00Z", "2030-03-11T04:00:00Z"),  # 23 hours
        ("Europe/Berlin", "2030-10-26T22:00:00Z", "2030-10-27T23:00:00Z"),  # 25 hours
        ("Asia/Kolkata", "2030-05-31T18:30:00Z", "2030-06-01T18:30:00Z"),
    ],
)
async def test_the_chain_runs_down_and_starts_anew_at_local_midnight(
    world: World, clock: SettableClock, zone: str, starts: str, ends: str
) -> None:
    """Premium, standard, economy, exhausted; to the millisecond, also when the clocks change."""
    mine = policy(client=world.app, timezone=zone)
    instance = world.instance()
    clock.set(starts)
    for label, spent, following in (
        (PREMIUM, 999, PREMIUM),
        (PREMIUM, 1_000, STANDARD),
        (STANDARD, 500, ECONOMY),
    ):
        await world.spend(mine, {label: spent})
        world.clock.advance_ms(BEYOND_ANY_CACHE_MS)
        assert (await instance.select(mine)).label == following
    await world.spend(mine, {ECONOMY: 200})

    clock.set(ends)
    world.clock.jump_ms(-1)
    with pytest.raises(QuotaExceededError) as caught:
        await instance.select(mine)
    assert caught.value.resets_at_ms == world.clock.now_ms() + 1

    world.clock.jump_ms(1)
    decision = await instance.select(mine)
    assert (decision.label, decision.choice.reason) == (PREMIUM, Reason.NORMAL)
    assert decision.org_local_time.strftime("%H:%M:%S") == "00:00:00"
    assert world.flips() == 2


# -- when the write goes wrong ---------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_is_harmless(world: World, applied: bool) -> None:
    """The flip is sent again: it is made then, or found to be there. It is never made twice."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    failing = FailingStore(world.store, OutcomeUnknownError("lost"), applied=applied)
    instance = world.instance(failing)

    decision = await instance.select(mine)

    assert decision.label == STANDARD
    assert decision.choice.sticky_fallback_active
    assert (await world.sticky_item(mine))["active_model_index"] == 1
    assert (instance.meter.flips_unknown, instance.meter.flips) == (1, 0 if applied else 1)
    assert instance.meter.flips_lost == (1 if applied else 0)


async def test_a_lost_reply_that_brings_the_item_along_needs_no_second_flip(world: World) -> None:
    """A store that sent the flip again met the flip itself."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    seen = {
        "active_model_label": STANDARD,
        "active_model_index": 1,
        "previous_model_label": PREMIUM,
        "activated_at_epoch": 0,
        "given_up_model_labels": {PREMIUM},
    }
    failing = FailingStore(world.store, OutcomeUnknownError("sent again", seen), applied=False)

    decision = await world.instance(failing).select(mine)

    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.STICKY_FALLBACK)
    assert await world.sticky_item(mine) == {}


async def test_a_flip_that_the_store_refuses_does_not_stand_in_the_way(world: World) -> None:
    """The exceeded label is not recommended, and the next decision records the flip."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    error = StoreUnavailableError("throttled")
    instance = world.instance(FailingStore(world.store, error, applied=False))

    decision = await instance.select(mine)
    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert not decision.choice.sticky_fallback_active
    assert (instance.meter.flips_failed, await world.sticky_item(mine)) == (1, {})

    world.clock.advance_ms(BEYOND_ANY_CACHE_MS)
    assert (await instance.select(mine)).choice.sticky_fallback_active
    assert world.flips() == 1


async def test_a_flip_and_a_comeback_are_reported_by_the_instance_that_made_them(
    world: World,
) -> None:
    mine, raised = (
        policy(client=world.app),
        policy(client=world.app, quotas={**QUOTAS, PREMIUM: 2_000}),
    )
    await world.spend(mine, {PREMIUM: 1_000})
    instance = world.instance()
    await instance.select(mine)
    assert (await instance.select(raised)).label == PREMIUM
    steps = [(one.reason, one.from_label, one.to_label) for one in world.noted]
    assert steps == [("QUOTA_EXCEEDED", PREMIUM, STANDARD), ("QUOTA_RAISED", STANDARD, PREMIUM)]


async def test_a_chain_that_keeps_moving_is_not_chased_for_ever(world: World) -> None:
    """After a few lost flips the decision is used without a record."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    instance = world.instance(NeverFirst(world.store, Interleaving(0), Faults()))

    decision = await instance.select(mine)

    assert decision.label == STANDARD
    assert instance.meter.flips_lost == 4
