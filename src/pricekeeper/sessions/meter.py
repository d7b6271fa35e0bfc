"""Counts how sessions ended before their time, for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from pricekeeper.telemetry import counted
from pricekeeper.tenants import REVOCATIONS


@dataclass(slots=True)
class SessionsMeter:
    """What one instance has ended, and why."""

    ended: int = counted(REVOCATIONS, "session")
    """By their own client, or by an administrator."""
    evicted: int = counted(REVOCATIONS, "evicted")
    """To make room for a newer one, or because the limit was lowered."""
    reused: int = counted(REVOCATIONS, "reused")
    """Because a refresh token that was spent came back: it may have been stolen."""
