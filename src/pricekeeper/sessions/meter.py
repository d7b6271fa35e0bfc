"""Counts how sessions ended before their time, for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SessionsMeter:
    """What one instance has ended, and why."""

    ended: int = 0
    """By their own client, or by an administrator."""

    evicted: int = 0
    """To make room for a newer one, or because the limit was lowered."""

    reused: int = 0
    """Because a refresh token that was spent came back: it may have been stolen."""
