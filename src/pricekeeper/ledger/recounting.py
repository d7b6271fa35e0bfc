"""Recounts: corrects the accounts of budgets after a change of settings.

For up to 30 s after a change, some instances do not know it. Their records are in the journal, but
not in the account of a new or restored budget. So a change leaves a note to recount once all know
it (`tenants.recounts`). Any instance then reads the accounts, the journal, and the accounts again,
while others write. What is missing is between the journal minus the later reading and the journal
minus the earlier one. The value nearer to zero is added, so a recount never overshoots; unless both
are equal, it is tried again later. Holds and unsettled amounts need no recount.

Bounds: `RECOUNTS_AT_ONCE` clients in a run; `ROUNDS_MAX` passes over the journal for each hundred
apps; `TRIES_MAX` tries with doubling pauses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from pricekeeper.budgets import Balance, BudgetAccount, Scope, accounts_of, item_partition, tags_of
from pricekeeper.budgets.items import spend
from pricekeeper.clock import Clock
from pricekeeper.errors import ConditionFailedError, NotFoundError, StoreError
from pricekeeper.ledger.draft import Command, Decision, Draft
from pricekeeper.ledger.service import AccountKey, Ledger, Measure
from pricekeeper.storage import Delete, Key, Put, Store, query_items
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.tenants.recounts import (
    Recount,
    is_as_seen,
    recount_delete,
    recount_of,
    recount_put,
    recounts_query,
)
from pricekeeper.values import AppId

INTERVAL_MS: Final = 30_000
AGAIN_MS: Final = 80 * 60_000
"""A second recount after this time finds writes that were minutes late."""
CLAIM_MS: Final = 300_000
PAUSE_MS_FIRST: Final = 60_000
TRIES_MAX: Final = 10
"""With doubling pauses, a day."""
RECOUNTS_AT_ONCE: Final = 20
ROUNDS_MAX: Final = 3

_log = structlog.get_logger(__name__)


class AccountState(NamedTuple):
    """An open account and its balance."""

    account: BudgetAccount
    balance: Balance
    mends: int


async def read_open_accounts(
    ledger: Ledger, policies: Collection[Policy], now_ms: int
) -> dict[AccountKey, AccountState]:
    """The open accounts of these clients in their present windows."""
    found: dict[AccountKey, AccountState] = {}
    for policy in policies:
        scope = Scope.ORG if policy.app_id is None else Scope.APP
        partition = item_partition(policy, scope)
        for key, accounts in (await ledger.read_partition(policy.org_id, partition)).items():
            for account in accounts_of(policy, now_ms, tags_of(key)):
                balance = accounts.balance(account.id) if account.key == key else None
                if balance is not None:
                    found[key, account.id] = AccountState(account, balance, accounts.mends)
    return found


class _AddMissing(Command[bool]):
    """Adds to accounts of one item what is missing, unless one was mended meanwhile."""

    result = True

    def __init__(self, key: Key, missing: Mapping[str, int], mends: int) -> None:
        self.keys = (key,)
        self._key = key
        self._missing = missing
        self._mends = mends

    def decide(self, draft: Draft) -> Decision:
        """Refuse if an account of the item was mended after it was read."""
        if draft.mends(self._key) != self._mends:
            self.answer(False)  # noqa: FBT003
            return Decision.ANSWERED
        for account_id, picos in self._missing.items():
            draft.mend(self._key, account_id, spend(picos))
        return Decision.WRITES


class Recounts:
    """Runs the recounts that are due."""

    def __init__(
        self, store: Store, clock: Clock, tenants: Tenants, measure: Measure, ledger: Ledger
    ) -> None:
        self._store = store
        self._clock = clock
        self._tenants = tenants
        self._measure = measure
        self._ledger = ledger

    async def run_forever(self, interval_ms: int = INTERVAL_MS) -> None:
        while True:
            await self._clock.sleep_ms(interval_ms)
            try:
                await self.run_due()
            except StoreError as error:
                _log.warning("recounts_failed", error=error.code)

    async def run_due(self) -> int:
        """Return how many were run. A failed client is tried again later."""
        now_ms, due = self._clock.now_ms(), list[Recount]()
        async for item in query_items(self._store, recounts_query()):
            found = recount_of(item)
            if found is not None and found.due_ms <= now_ms:
                due.append(found)
        due.sort(key=lambda one: one.due_ms)
        made = 0
        for one in due[:RECOUNTS_AT_ONCE]:
            try:
                made += await self._run(one)
            except StoreError as error:
                _log.warning("recount_failed", client_id=one.client.client_id, error=error.code)
        return made

    async def _run(self, due: Recount) -> bool:
        now_ms = self._clock.now_ms()
        mine = due._replace(due_ms=now_ms + CLAIM_MS, tries=due.tries + 1)
        if not await self._decide(recount_put(mine, is_as_seen(due))):
            return False
        is_right = True
        async for some in self._read_policies(due.client):
            is_right &= await self.recount(some)
        now_ms = self._clock.now_ms()
        if not is_right and mine.tries < TRIES_MAX:
            again = mine._replace(due_ms=now_ms + (PAUSE_MS_FIRST << mine.tries))
            await self._decide(recount_put(again, is_as_seen(mine)))
            return True
        if not is_right:
            _log.error("recount_given_up", client_id=due.client.client_id, tries=mine.tries)
        if due.visit == 0:
            again = Recount(due.client, now_ms + AGAIN_MS, visit=1)
            await self._decide(recount_put(again, is_as_seen(mine)))
        else:
            await self._decide(recount_delete(mine))
        return True

    async def recount(self, policies: Sequence[Policy]) -> bool:
        """Recount clients of one organisation; return whether all accounts are correct."""
        wanted: set[AccountKey] | None = None
        for _ in range(ROUNDS_MAX):
            wanted = await self._round(policies, wanted)
            if not wanted:
                return True
        return False

    async def _round(
        self, policies: Sequence[Policy], wanted: set[AccountKey] | None
    ) -> set[AccountKey]:
        """Add what is missing in these accounts, or in all; return those that may lack more."""
        now_ms = self._clock.now_ms()
        before = await read_open_accounts(self._ledger, policies, now_ms)
        if wanted is not None:
            before = {key: one for key, one in before.items() if key in wanted}
        if not before:
            return set()
        counted = await self._measure([one.account for one in before.values()])
        after = await read_open_accounts(self._ledger, policies, now_ms)
        left: set[AccountKey] = set()
        missing: dict[Key, dict[str, int]] = {}
        for key, one in before.items():
            since = after.get(key)
            if since is None:  # its window is long over
                continue
            sum_usd_picos = counted[one.account]
            bounds = [sum_usd_picos - seen.balance.spent for seen in (one, since)]
            least, most = min(bounds), max(bounds)
            sure = max(least, 0) or min(most, 0)
            if sure:
                missing.setdefault(key[0], {})[key[1]] = sure
            if least != most:
                left.add(key)
        for item_key, some in missing.items():
            names = [(item_key, account_id) for account_id in some]
            one = before[names[0]]
            command = _AddMissing(item_key, some, one.mends)
            if await self._ledger.carry_out(one.account.org_id, command):
                for name in names:
                    _log_added(before[name].account, some[name[1]])
            else:
                left.update(names)
        return left

    async def _read_policies(self, client: Client) -> AsyncIterator[list[Policy]]:
        """Yield the client and its apps, a hundred at a time; nothing if it is deleted."""
        try:
            yield [await self._tenants.read_policy(client)]
            if client.app_id is not None:
                return
            after: AppId | None = None
            while True:  # every page begins behind the one before
                page = await self._tenants.list_apps(client.org_id, after)
                yield list(page.policies)
                after = page.after
                if after is None:
                    return
        except NotFoundError:  # its accounts have ended with it
            return

    async def _decide(self, operation: Put | Delete) -> bool:
        """Return ``False`` if another instance stored the result."""
        try:
            if isinstance(operation, Put):
                await self._store.put(operation)
            else:
                await self._store.delete(operation)
        except ConditionFailedError:
            return False
        return True


def _log_added(account: BudgetAccount, picos: int) -> None:
    _log.warning(
        "account_recounted",
        org_id=account.org_id,
        app_id=account.app_id,
        budget=account.name,
        added_usd_picos=picos,
    )
