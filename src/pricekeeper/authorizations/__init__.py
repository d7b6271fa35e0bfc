"""Authorizations: reserve the maximum cost of a call before it, settle its real cost after it."""

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.candidates import named_limits
from pricekeeper.authorizations.expiry import SELDOM_MS, SWEEP_INTERVAL_MS, Expiry
from pricekeeper.authorizations.ledger_check import AccountFinding, LedgerCheck
from pricekeeper.authorizations.request import AuthorizationRequest, find_label
from pricekeeper.authorizations.service import Authorizations, Authorized

__all__ = [
    "SELDOM_MS",
    "SWEEP_INTERVAL_MS",
    "AccountFinding",
    "Authorization",
    "AuthorizationRequest",
    "Authorizations",
    "Authorized",
    "Expiry",
    "LedgerCheck",
    "State",
    "find_label",
    "named_limits",
]
