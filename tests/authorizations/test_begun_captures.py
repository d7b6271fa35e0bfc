"""Captures without a waiting caller: their cost is known at once, and they are counted."""

import asyncio
from typing import Any

import pytest

from authorizations.conftest import (
    COST_USD_PICOS,
    HELD_USD_PICOS,
    Instance,
    a_budget,
    a_strict_policy,
)
from metering.conftest import a_policy
from pricekeeper.authorizations import Authorization, State
from pricekeeper.budgets import Balance
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.ledger.draft import Draft
from pricekeeper.ledger.log import OrgLog
from pricekeeper.metering.journal_items import repairs_query
from pricekeeper.metering.marking import ANSWER_MS_MAX
from pricekeeper.storage import Store, query_items
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS
from selection.conftest import SettableClock


async def a_granted(instance: Instance, policy: Policy) -> Authorization:
    """An authorization of an app whose prices are in memory, as after its first call."""
    first = (await instance.authorize(policy)).authorization
    await instance.capture(policy, first.id)
    return (await instance.authorize(policy)).authorization


async def balances(instance: Instance, policy: Policy, clock: SettableClock) -> set[Balance]:
    accounts = instance.ledger.accounts_for(policy, "premium", {}, clock.now_ms())
    return set((await instance.ledger.read(accounts)).values())


async def test_what_was_begun_counts_and_releases_the_hold(
    instance: Instance, clock: SettableClock
) -> None:
    """Its cost is returned before it is written."""
    policy = a_strict_policy(budgets=(a_budget(),))
    granted, failures = await a_granted(instance, policy), list[Any]()
    assert instance.begin_capture(policy, granted, failures.append) == COST_USD_PICOS
    held = COST_USD_PICOS + HELD_USD_PICOS
    assert await balances(instance, policy, clock) == {Balance(held, HELD_USD_PICOS, 0)}
    await instance.close()
    assert await balances(instance, policy, clock) == {Balance(2 * COST_USD_PICOS, 0, 0)}
    found = await instance.authorizations.find(policy, granted.id)
    assert (found.state, failures) == (State.CAPTURED, [])
    again = await instance.capture(policy, granted.id)
    assert (again.is_duplicate, again.recorded.receipt.cost_usd_picos) == (True, COST_USD_PICOS)
    assert again.recorded.daily_total is not None
    assert again.recorded.daily_total.requests == 2


async def test_the_next_call_of_this_process_has_what_is_released(instance: Instance) -> None:
    """It is decided behind the capture, although that was not written when it was asked for."""
    limit_usd_micros = (COST_USD_PICOS + COST_USD_PICOS + HELD_USD_PICOS) // 1_000_000
    policy = a_policy(budgets=(a_budget(limit_usd_micros),))
    granted = await a_granted(instance, policy)
    assert instance.begin_capture(policy, granted, print) == COST_USD_PICOS
    assert (await instance.authorize(policy)).granted is not None


@pytest.mark.parametrize("is_applied", [False, True], ids=["not applied", "applied, reply lost"])
async def test_who_began_it_is_told_that_it_failed(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, is_applied: bool
) -> None:
    """Then the capture is repeated, and counts once."""
    policy = a_policy(budgets=(a_budget(),))
    granted, failures = await a_granted(instance, policy), list[Any]()
    original, error = OrgLog.append, StoreUnavailableError("it is down")

    async def fail(log: OrgLog, draft: Draft, *more: Any) -> None:
        if is_applied:
            await original(log, draft, *more)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(OrgLog, "append", fail)
        assert instance.begin_capture(policy, granted, failures.append) == COST_USD_PICOS
        await instance.ledger.close()
    assert failures == [error]
    captured = await instance.capture(policy, granted.id)
    assert captured.is_duplicate == is_applied
    assert captured.recorded.daily_total is not None
    assert captured.recorded.daily_total.requests == 2 - is_applied


async def test_a_record_that_is_written_late_is_put_down_for_repair(
    instance: Instance, store: Store, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated capture has its day summed again."""
    policy = a_policy()
    granted, failures = await a_granted(instance, policy), list[Any]()
    original = OrgLog.append

    async def append(log: OrgLog, draft: Draft, *more: Any) -> None:
        await original(log, draft, *more)
        clock.advance_ms(2 * TICK_MS + ANSWER_MS_MAX)

    with monkeypatch.context() as patched:
        patched.setattr(OrgLog, "append", append)
        assert instance.begin_capture(policy, granted, failures.append) == COST_USD_PICOS
        await instance.ledger.close()
    (failure,) = failures
    assert isinstance(failure, OutcomeUnknownError)
    assert [item async for item in query_items(store, repairs_query())] == []
    assert (await instance.capture(policy, granted.id)).is_duplicate
    (repair,) = [item async for item in query_items(store, repairs_query())]
    assert policy.org_id in str(repair["SK"])


async def test_what_has_to_be_read_first_is_not_begun(store: Store, clock: SettableClock) -> None:
    """The prices, or what another process has granted; what is wrong is said by `capture`."""
    first, second = Instance(store, clock), Instance(store, clock)
    policy = a_policy()
    unpriced = (await first.authorize(policy)).authorization
    assert first.begin_capture(policy, unpriced, print) is None
    granted = await a_granted(first, policy)
    await a_granted(second, policy)
    assert second.begin_capture(policy, granted, print) is None
    assert first.begin_capture(policy, granted, print, output_tokens=10**9) is None
    assert first.begin_capture(policy, granted, print) == COST_USD_PICOS
    await first.close()
    await second.close()


async def test_a_budget_that_is_newer_than_the_call_is_opened_first(instance: Instance) -> None:
    """It is spent from that one, too, which has to be read."""
    policy = a_policy()
    granted = await a_granted(instance, policy)
    newer = a_policy(client=policy.client, budgets=(a_budget(),))
    await instance.capture(newer, (await instance.authorize(newer)).authorization.id)
    assert instance.begin_capture(newer, granted, print) is None


async def test_a_callback_that_raises_is_felt_by_nobody_else(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its sheet are answered and told, as if it had not."""
    policy = a_policy(budgets=(a_budget(),))
    granted = [await a_granted(instance, policy) for _ in range(2)]
    failures: list[Any] = []

    async def fail(*_: Any) -> None:
        raise StoreUnavailableError("down")

    def log_to_a_full_disk(_: BaseException) -> None:
        raise OSError("No space left on device")

    felt: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: felt.append(context))
    with monkeypatch.context() as patch:
        patch.setattr(OrgLog, "append", fail)
        begin = instance.begin_capture
        assert begin(policy, granted[0], log_to_a_full_disk) == COST_USD_PICOS
        assert begin(policy, granted[1], failures.append) == COST_USD_PICOS
        with pytest.raises(StoreUnavailableError):
            await instance.authorize(policy)
    assert [type(one) for one in failures] == [StoreUnavailableError]
    assert [type(one["exception"]) for one in felt] == [OSError]
