"""Every account's balance, and the one log of an organisation by which all of them change."""

from pricekeeper.ledger.draft import Command, Decision, Draft
from pricekeeper.ledger.service import AccountNotOpenError, Ledger

__all__ = [
    "AccountNotOpenError",
    "Command",
    "Decision",
    "Draft",
    "Ledger",
]
