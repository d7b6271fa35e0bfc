"""Recounts: what instances have counted that did not know of a budget yet is found by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from attribution import BY
from authorizations.conftest import COST_USD_PICOS, Instance
from metering.conftest import LABELS
from pricekeeper.authorizations import LedgerCheck
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.ledger.recounting import AGAIN_MS, PAUSE_MS_FIRST, Recounts
from pricekeeper.metering import WindowSpend
from pricekeeper.storage import Store, query_items
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.tenants.recounts import RECOUNT_AFTER_MS, recounts_query
from pricekeeper.values import AppId, OrgId
from selection.conftest import SettableClock

ORG, APP = OrgId("550e8400-e29b-41d4-a716-446655440000"), AppId("chat")
DAILY = {"name": "daily", "window": "DAY", "limit_usd_micros": 1_000_000}
SETTINGS: dict[str, Any] = {
    "org_name": "Acme",
    "timezone": "UTC",
    "quota_scope": "APP",
    "model_ordering": list(LABELS),
    "quotas": dict.fromkeys(LABELS, 1_000_000_000),
}
Sums = Mapping[BudgetAccount, int]


class Serving(Instance):
    """An instance with its own memory of policies, which makes recounts."""

    def __init__(self, store: Store, clock: SettableClock) -> None:
        super().__init__(store, clock)
        self.tenants = Tenants(store, clock, LABELS)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What others do in the middle of the next reading of the journal."""
        self._spend = WindowSpend(store, clock)
        self.recounts = Recounts(store, clock, self.tenants, self._measure, self.ledger)

    async def _measure(self, accounts: Sequence[BudgetAccount]) -> Sums:
        sums = await self._spend.read_spend(accounts)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return sums

    async def policy(self) -> Policy:
        return await self.tenants.find_policy(ORG, APP)

    async def call(self) -> None:
        """One call, from its authorization to its capture, by the policy that is known here."""
        policy = await self.policy()
        granted = await self.authorize(policy)
        await self.capture(policy, granted.authorization.id)


class World:
    """Two instances, of which the second knows nothing of a budget that the first one uses."""

    def __init__(self, store: Store, clock: SettableClock) -> None:
        self.store, self.clock = store, clock
        self.first, self.second = Serving(store, clock), Serving(store, clock)

    async def begin(self) -> None:
        await self.first.tenants.put_org(ORG, SETTINGS, BY)
        await self.first.tenants.put_app(ORG, APP, {"app_name": "Chat"}, BY)

    async def give_a_budget(self) -> None:
        await self.second.policy()
        await self.first.tenants.patch(Client(ORG), {"budgets": [DAILY]}, BY)
        await self.first.call()
        await self.second.call()

    async def spent(self) -> tuple[int, int]:
        """What the account of the budget has, and what it should have."""
        org = await self.first.tenants.read_policy(Client(ORG))
        (found,) = await LedgerCheck(self.store, self.clock).check([org])
        return found.enforced.spent, found.right.spent

    async def waiting(self) -> int:
        return len([one async for one in query_items(self.store, recounts_query())])


@pytest.fixture
async def world(store: Store, clock: SettableClock) -> World:
    world = World(store, clock)
    await world.begin()
    return world


async def test_what_was_counted_without_a_new_budget_is_added_to_it(
    world: World, clock: SettableClock
) -> None:
    """Once every instance knows of it, by one of them; and once more for what may be late."""
    assert await world.waiting() == 0, "there is no budget yet"
    await world.give_a_budget()
    assert await world.spent() == (COST_USD_PICOS, 2 * COST_USD_PICOS)
    assert await world.first.recounts.run_due() == 0, "not everybody knows of it yet"
    clock.advance_ms(RECOUNT_AFTER_MS)
    both = await asyncio.gather(world.first.recounts.run_due(), world.second.recounts.run_due())
    assert sorted(both) == [0, 1]
    assert await world.spent() == (2 * COST_USD_PICOS, 2 * COST_USD_PICOS)
    await world.second.call()
    assert await world.second.recounts.run_due() == 0
    clock.advance_ms(AGAIN_MS)
    assert await world.second.recounts.run_due() == 1
    assert await world.spent() == (3 * COST_USD_PICOS, 3 * COST_USD_PICOS)
    assert await world.waiting() == 0


async def test_a_budget_that_comes_back_has_what_was_spent_without_it(
    world: World, clock: SettableClock
) -> None:
    """Its account is still open, from the time before."""
    await world.give_a_budget()
    await world.first.tenants.patch(Client(ORG), {"budgets": []}, BY)
    await world.first.call()
    await world.first.tenants.patch(Client(ORG), {"budgets": [DAILY]}, BY)
    clock.advance_ms(RECOUNT_AFTER_MS)
    await world.second.recounts.run_due()
    assert await world.spent() == (3 * COST_USD_PICOS, 3 * COST_USD_PICOS)


async def test_a_recount_never_goes_too_far(world: World, clock: SettableClock) -> None:
    """What is counted while the journal is read is not missing; another recount adds it first."""
    await world.give_a_budget()
    clock.advance_ms(RECOUNT_AFTER_MS)
    recounts, org = world.first.recounts, await world.first.tenants.read_policy(Client(ORG))
    world.first.meanwhile = world.first.call
    assert await recounts.recount([org]), "the next round finds a quiet moment"
    assert await world.spent() == (3 * COST_USD_PICOS, 3 * COST_USD_PICOS)

    await world.second.tenants.patch(Client(ORG), {"budgets": []}, BY)
    await world.second.call()
    await world.second.tenants.patch(Client(ORG), {"budgets": [DAILY]}, BY)
    world.first.meanwhile = lambda: world.second.recounts.recount([org])
    assert await recounts.recount([org])
    assert await world.spent() == (4 * COST_USD_PICOS, 4 * COST_USD_PICOS)


async def test_who_never_rests_is_recounted_again_later(
    world: World, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is surely missing is added at once, and the rest in a quiet moment."""
    await world.give_a_budget()
    for _ in range(3):  # so that what is missing is more than what is counted meanwhile
        await world.second.call()
    clock.advance_ms(RECOUNT_AFTER_MS)
    busy = world.first
    measure = busy._measure

    async def measure_and_call(accounts: Sequence[BudgetAccount]) -> Sums:
        sums = await measure(accounts)
        await busy.call()
        return sums

    monkeypatch.setattr(busy.recounts, "_measure", measure_and_call)
    assert await busy.recounts.run_due() == 1
    enforced, right = await world.spent()
    assert right - COST_USD_PICOS <= enforced <= right, "at most the calls counted meanwhile"
    monkeypatch.undo()
    clock.advance_ms(2 * PAUSE_MS_FIRST)
    assert await world.second.recounts.run_due() == 1
    enforced, right = await world.spent()
    assert enforced == right


async def test_only_what_gives_other_accounts_is_recounted(world: World) -> None:
    """Not a higher limit, nor settings that have nothing to do with budgets."""
    tenants = world.first.tenants
    strict = {"quota_enforcement": "STRICT"}
    raised = {"budgets": [{**DAILY, "limit_usd_micros": 5_000_000}]}
    for patch, wanted in (
        ({"org_name": "Acme Corp"}, 0),
        ({"quotas": dict.fromkeys(LABELS, 5)}, 0),
        (strict, 1),
    ):
        await tenants.patch(Client(ORG), patch, BY)
        assert await world.waiting() == wanted, patch
    await tenants.patch(Client(ORG, APP), {"budgets": [DAILY]}, BY)
    assert await world.waiting() == 2
    await tenants.put_app(ORG, AppId("new"), {"app_name": "New"}, BY)
    assert await world.waiting() == 3, "its organisation has strict quotas for each app"
    due = [one["due_ms"] async for one in query_items(world.store, recounts_query())]
    world.clock.advance_ms(1_000)
    await tenants.patch(Client(ORG, APP), raised, BY)
    assert [one["due_ms"] async for one in query_items(world.store, recounts_query())] == due


async def test_what_is_held_and_unsettled_is_left_alone(world: World, clock: SettableClock) -> None:
    """Only spend is recounted; a deleted client has nothing to recount."""
    await world.give_a_budget()
    policy = await world.first.policy()
    unsettled = await world.first.authorize(policy, hold_secs=10)
    held = await world.first.authorize(policy)
    clock.advance_ms(RECOUNT_AFTER_MS)
    await world.first.authorizations.expiry.expire_due()
    await world.second.recounts.run_due()
    org = await world.first.tenants.read_policy(Client(ORG))
    (found,) = await LedgerCheck(world.store, clock).check([org])
    holds = [one.authorization.grant.held_usd_picos for one in (held, unsettled)]
    assert found.agrees
    assert found.enforced == Balance(2 * COST_USD_PICOS + sum(holds), *holds)
    await world.first.tenants.delete_org(ORG, BY)
    clock.advance_ms(AGAIN_MS)
    assert await world.second.recounts.run_due() == 1
    assert await world.waiting() == 0
