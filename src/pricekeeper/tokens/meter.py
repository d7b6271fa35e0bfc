"""Counts what identity has done."""

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
    "Times that the signing keys were read anew while the service ran, by outcome.",
    ("outcome",),
)


@dataclass(slots=True)
class KeysMeter:
    """What became of the keyring while the service ran."""

    refreshes: Counter[str] = counted(_KEYS, shown=("new", "failed"), factory=Counter)
    """Keyrings that were taken over, and those that could not be read."""


@dataclass(slots=True)
class IdentityMeter:
    """What one instance has issued, checked and ended."""

    issued: int = counted(_TOKENS, "issued")
    """Tokens for a client's secret, with a session."""
    issued_outside: int = counted(_TOKENS, "issued_outside_slots")
    """Tokens for a client's secret, outside the session slots."""
    refreshed: int = counted(_TOKENS, "refreshed")
    """Tokens for a refresh token."""
    logins_refused: int = counted(_TOKENS, "login_refused")
    """Secrets that did not belong to their client."""
    refreshes_refused: int = counted(_TOKENS, "refresh_refused")
    """Refresh tokens that did not count, those that were reused among them."""
    checks_from_memory: int = counted(_CHECKS, "memory")
    """Valid access tokens whose last check was recent enough: the store was not read."""
    checks_from_store: int = counted(_CHECKS, "store")
    """Valid access tokens that were checked in the store."""
    checks_refused: int = counted(_CHECKS, "refused")
    """Access tokens that did not count: forged, expired, revoked, or their session has ended."""
    tokens_revoked: int = counted(REVOCATIONS, "token")
    """Access tokens that their client revoked one by one."""
    clients_ended: int = counted(REVOCATIONS, "client")
    """Times that everything a client held was ended, by itself or by an administrator."""
    sessions: SessionsMeter = field(default_factory=SessionsMeter)
    """What became of the sessions behind the tokens."""
