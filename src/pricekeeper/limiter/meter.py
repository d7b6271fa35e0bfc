"""Counts what a limiter has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_WORK: Final = Family(
    "pricekeeper_limiter_work", "What limiters did beyond that.", ("limiter", "kind")
)


@dataclass(slots=True)
class LimiterMeter:
    """Handed to a limiter when it is made; tests and the metrics endpoint read it."""

    granted: int = 0
    """Leases given, whichever way."""
    denied: int = 0
    """Requests that a bucket had too little for."""
    prefetched: int = counted(_WORK, "prefetched")
    """Granted leases that came out of memory, without a store call."""
    unlimited: int = counted(_WORK, "unlimited")
    """Granted leases that hold nothing, because the store did not answer."""
    lost_races: int = counted(_WORK, "lost_race")
    """Writes that had to be planned anew because another writer came first."""
    rolled_back: int = counted(_WORK, "rolled_back")
    """Leases given back because their caller failed or was cancelled."""
    refunds_lost: int = counted(_WORK, "refund_lost")
    """Times that tokens could not be given back; they refill instead."""
    debts_cut: int = counted(_WORK, "debt_cut")
    """Adjustments of which less was taken than asked for: a bucket could bear no more."""
