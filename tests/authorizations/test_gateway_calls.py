"""Calls that the gateway makes: what their apps say of them does not count.

Else an app could void its call, or say that it used nothing, while Bedrock bills it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from attribution import BY
from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget, a_capture
from metering.conftest import a_policy, a_usage
from pricekeeper.authority import NO_ORG, Authority, KeyKind, Role
from pricekeeper.authorizations import State
from pricekeeper.authorizations.authorization import LATE_MS_MAX
from pricekeeper.budgets import Balance
from pricekeeper.errors import ConflictError, NotPermittedError
from pricekeeper.metering import Refused
from pricekeeper.storage import Store
from pricekeeper.tenants import BudgetRule, Policy, Window
from selection.conftest import SettableClock

Settle = Callable[[Instance, Policy, str], Awaitable[Any]]


async def record_in_batch(instance: Instance, policy: Policy, own_id: str) -> None:
    nothing = a_usage(own_id, input_tokens=0, output_tokens=0)
    (answer,) = await instance.authorizations.recording.record_many(policy, [nothing])
    assert isinstance(answer, Refused)
    raise answer.error


WAYS: dict[str, Settle] = {
    "capture": lambda one, policy, own_id: one.capture(policy, own_id, output_tokens=0),
    "void": lambda one, policy, own_id: one.void(policy, own_id),
    "record": lambda one, policy, own_id: one.record(policy, a_usage(own_id, output_tokens=0)),
    "batch": record_in_batch,
}


async def balance(instance: Instance, policy: Policy, at_ms: int) -> Balance:
    accounts = instance.ledger.accounts_for(policy, "premium", {}, at_ms)
    (found,) = (await instance.ledger.read(accounts)).values()
    return found


@pytest.mark.parametrize("has_expired", [False, True], ids=["open", "unsettled"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same instance", "another"])
@pytest.mark.parametrize("way", WAYS)
async def test_an_app_does_not_settle_what_the_gateway_calls(
    instance: Instance,
    store: Store,
    clock: SettableClock,
    way: str,
    elsewhere: bool,
    has_expired: bool,
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    granted = (await instance.authorize(policy, by_gateway=True, hold_secs=10)).authorization
    asked = Instance(store, clock) if elsewhere else instance
    if has_expired:
        clock.advance_ms(60_000)
        assert await instance.authorizations.expiry.expire_due() == 1
    before = await balance(asked, policy, granted.grant.authorized_at_ms)
    assert before.used == HELD_USD_PICOS
    with pytest.raises(ConflictError, match="authorization_id: belongs to a gateway call"):
        await WAYS[way](asked, policy, granted.id)
    assert await balance(asked, policy, granted.grant.authorized_at_ms) == before
    await asked.close()


LISTED = replace(BY, authority=Authority(KeyKind.ADMIN_KEY, Role.ADMIN, NO_ORG))
"""An administrator of some organisations."""


@pytest.mark.parametrize("orgs_set_budgets", [False, True])
@pytest.mark.parametrize("what", ["the gateway's", "too late for the client"])
async def test_who_may_raise_budgets_voids_what_the_client_may_not(
    instance: Instance, clock: SettableClock, what: str, orgs_set_budgets: bool
) -> None:
    """Its amount goes back to budgets that were set above the organisation."""
    policy = a_policy(budgets=(a_budget(window=Window.MONTH),))
    granted = (await instance.authorize(policy, by_gateway=what == "the gateway's")).authorization
    if not granted.grant.terms.by_gateway:
        clock.advance_ms(granted.expires_at_ms - clock.now_ms() + LATE_MS_MAX + 1)
    rule = BudgetRule(orgs_set_budgets=orgs_set_budgets)
    voiding = instance.authorizations.void_for_admin(policy, granted.id, LISTED, rule)
    if orgs_set_budgets:
        assert (await voiding).state is State.VOIDED
        return
    with pytest.raises(NotPermittedError, match="all organisations"):
        await voiding
    assert (await balance(instance, policy, clock.now_ms())).used == HELD_USD_PICOS
    voided = await instance.authorizations.void_for_admin(policy, granted.id, BY, rule)
    assert voided.state is State.VOIDED


async def test_any_administrator_voids_what_the_client_may(instance: Instance) -> None:
    """The client could void it itself, so nothing is gained by it."""
    policy = a_policy(budgets=(a_budget(),))
    granted = (await instance.authorize(policy)).authorization
    voided = await instance.authorizations.void_for_admin(policy, granted.id, LISTED, BudgetRule())
    assert voided.state is State.VOIDED


async def test_the_gateway_and_administrators_do(instance: Instance, clock: SettableClock) -> None:
    """The one by what Bedrock says, the others on their own responsibility, with an entry."""
    policy = a_policy(budgets=(a_budget(),))
    captured, voided, given_back = [
        (await instance.authorize(policy, by_gateway=True)).authorization for _ in range(3)
    ]
    authorizations = instance.authorizations
    done = await authorizations.capture(policy, captured.id, a_capture(), by_gateway=True)
    assert done.recorded.receipt.cost_usd_picos == COST_USD_PICOS
    await authorizations.void(policy, voided.id, "not sent", by_gateway=True)
    found = await authorizations.void_for_admin(policy, given_back.id, BY, BudgetRule())
    assert found.state is State.VOIDED
    assert await balance(instance, policy, clock.now_ms()) == Balance(COST_USD_PICOS, 0, 0)
