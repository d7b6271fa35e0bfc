"""The check of the ledger: every account against the records, the holds and what is unsettled.

The accounts of an organisation are read, then its journal and its authorizations, then the accounts
again. An account that has not changed in between must have exactly what the records of its window
cost, what open authorizations hold against it, and what unsettled ones are charged. One that has
changed is looked at again.

What differs is named, and set right if that is wanted: on the condition that the account is still
as it was seen. A difference comes from instances that did not know of a new budget yet, and is then
set right by itself (`ledger.recounting`), or from somebody who wrote into the store by hand.

Bounds: `ROUNDS_MAX` rounds for accounts that keep changing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from pricekeeper.authorizations.authorization import HeldAccount, State
from pricekeeper.authorizations.reading import AuthorizationReader
from pricekeeper.authorizations.regions import Regions
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.ledger import Command, Decision, Draft, Ledger
from pricekeeper.ledger.recounting import read_open_accounts
from pricekeeper.metering import WindowSpend
from pricekeeper.storage import Key, Store
from pricekeeper.tenants import Policy

ROUNDS_MAX: Final = 3
AccountKey = tuple[Key, str]


class Finding(msgspec.Struct, frozen=True):
    """One account: what it has, and what it should have."""

    account: BudgetAccount
    enforced: Balance
    right: Balance
    mended: bool = False
    moving: bool = False
    """It kept changing while it was looked at, so nothing can be said."""

    @property
    def agrees(self) -> bool:
        return self.enforced == self.right


class _Mend(Command[bool]):
    """Sets an account right, if it is still as it was found."""

    def __init__(self, finding: Finding) -> None:
        self.keys = (finding.account.key,)
        self._finding = finding

    def decide(self, draft: Draft) -> Decision:
        account, enforced = self._finding.account, self._finding.enforced
        if draft.balance(account.key, account.id) != enforced:
            self.answer(False)  # noqa: FBT003
            return Decision.ANSWERED
        draft.mend(account.key, account.id, self._finding.right - enforced)
        return Decision.WRITES

    def note_written(self) -> None:
        self.answer(True)  # noqa: FBT003


class LedgerCheck:
    """Checks the accounts of organisations."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._spend = WindowSpend(store, clock)
        self._ledger = Ledger(store, clock, self._spend.read_spend)
        self._regions = Regions(store, clock, AuthorizationReader(store, self._ledger))

    async def check(self, policies: Sequence[Policy], *, mend: bool = False) -> list[Finding]:
        """Check every open account of the present windows of one organisation.

        ``policies`` are the organisation's own and those of its apps.
        """
        found: dict[AccountKey, Finding] = {}
        for _ in range(ROUNDS_MAX):
            left = await self._round(policies, found)
            if not left:
                break
        findings = list(found.values())
        if not mend:
            return findings
        return [await self._mend(one) for one in findings]

    async def _round(
        self, policies: Sequence[Policy], found: dict[AccountKey, Finding]
    ) -> list[AccountKey]:
        """Look at all that is not settled yet; returns what has changed meanwhile."""
        before = await self._read_balances(policies)
        wanted = [
            account for key, (account, _) in before.items() if key not in found or found[key].moving
        ]
        if not wanted:
            return []
        spent = await self._spend.read_spend(wanted)
        held, unsettled = await self._sum_authorizations(wanted[0].org_id)
        after = await self._read_balances(policies)
        left = []
        for account in wanted:
            key = (account.key, account.id)
            enforced = before[key][1]
            moving = key not in after or after[key][1] != enforced
            right = Balance(
                spent[account] + held.get(key, 0) + unsettled.get(key, 0),
                held.get(key, 0),
                unsettled.get(key, 0),
            )
            found[key] = Finding(account, enforced, right, moving=moving)
            if moving:
                left.append(key)
        return left

    async def _read_balances(
        self, policies: Sequence[Policy]
    ) -> dict[AccountKey, tuple[BudgetAccount, Balance]]:
        """The open accounts of the present windows, and what they have."""
        found = await read_open_accounts(self._ledger, policies, self._clock.now_ms())
        return {key: (one.account, one.balance) for key, one in found.items()}

    async def _sum_authorizations(
        self, org_id: str
    ) -> tuple[Mapping[AccountKey, int], Mapping[AccountKey, int]]:
        """What is held against each account, and what it is charged for unsettled ones."""
        held: dict[AccountKey, int] = {}
        unsettled: dict[AccountKey, int] = {}
        sums = {State.OPEN: held, State.UNSETTLED: unsettled}
        for region in await self._regions.read_all_marked(org_id):
            async for one, _ in self._regions.read(org_id, region):
                if one.state in sums:
                    _add(sums[one.state], one.grant.accounts, one.held_usd_picos)
        return held, unsettled

    async def _mend(self, finding: Finding) -> Finding:
        if finding.agrees or finding.moving:
            return finding
        command = _Mend(finding)
        self._ledger.submit(finding.account.org_id, command)
        if await command.future:
            return msgspec.structs.replace(finding, mended=True)
        return msgspec.structs.replace(finding, moving=True)


def _add(sums: dict[AccountKey, int], accounts: Iterable[HeldAccount], usd_picos: int) -> None:
    for account in accounts:
        key = (account.key, account.id)
        sums[key] = sums.get(key, 0) + usd_picos
