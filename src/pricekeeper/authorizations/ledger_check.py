"""Checks the ledger: every account against usage records, holds and unsettled authorizations.

The accounts are read, then the journal and authorizations, then the accounts again. An account that
did not change meanwhile must equal its records, open holds and unsettled charges; a changed one is
checked again, up to `ROUNDS_MAX` times.

A difference is reported, and corrected on request if the account has not changed since. It comes
from instances that did not know of a new budget yet (`ledger.recounting`), or from changes by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from pricekeeper.authorizations.authorization import State
from pricekeeper.authorizations.reading import AuthorizationReader, Regions
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.ledger import Command, Decision, Draft, Ledger
from pricekeeper.ledger.recounting import read_open_accounts
from pricekeeper.ledger.service import AccountKey
from pricekeeper.metering import WindowSpend
from pricekeeper.storage import Store
from pricekeeper.tenants import Policy

ROUNDS_MAX: Final = 3


class AccountFinding(msgspec.Struct, frozen=True):
    """One account: its balance, and the right one."""

    account: BudgetAccount
    enforced: Balance
    right: Balance
    mended: bool = False
    moving: bool = False

    @property
    def agrees(self) -> bool:
        return self.enforced == self.right


class _Mend(Command[bool]):
    result = True

    def __init__(self, finding: AccountFinding) -> None:
        self.keys = (finding.account.key,)
        self._finding = finding

    def decide(self, draft: Draft) -> Decision:
        account, enforced = self._finding.account, self._finding.enforced
        if draft.balance(account.key, account.id) != enforced:
            self.answer(False)  # noqa: FBT003
            return Decision.ANSWERED
        draft.mend(account.key, account.id, self._finding.right - enforced)
        return Decision.WRITES


class LedgerCheck:
    """Checks the accounts of organisations."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._spend = WindowSpend(store, clock)
        self._ledger = Ledger(store, clock, self._spend.read_spend)
        self._reader = AuthorizationReader(store, self._ledger)
        self._regions = Regions(store, clock, self._reader)

    async def check(
        self, policies: Sequence[Policy], *, mend: bool = False
    ) -> list[AccountFinding]:
        found: dict[AccountKey, AccountFinding] = {}
        for _ in range(ROUNDS_MAX):
            if not await self._round(policies, found):
                break
        findings = list(found.values())
        if not mend:
            return findings
        return [await self._mend(one) for one in findings]

    async def _round(
        self, policies: Sequence[Policy], found: dict[AccountKey, AccountFinding]
    ) -> bool:
        before = await read_open_accounts(self._ledger, policies, self._clock.now_ms())
        wanted = [one for key, one in before.items() if key not in found or found[key].moving]
        if not wanted:
            return False
        spent = await self._spend.read_spend([one.account for one in wanted])
        sums = await self._sum_authorizations(wanted[0].account.org_id)
        after = await read_open_accounts(self._ledger, policies, self._clock.now_ms())
        some_moving = False
        for account, enforced, _ in wanted:
            key = (account.key, account.id)
            held, unsettled = sums[State.OPEN][key], sums[State.UNSETTLED][key]
            right = Balance(spent[account] + held + unsettled, held, unsettled)
            moving = key not in after or after[key].balance != enforced
            found[key] = AccountFinding(account, enforced, right, moving=moving)
            some_moving |= moving
        return some_moving

    async def _sum_authorizations(self, org_id: str) -> dict[State, Counter[AccountKey]]:
        sums = {state: Counter[AccountKey]() for state in (State.OPEN, State.UNSETTLED)}
        for region in await self._regions.read_all_marked(org_id):
            async for one, _ in self._reader.read_region(org_id, region):
                if one.state in sums:
                    for account in one.grant.terms.accounts:
                        sums[one.state][account.key, account.id] += one.grant.held_usd_picos
        return sums

    async def _mend(self, finding: AccountFinding) -> AccountFinding:
        if finding.agrees or finding.moving:
            return finding
        if await self._ledger.carry_out(finding.account.org_id, _Mend(finding)):
            return msgspec.structs.replace(finding, mended=True)
        return msgspec.structs.replace(finding, moving=True)
