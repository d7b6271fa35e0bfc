"""One decision before a call, one settlement after it: authorize, capture, void, expire."""

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.candidates import find_label, named_limits
from pricekeeper.authorizations.ledger_check import Finding, LedgerCheck
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.request import AuthorizationRequest
from pricekeeper.authorizations.service import Authorizations, Authorized, Captured

__all__ = [
    "Authorization",
    "AuthorizationMeter",
    "AuthorizationRequest",
    "Authorizations",
    "Authorized",
    "Captured",
    "Finding",
    "LedgerCheck",
    "State",
    "find_label",
    "named_limits",
]
