"""Budgets: the accounts of clients, opened before anything is held against or spent from them.

An account is opened once in its window, by whoever needs it first, with what the journal says was
spent in the window before: nothing if the budget was there when the window began. From then on each
record and each authorization moves it in the same transaction, and nothing is ever summed again.

Instances that do not know of a new budget yet, for up to 30 s, count without it; a recount adds
what that leaves out (`recounting`).

Bounds: `OPEN_MAX` accounts are remembered as open; a forgotten one costs a read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from pricekeeper.budgets.account import AccountMemory, BudgetAccount
from pricekeeper.budgets.items import (
    Balance,
    account_ids,
    account_update,
    balance_of,
    open_update,
    past_accounts,
    spend,
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.errors import ConditionFailedError, OutcomeUnknownError
from pricekeeper.storage import Item, Key, Store, Update
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import Policy

OPEN_MAX: Final = 50_000
_OpenKey: TypeAlias = tuple[Key, str]
Measure: TypeAlias = Callable[[Sequence[BudgetAccount]], Awaitable[Mapping[BudgetAccount, int]]]
"""What the records of the journal add up to in each of these accounts, in pico-dollars."""


class Budgets:
    """Opens and reads accounts."""

    def __init__(self, store: Store, clock: Clock, measure: Measure) -> None:
        self._store = store
        self._clock = clock
        self._measure = measure
        self._open: BoundedCache[_OpenKey, bool] = BoundedCache(OPEN_MAX)
        self._memory = AccountMemory()
        self._opening: SingleFlight[_OpenKey, None] = SingleFlight("pricekeeper-budget-open")

    def find(
        self, policy: Policy, label: str, tags: Mapping[str, str], at_ms: int
    ) -> tuple[BudgetAccount, ...]:
        """Every account that a call at that time is held against and spent from."""
        return self._memory.find(policy, label, tags, at_ms)

    async def open_for(
        self, policy: Policy, label: str, tags: Mapping[str, str], at_ms: int
    ) -> tuple[BudgetAccount, ...]:
        """The accounts of a call at that time, all of them open."""
        accounts = self.find(policy, label, tags, at_ms)
        if accounts:
            await self.open_all(accounts)
        return accounts

    async def open_all(self, accounts: Iterable[BudgetAccount]) -> None:
        """Open those that are not."""
        for account in accounts:
            key = (account.key, account.id)
            if self._open.get(key) is None:
                await self._opening.run(key, partial(self._open_one, account))

    async def read(self, accounts: Collection[BudgetAccount]) -> dict[BudgetAccount, Balance]:
        """What each account has; those that are not open are opened."""
        await self.open_all(accounts)
        items = await self.read_items({account.key for account in accounts})
        found: dict[BudgetAccount, Balance] = {}
        for account in accounts:
            balance = balance_of(items[account.key], account.id)
            found[account] = Balance() if balance is None else balance
        return found

    async def read_items(self, keys: Collection[Key]) -> dict[Key, Item | None]:
        """These items of accounts."""
        listed = list(keys)
        items = await self._store.batch_get([(RATE_BUCKETS, key) for key in listed])
        return dict(zip(listed, items, strict=True))

    def forget(self, accounts: Iterable[BudgetAccount]) -> None:
        """Look again whether these are open: a write has found that one is not."""
        for account in accounts:
            self._open.pop((account.key, account.id))

    async def _open_one(self, account: BudgetAccount) -> None:
        item = (await self.read_items([account.key]))[account.key]
        if balance_of(item, account.id) is None:
            now_ms = self._clock.now_ms()
            spent = (await self._measure([account]))[account]
            update = open_update(account, spent, past_accounts(item, now_ms), now_ms)
            try:
                await self._store.update(update)
            except ConditionFailedError as refused:
                if balance_of(refused.item, account.id) is None:
                    raise OutcomeUnknownError("a past account was held against") from refused
        self._open.put((account.key, account.id), True)  # noqa: FBT003


async def check_accounts(store: Store, keys: Collection[Key]) -> None:
    """Raise `UnreadableItemError` if an account of these items is why a write was refused."""
    for item in await store.batch_get([(RATE_BUCKETS, key) for key in keys]):
        for account_id in account_ids(item or {}):
            balance_of(item, account_id)


def debit_updates(
    debits: Iterable[tuple[Collection[BudgetAccount], int]], now_ms: int
) -> list[Update]:
    """What records that were never authorized add to their accounts: one write for each item."""
    changes: dict[Key, dict[str, Balance]] = {}
    for accounts, cost_usd_picos in debits:
        for account in accounts:
            some = changes.setdefault(account.key, {})
            some[account.id] = some.get(account.id, Balance()) + spend(cost_usd_picos)
    return [account_update(key, some, {}, now_ms) for key, some in changes.items()]
