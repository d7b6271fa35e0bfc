"""Counts what became of authorizations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AuthorizationMeter:
    """Handed to the service when it is made; tests and the metrics endpoint read it."""

    granted: int = 0
    denied: int = 0
    settled: Counter[str] = field(default_factory=Counter)
    """By the state that they went into."""
    lost_races: int = 0
    """Transactions that had to be decided anew because another writer came first."""
    refunds_lost: int = 0
    """Times that tokens could not be given back; they refill instead."""
