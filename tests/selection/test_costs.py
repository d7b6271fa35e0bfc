"""What selection costs, counted in store calls, and how long an answer is used again."""

import asyncio
import uuid
from dataclasses import replace

import pytest

from attribution import BY
from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.selection import Decision, Reason
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, QuotaScope
from pricekeeper.values import AppId
from selection.conftest import GatedStore, World
from selection.policies import ECONOMY, PREMIUM, QUOTAS, STANDARD, policy


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: what others have posted costs a query more."""
    return f"selection-{uuid.uuid4().hex[:8]}-"


@pytest.mark.parametrize("scope", list(QuotaScope))
async def test_a_cold_answer_is_one_batch_and_one_price(
    world: World, meter: StoreMeter, scope: QuotaScope
) -> None:
    """Overrides, fallback and totals come in one call; the model's price of the day in one."""
    mine = policy(client=world.app, scope=scope)
    meter.clear()

    await world.instance().select(mine)

    assert meter.calls == {"batch_get": 1, "get": 1}


async def test_a_warm_answer_costs_nothing(world: World, meter: StoreMeter) -> None:
    """Not one call, for as many requests as come."""
    mine = policy(client=world.app)
    instance = world.instance()
    first = await instance.select(mine)
    meter.clear()

    assert {id(await instance.select(mine)) for _ in range(100)} == {id(first)}

    assert not meter.calls
    assert instance.meter.warm == 100


async def test_a_flip_adds_one_write_and_a_mark(world: World, meter: StoreMeter) -> None:
    """Later selections add none."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    meter.clear()

    await world.instance().select(mine)
    assert meter.calls == {"batch_get": 1, "put": 1, "update": 1, "get": 1}

    meter.clear()
    await world.instance().select(mine)
    assert meter.calls == {"batch_get": 1, "get": 1}


async def test_a_lost_flip_adds_one_write_and_no_read(world: World, meter: StoreMeter) -> None:
    """The failed condition brings the item along."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    losing = asyncio.create_task(world.instance(gate).select(mine))
    await gate.reached.wait()
    await world.instance().select(mine)
    meter.clear()
    gate.opened.set()

    assert (await losing).choice.reason is Reason.STICKY_FALLBACK
    assert meter.calls == {"update": 1, "get": 1}


async def test_an_exhausted_scope_is_warm_too(world: World, meter: StoreMeter) -> None:
    """Clients that hammer on a spent quota do not hammer on the store."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200})
    instance = world.instance()
    meter.clear()

    for _ in range(10):
        assert (await instance.assess(mine)).label is None

    assert meter.calls == {"batch_get": 1}


async def test_force_check_reads_everything_again(world: World, meter: StoreMeter) -> None:
    """The checkpoint, and a query for ticks; then the totals and the fallback."""
    mine = policy(client=world.app)
    instance = world.instance()
    await instance.select(mine)
    meter.clear()

    await instance.select(mine, force_check=True)

    assert meter.calls == {"get": 1, "query": 1, "batch_get": 1}


async def test_forced_checks_of_one_scope_share_a_sum_for_a_second(
    world: World, meter: StoreMeter
) -> None:
    """Of all apps; each reads its fallback and override."""
    apps = [
        policy(client=Client(world.org.org_id, AppId(name)), scope=QuotaScope.ORG) for name in "abc"
    ]
    instance = world.instance()
    await asyncio.gather(*(instance.select(one) for one in apps))
    meter.clear()

    await asyncio.gather(*(instance.select(one, force_check=True) for one in apps * 10))
    assert meter.calls == {"get": 1, "query": 1, "batch_get": 6}

    world.clock.advance_ms(999)
    await instance.select(apps[0], force_check=True)
    assert meter.calls["query"] == 1
    world.clock.advance_ms(1)
    await instance.select(apps[0], force_check=True)
    assert meter.calls["query"] == 2


@pytest.mark.parametrize(("spent", "staleness_ms"), [(0, 5_000), (950, 1_000)])
async def test_an_answer_is_used_for_a_stated_time(
    world: World, spent: int, staleness_ms: int
) -> None:
    """Five seconds normally, one when the quota is tight."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: spent})
    instance = world.instance()
    first = await instance.select(mine)

    world.clock.advance_ms(staleness_ms - 1)
    assert await instance.select(mine) is first
    world.clock.advance_ms(1)
    assert await instance.select(mine) is not first


async def test_an_answer_does_not_outlive_its_day_or_its_policy(world: World) -> None:
    """Also if the wall world.clock is set, forward or back."""
    mine = policy(client=world.app)
    instance = world.instance()
    first = await instance.select(mine)

    assert await instance.select(policy(client=world.app)) is first
    changed = replace(mine, quotas={**QUOTAS, PREMIUM: 0})
    assert (await instance.select(changed)).label == STANDARD
    for jump_ms, day in ((12 * 3_600_000, "20300116"), (-24 * 3_600_000, "20300114")):
        world.clock.jump_ms(jump_ms)
        assert (await instance.select(mine)).org_day == day
        world.clock.jump_ms(-jump_ms)


async def test_who_waits_for_the_same_answer_shares_one_read(
    world: World, meter: StoreMeter
) -> None:
    """Also when the caller who was first goes away."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    instance = world.instance(gate)
    meter.clear()
    callers = [asyncio.create_task(instance.select(mine)) for _ in range(10)]
    await gate.reached.wait()
    callers[0].cancel()
    gate.opened.set()

    decisions = await asyncio.gather(*callers, return_exceptions=True)

    assert isinstance(decisions[0], asyncio.CancelledError)
    assert {id(decision) for decision in decisions[1:]} == {id(decisions[1])}
    assert meter.calls == {"batch_get": 1, "put": 1, "update": 1, "get": 1}


async def test_who_waits_under_another_policy_does_not_share(world: World) -> None:
    """A changed policy counts for callers that know it."""
    old = policy(client=world.app)
    new = replace(old, quotas={**QUOTAS, STANDARD: 0})
    await world.spend(old, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    instance = world.instance(gate)
    before = asyncio.create_task(instance.select(old))
    await gate.reached.wait()

    assert (await instance.select(new)).label == ECONOMY
    gate.opened.set()
    assert (await before).label == STANDARD


async def test_an_override_is_not_missed_by_a_decision_under_way(world: World) -> None:
    """One that had read before the command is neither joined nor remembered."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    instance = world.instance(gate)
    before = asyncio.create_task(instance.select(mine))
    await gate.reached.wait()

    await instance.set_override(mine, ECONOMY, BY)

    assert (await instance.select(mine)).label == ECONOMY
    gate.opened.set()
    assert (await before).label == STANDARD
    assert (await instance.select(mine)).label == ECONOMY


async def test_a_decision_that_began_earlier_does_not_replace_a_later_one(world: World) -> None:
    """A slow read can't undo what a forced check has found meanwhile."""
    mine = policy(client=world.app, sticky=False)
    await world.spend(mine, {PREMIUM: 1})
    instance = world.instance()
    decision: Decision = await instance.select(mine)
    reading = instance._cache.reading()
    world.clock.advance_ms(1)
    later = await instance.select(mine, force_check=True)

    assert not instance._cache.keep(decision, reading)
    assert await instance.select(mine) is later


async def test_what_is_remembered_is_bounded(world: World, meter: StoreMeter) -> None:
    """The client that was asked about least recently is forgotten first."""
    one, other, third = (
        policy(client=each) for each in (world.app, world.other_app, world.app.org)
    )
    instance = world.instance(entries_max=2)
    for mine in (one, other, one, third):
        await instance.select(mine)
    meter.clear()

    await instance.select(one)
    assert not meter.calls
    await instance.select(other)
    assert meter.calls["batch_get"] == 1


async def test_without_the_spends_there_is_no_recommendation(store: Store, world: World) -> None:
    """Reading fails closed, and nothing of the failure is remembered."""
    turns = Interleaving(0)
    instance = world.instance(FaultyStore(store, turns, Faults(refused_pct=100)))
    mine = policy(client=world.app)

    (outcome,) = await turns.run(instance.select(mine))

    assert isinstance(outcome, StoreUnavailableError)
    assert (await instance.select(mine)).label == PREMIUM


async def test_a_decision_costs_one_read_unit_per_item(
    world: World, dynoxide: str, table_prefix: str
) -> None:
    """Two items of state, one total per label, one price; a flip and its mark are writes."""
    meter = StoreMeter()
    location = DynamoDbLocation("us-east-1", table_prefix, dynoxide)
    store = await open_store(location, clock=world.clock, meter=meter)
    await store.create_tables()
    world, mine = World(store, world.clock), policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    meter.clear()

    assert (await world.instance().select(mine)).label == STANDARD

    assert meter.read_half_units == {"StickyState": 4, "DailyTotal": 6, "PricingCache": 2}
    assert meter.write_half_units == {"StickyState": 2, "Activity": 2}
    await world.close()
    await store.close()
