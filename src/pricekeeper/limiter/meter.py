"""Counts what a limiter has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LimiterMeter:
    """Handed to a limiter when it is made; tests and the metrics endpoint read it."""

    granted: int = 0
    """Leases given, whichever way."""
    denied: int = 0
    """Requests that a bucket had too little for."""
    prefetched: int = 0
    """Granted leases that came out of memory, without a store call."""
    unlimited: int = 0
    """Granted leases that hold nothing, because the store did not answer."""
    lost_races: int = 0
    """Writes that had to be planned anew because another writer came first."""
    rolled_back: int = 0
    """Leases given back because their caller failed or was cancelled."""
    refunds_lost: int = 0
    """Times that tokens could not be given back; they refill instead."""
    debts_cut: int = 0
    """Adjustments of which less was taken than asked for: a bucket could bear no more."""
