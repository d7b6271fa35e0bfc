"""Counts what identity has done."""

from __future__ import annotations

from dataclasses import dataclass, field

from pricekeeper.sessions import SessionsMeter


@dataclass(slots=True)
class IdentityMeter:
    """What one instance has issued, checked and ended."""

    issued: int = 0
    """Tokens for a client's secret."""

    refreshed: int = 0
    """Tokens for a refresh token."""

    logins_refused: int = 0
    """Secrets that did not belong to their client."""

    refreshes_refused: int = 0
    """Refresh tokens that did not count, those that were reused among them."""

    checks_from_memory: int = 0
    """Valid access tokens whose last check was recent enough: the store was not read."""

    checks_from_store: int = 0
    """Valid access tokens that were checked in the store."""

    checks_refused: int = 0
    """Access tokens that did not count: forged, expired, revoked, or their session has ended."""

    tokens_revoked: int = 0
    """Access tokens that their client revoked one by one."""

    clients_ended: int = 0
    """Times that everything a client held was ended, by itself or by an administrator."""

    sessions: SessionsMeter = field(default_factory=SessionsMeter)
    """What became of the sessions behind the tokens."""
