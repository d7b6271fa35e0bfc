"""Counts sessions that ended before their expiry, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from pricekeeper.telemetry import counted
from pricekeeper.tenants import REVOCATIONS


@dataclass(slots=True)
class SessionsMeter:
    """The sessions that one instance has ended."""

    ended: int = counted(REVOCATIONS, "session")
    evicted: int = counted(REVOCATIONS, "evicted")
    """For a newer session, or because the limit was lowered."""
    reused: int = counted(REVOCATIONS, "reused")
    """A replaced refresh token was presented again: it may be stolen."""
