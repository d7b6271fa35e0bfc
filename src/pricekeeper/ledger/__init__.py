"""The balances of accounts, and the log by which those of an organisation change."""

from pricekeeper.ledger.draft import Command, Decision, Draft
from pricekeeper.ledger.service import AccountNotOpenError, Ledger

__all__ = ["AccountNotOpenError", "Command", "Decision", "Draft", "Ledger"]
