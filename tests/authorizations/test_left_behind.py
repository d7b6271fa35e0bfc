"""What a dead process has left reads right at once, and is charged soon after a start."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget
from authorizations.test_authorizing import balances
from metering.conftest import a_policy
from minting import minted
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations import expiry as expiry_module
from pricekeeper.budgets import Balance
from pricekeeper.errors import ConflictError, StoreUnavailableError
from pricekeeper.storage import Page, Query, Store
from pricekeeper.tenants import Policy, Window
from selection.conftest import SettableClock

HOLD_SECS = 60
DAY_MS = 86_400_000


@pytest.fixture
async def dead(store: Store, clock: SettableClock) -> AsyncIterator[Instance]:
    """An instance that expires nothing, as if it had been killed."""
    made = Instance(store, clock)
    yield made
    await made.close()


async def leave(dead: Instance, policy: Policy, clock: SettableClock, **request: int) -> str:
    """An authorization that its process grants before it is killed."""
    request = {"hold_secs": HOLD_SECS, **request}
    asked_as = minted(clock.now_ms())
    await dead.authorize(policy, authorization_id=asked_as, **request)
    return asked_as


async def test_what_has_expired_reads_unsettled_without_any_visit(
    dead: Instance, instance: Instance, clock: SettableClock
) -> None:
    """In each answer that has its state; one that has not expired is open in all of them."""
    policy = a_policy(budgets=(a_budget(),))
    left = await leave(dead, policy, clock)
    for wait_ms, state in (
        (0, State.OPEN),
        (HOLD_SECS * 1000 - 1, State.OPEN),
        (1, State.UNSETTLED),
    ):
        clock.advance_ms(wait_ms)
        authorizations = instance.authorizations
        shown: list[Authorization] = [
            await authorizations.find(policy, left),
            (
                await instance.authorize(policy, authorization_id=left, hold_secs=HOLD_SECS)
            ).authorization,
            *(one for _, one in await authorizations.read_exposed([policy.org_id])),
            *await authorizations.list_unfinished(policy, [State.OPEN, State.UNSETTLED]),
            *await authorizations.list_unfinished(policy, [state]),
        ]
        assert [one.state for one in shown] == [state] * 5
        (other,) = {State.OPEN, State.UNSETTLED} - {state}
        assert await authorizations.list_unfinished(policy, [other]) == []


async def test_what_has_expired_is_settled_as_if_it_had_been_visited(
    dead: Instance, instance: Instance, clock: SettableClock
) -> None:
    """It can't be extended; it can be captured for a day, and no longer."""
    policy = a_policy(budgets=(a_budget(name="daily", window=Window.MONTH),))
    captured, late = await leave(dead, policy, clock), await leave(dead, policy, clock)
    clock.advance_ms(HOLD_SECS * 1000)
    with pytest.raises(ConflictError, match="unsettled"):
        await instance.extend(policy, captured, HOLD_SECS)
    clock.advance_ms(DAY_MS)
    await instance.capture(policy, captured)
    clock.advance_ms(1)
    with pytest.raises(ConflictError, match="24 hours"):
        await instance.capture(policy, late)
    with pytest.raises(ConflictError, match="24 hours"):
        await instance.void(policy, late)
    spent = Balance(COST_USD_PICOS + HELD_USD_PICOS, HELD_USD_PICOS)  # until a visit charges it
    assert await balances(instance, policy, clock) == {"daily": spent}


async def test_a_start_charges_what_has_expired_and_remembers_when_the_rest_will(
    dead: Instance, instance: Instance, clock: SettableClock
) -> None:
    """The region is still young: nothing that sweeps would visit it yet."""
    policy = a_policy(budgets=(a_budget(),))
    for hold_secs in (10, 30, 30):
        await leave(dead, policy, clock, hold_secs=hold_secs)
    expiry, charged = instance.authorizations.expiry, []
    for _ in range(5):
        clock.advance_ms(10_000)
        charged.append(await expiry.visit_left())
    assert charged == [1, 0, 0, 2, 0]
    unsettled = Balance(3 * HELD_USD_PICOS, 0, 3 * HELD_USD_PICOS)
    assert await balances(instance, policy, clock) == {"daily": unsettled}


async def test_a_start_leaves_the_marks_to_the_sweeps(
    dead: Instance, store: Store, clock: SettableClock
) -> None:
    """A process that is alive may grant more in a region that is young."""
    policy = a_policy(budgets=(a_budget(),))
    await leave(dead, policy, clock, hold_secs=10)
    clock.advance_ms(10_000)
    started = Instance(store, clock)
    assert await started.authorizations.expiry.visit_left() == 1
    await leave(dead, policy, clock, hold_secs=10)
    clock.advance_ms(300_000)
    assert (await started.authorizations.expiry.sweep()).expired == 1
    await started.close()


async def test_a_start_tries_a_region_again_that_can_not_be_read(
    dead: Instance,
    instance: Instance,
    store: Store,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are visited meanwhile."""
    broken, sound = (a_policy(budgets=(a_budget(),)) for _ in range(2))
    for policy in (broken, sound):
        await leave(dead, policy, clock)
    clock.advance_ms(HOLD_SECS * 1000)
    query = store.query

    async def fail_for_one(asked: Query) -> Page:
        if asked.pk.startswith(f"ORG#{broken.org_id}#"):
            raise StoreUnavailableError("the network is down")
        return await query(asked)

    expiry = instance.authorizations.expiry
    with monkeypatch.context() as patch:
        patch.setattr(store, "query", fail_for_one)
        assert await expiry.visit_left() == 1
    assert (await balances(instance, sound, clock))["daily"].held == 0
    assert await expiry.visit_left() == 0
    clock.advance_ms(2 * HOLD_SECS * 1000)
    assert await expiry.visit_left() == 1


async def test_a_start_visits_so_many_regions_at_once(
    dead: Instance, instance: Instance, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process has granted itself does not wait for all that others have left."""
    monkeypatch.setattr(expiry_module, "VISITS_AT_ONCE", 2)
    for number in Random(7).sample(range(5), 5):
        await leave(dead, a_policy(budgets=(a_budget(name=f"b{number}"),)), clock)
    clock.advance_ms(HOLD_SECS * 1000)
    expiry = instance.authorizations.expiry
    assert [await expiry.visit_left() for _ in range(4)] == [2, 2, 1, 0]
