"""The check of the ledger: it agrees when all is well, names what differs, and sets it right."""

import asyncio

import pytest

from attribution import BY
from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget
from metering.conftest import a_policy, a_usage
from pricekeeper.authorizations import LedgerCheck, State
from pricekeeper.authorizations.expiry import Swept
from pricekeeper.budgets import Balance, accounts_of
from pricekeeper.days import MS_PER_DAY
from pricekeeper.errors import ConflictError
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import BudgetRule, Window
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
    strange = {"u": 5, "h": 3, "x": 1}  # written by hand
    item = {f"{name}:{account.id}": picos for name, picos in strange.items()}
    await store.put(Put(RATE_BUCKETS, {"PK": account.key.pk, "SK": account.key.sk, **item}))
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


async def test_what_is_unsettled_for_days_stays_charged_and_listed(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """A late capture is refused; an administrator's void returns the charge."""
    policy = a_policy(budgets=(a_budget(), a_budget(name="monthly", window=Window.MONTH)))
    org = a_policy(None, org_id=policy.org_id)
    granted = await instance.authorize(policy, hold_secs=10)
    name = granted.authorization.id
    clock.advance_ms(10_000)
    await instance.authorizations.expiry.expire_due()

    async def check() -> Balance:
        findings = await LedgerCheck(store, clock).check([policy])
        assert all(one.agrees and not one.moving for one in findings)
        (monthly,) = [one.enforced for one in findings if one.account.name == "monthly"]
        return monthly

    async def unsettled() -> list[str]:
        return [
            one.id
            for one in await instance.authorizations.list_unfinished(policy, {State.UNSETTLED})
        ]

    for days in (1, 5, 9):  # one, six and fifteen days after it has expired
        clock.advance_ms(days * MS_PER_DAY)
        await instance.authorizations.expiry.sweep()
        await instance.authorize(policy, hold_secs=10)  # it opens an account of that day
        await instance.authorizations.expiry.expire_due()
        assert (await unsettled())[-1] == name
        assert (await instance.authorizations.find(policy, name)).state is State.UNSETTLED
        if days > 1:
            with pytest.raises(ConflictError, match="24 hours"):
                await instance.capture(policy, name)
            with pytest.raises(ConflictError, match="24 hours"):
                await instance.void(policy, name)
        assert (await check()).used % HELD_USD_PICOS == 0
    began_ms = granted.authorization.grant.authorized_at_ms
    in_its_day = await instance.authorizations.read_exposed({policy.org_id}, began_ms, began_ms)
    assert [one.id for _, one in in_its_day] == [name], "the spend of that day has it"
    before = await check()
    voided = await instance.authorizations.void_for_admin(org, name, BY, BudgetRule())
    assert voided.state is State.VOIDED
    assert name not in await unsettled()
    assert await check() == before - Balance(HELD_USD_PICOS, 0, HELD_USD_PICOS)


async def test_what_was_left_open_is_charged_after_days_without_any_instance(
    store: Store, instance: Instance, clock: SettableClock
) -> None:
    """A sweep finds it while it exists."""
    policy = a_policy(budgets=(a_budget(name="monthly", window=Window.MONTH),))
    await Instance(store, clock).authorize(policy, hold_secs=10)
    clock.advance_ms(12 * MS_PER_DAY)
    (held,) = await LedgerCheck(store, clock).check([policy])
    assert (held.agrees, held.enforced.held) == (True, HELD_USD_PICOS)
    assert await instance.authorizations.expiry.sweep() == Swept(expired=1)
    (charged,) = await LedgerCheck(store, clock).check([policy])
    assert charged.agrees
    assert charged.enforced == Balance(HELD_USD_PICOS, 0, HELD_USD_PICOS)
