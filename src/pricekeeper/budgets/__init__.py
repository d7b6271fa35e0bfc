"""Budgets: the accounts that calls are held against, and how they are stored."""

from pricekeeper.budgets.account import (
    ACCOUNTS,
    AccountMemory,
    BudgetAccount,
    Kind,
    Scope,
    Span,
    accounts_for,
    accounts_of,
    item_partition,
    tags_of,
    window_at,
)
from pricekeeper.budgets.items import Balance

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
