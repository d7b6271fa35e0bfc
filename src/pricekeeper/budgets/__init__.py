"""How much: accounts that calls are held against, hard budgets and strict quotas among them."""

from pricekeeper.budgets.account import (
    ACCOUNTS,
    AccountMemory,
    BudgetAccount,
    Kind,
    Scope,
    accounts_for,
    accounts_of,
    item_partition,
    tags_of,
)
from pricekeeper.budgets.items import Balance
from pricekeeper.budgets.window import Span, window_at

__all__ = [
    "ACCOUNTS",
    "AccountMemory",
    "Balance",
    "BudgetAccount",
    "Kind",
    "Scope",
    "Span",
    "accounts_for",
    "accounts_of",
    "item_partition",
    "tags_of",
    "window_at",
]
