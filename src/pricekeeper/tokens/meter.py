"""Counts the work of identity for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.sessions import SessionsMeter
from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import REVOCATIONS

_TOKENS: Final = Family("pricekeeper_tokens", "Tokens issued, refreshed and refused.", ("event",))
_CHECKS: Final = Family(
    "pricekeeper_token_checks", "Access tokens checked, by answer.", ("answer",)
)
_KEYS: Final = Family(
    "pricekeeper_signing_keys_refreshes",
    "Reads of the signing keys while the service runs, by outcome.",
    ("outcome",),
)


@dataclass(slots=True)
class KeysMeter:
    """Reads of the keyring while the service runs."""

    refreshes: Counter[str] = counted(_KEYS, shown=("new", "failed"), factory=Counter)


@dataclass(slots=True)
class IdentityMeter:
    """Tokens that one instance has issued, checked and ended."""

    issued: int = counted(_TOKENS, "issued")
    issued_outside: int = counted(_TOKENS, "issued_outside_slots")
    refreshed: int = counted(_TOKENS, "refreshed")
    logins_refused: int = counted(_TOKENS, "login_refused")
    refreshes_refused: int = counted(_TOKENS, "refresh_refused")
    checks_from_memory: int = counted(_CHECKS, "memory")
    checks_from_store: int = counted(_CHECKS, "store")
    checks_refused: int = counted(_CHECKS, "refused")
    tokens_revoked: int = counted(REVOCATIONS, "token")
    clients_ended: int = counted(REVOCATIONS, "client")
    sessions: SessionsMeter = field(default_factory=SessionsMeter)
