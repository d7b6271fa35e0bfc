"""One decision before a call, one settlement after it: authorize, capture, void, expire."""

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.candidates import find_label, named_limits
from pricekeeper.authorizations.ledger_check import Finding, LedgerCheck
from pricekeeper.authorizations.request import AuthorizationRequest
from pricekeeper.authorizations.service import Authorizations, Authorized

__all__ = [
    "Authorization",
    "AuthorizationRequest",
    "Authorizations",
    "Authorized",
    "Finding",
    "LedgerCheck",
    "State",
    "find_label",
    "named_limits",
]
