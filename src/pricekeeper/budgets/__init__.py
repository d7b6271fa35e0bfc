"""How much: accounts that calls are held against, hard budgets and strict quotas among them."""

from pricekeeper.budgets.account import (
    BudgetAccount,
    Kind,
    Scope,
    accounts_for,
    accounts_of,
    item_partition,
)
from pricekeeper.budgets.items import Balance
from pricekeeper.budgets.recounting import Recounts, read_open_accounts
from pricekeeper.budgets.service import Budgets, check_accounts, debit_updates
from pricekeeper.budgets.window import Span, window_at

__all__ = [
    "Balance",
    "BudgetAccount",
    "Budgets",
    "Kind",
    "Recounts",
    "Scope",
    "Span",
    "accounts_for",
    "accounts_of",
    "check_accounts",
    "debit_updates",
    "item_partition",
    "read_open_accounts",
    "window_at",
]
