"""Calls that the gateway makes: what their apps say of them does not count.

Else an app could void its call, or say that it used nothing, while Bedrock bills it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from attribution import BY
from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget, a_capture
from metering.conftest import a_policy, a_usage
from pricekeeper.authorizations import State
from pricekeeper.budgets import Balance
from pricekeeper.errors import ConflictError
from pricekeeper.metering import Refused
from pricekeeper.storage import Store
from pricekeeper.tenants import Policy
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
    accounts = instance.ledger.find(policy, "premium", {}, at_ms)
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
    with pytest.raises(ConflictError, match="authorization_id: is a call's through the gateway"):
        await WAYS[way](asked, policy, granted.id)
    assert await balance(asked, policy, granted.grant.authorized_at_ms) == before
    await asked.close()


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
    found = await authorizations.void_for_admin(policy, given_back.id, BY)
    assert found.state is State.VOIDED
    assert await balance(instance, policy, clock.now_ms()) == Balance(COST_USD_PICOS, 0, 0)
