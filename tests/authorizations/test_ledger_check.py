"""The check of the ledger: it agrees when all is well, names what differs, and sets it right."""

import asyncio

from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget
from metering.conftest import a_policy, a_usage
from pricekeeper.authorizations import LedgerCheck
from pricekeeper.budgets import Balance, accounts_of
from pricekeeper.budgets.items import mend_update
from pricekeeper.storage import Store
from pricekeeper.tenants import Window
from selection.conftest import SettableClock


async def test_every_account_is_its_records_and_its_holds(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """Captured, held, unsettled, and usage that was never authorized."""
    policy = a_policy(
        budgets=(a_budget(),),
        org_budgets=(
            a_budget(name="monthly", window=Window.MONTH),
            a_budget(name="t", per_tag="t"),
        ),
        tag_keys=("t",),
    )
    org = a_policy(None, org_id=policy.org_id, org_budgets=policy.org_budgets, tag_keys=("t",))
    unsettled, captured, _ = [
        await instance.authorize(policy, hold_secs=secs, tags={"t": "x"}) for secs in (10, 900, 900)
    ]
    clock.advance_ms(10_000)
    await instance.authorizations.expiry.expire_due()
    await instance.capture(policy, captured.authorization.id)
    await instance.metering.record(policy, a_usage())
    findings = await LedgerCheck(store, clock).check([org, policy])
    by_name = {(one.account.name, one.account.tag): one for one in findings}
    assert all(one.agrees and not one.moving for one in findings)
    both = Balance(2 * HELD_USD_PICOS + 2 * COST_USD_PICOS, HELD_USD_PICOS, HELD_USD_PICOS)
    assert by_name["daily", None].enforced == by_name["monthly", None].enforced == both
    assert by_name["t", ("t", "x")].enforced.spent == COST_USD_PICOS
    assert by_name["t", ("t", "")].enforced == Balance(COST_USD_PICOS)
    assert unsettled.authorization.id != captured.authorization.id


async def test_what_differs_is_named_and_set_right(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    policy = a_policy(budgets=(a_budget(),))
    await instance.authorize(policy)
    (account,) = accounts_of(policy, clock.now_ms())
    right = Balance(HELD_USD_PICOS, HELD_USD_PICOS, 0)
    wrong = Balance(HELD_USD_PICOS + 5, HELD_USD_PICOS + 3, 1)
    await store.update(mend_update(account.key, account.id, right, wrong))
    check = LedgerCheck(store, clock)
    (found,) = await check.check([policy])
    assert (found.agrees, found.enforced, found.right, found.mended) == (False, wrong, right, False)
    (mended,) = await check.check([policy], mend=True)
    assert mended.mended
    (again,) = await check.check([policy])
    assert again.agrees


async def test_an_account_that_changes_meanwhile_is_not_accused(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """While others authorize, what is said agrees or is said to be moving."""
    policy = a_policy(budgets=(a_budget(1_000_000_000),))

    async def work() -> None:
        for _ in range(15):
            granted = await instance.authorize(policy)
            await instance.capture(policy, granted.authorization.id)

    working = asyncio.create_task(work())
    while not working.done():
        await asyncio.sleep(0)
        findings = await LedgerCheck(store, clock).check([policy], mend=True)
        assert all(one.agrees or one.moving for one in findings)
    await working
    (last,) = await LedgerCheck(store, clock).check([policy])
    assert last.agrees
    assert last.enforced == Balance(15 * COST_USD_PICOS)
