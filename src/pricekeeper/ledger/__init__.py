"""Every account's balance, and the one log of an organisation by which all of them change."""

from pricekeeper.ledger.command import Command, Decision
from pricekeeper.ledger.draft import Draft
from pricekeeper.ledger.posting import AccountNotOpenError
from pricekeeper.ledger.service import Ledger

__all__ = [
    "AccountNotOpenError",
    "Command",
    "Decision",
    "Draft",
    "Ledger",
]
