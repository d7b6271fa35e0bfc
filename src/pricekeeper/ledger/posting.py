"""What accounts begin with, and what records that nobody authorized and corrections add to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from pricekeeper.budgets import BudgetAccount
from pricekeeper.budgets.items import spend
from pricekeeper.errors import CancellationReason, TransactionCancelledError
from pricekeeper.ledger.command import Command, Decision, Send
from pricekeeper.ledger.draft import Draft
from pricekeeper.storage import Write

Debits: TypeAlias = Sequence[tuple[Collection[BudgetAccount], int]]
"""Accounts, and what is spent from each of them, in pico-dollars."""


class AccountNotOpenError(Exception):
    """An account was to be spent from that is not open; open it, and try again."""


class OpenAccount(Command[None]):
    """Opens an account with what was spent in its window before, unless it is open."""

    result = None

    def __init__(self, account: BudgetAccount, spent_usd_picos: int) -> None:
        self.keys = (account.key,)
        self._account = account
        self._spent_usd_picos = spent_usd_picos

    def decide(self, draft: Draft) -> Decision:
        """Open it with what was measured: nobody spends from it before it is open."""
        account = self._account
        if draft.balance(account.key, account.id) is not None:
            self.answer(None)
            return Decision.ANSWERED
        draft.open(account.key, account.id, spend(self._spent_usd_picos))
        return Decision.WRITES


class PostRecords(Command[None]):
    """Spends from accounts in the transaction that applies some operations."""

    result = None

    def __init__(
        self, debits: Debits, operations: Sequence[Write], send: Send | None = None
    ) -> None:
        self.keys = dict.fromkeys(account.key for accounts, _ in debits for account in accounts)
        self.operations = operations
        self.send = send
        self._debits = debits

    def decide(self, draft: Draft) -> Decision:
        """Whatever the budgets have left, it is spent: it was used."""
        for accounts, _ in self._debits:
            for account in accounts:
                if draft.balance(account.key, account.id) is None:
                    self.fail(AccountNotOpenError(account.name))
                    return Decision.ANSWERED
        for accounts, picos in self._debits:
            for account in accounts:
                draft.add(account.key, account.id, spend(picos))
        return Decision.WRITES

    def note_refused(self, reasons: Sequence[CancellationReason]) -> None:
        self.fail(TransactionCancelledError(reasons))
