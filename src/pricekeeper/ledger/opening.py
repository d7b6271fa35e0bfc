"""The opening of an account, with what was spent in its window before."""

from __future__ import annotations

from pricekeeper.budgets import BudgetAccount
from pricekeeper.budgets.items import spend
from pricekeeper.ledger.command import Command, Decision
from pricekeeper.ledger.draft import Draft


class OpenAccount(Command[None]):
    """Opens an account, unless it is open."""

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

    def note_written(self) -> None:
        self.answer(None)
