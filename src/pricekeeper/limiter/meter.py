"""Counts the work of a limiter."""

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
    denied: int = 0
    prefetched: int = counted(_WORK, "prefetched")
    unlimited: int = counted(_WORK, "unlimited")
    """Admitted because the store did not answer."""
    lost_races: int = counted(_WORK, "lost_race")
    rolled_back: int = counted(_WORK, "rolled_back")
    debits_lost: int = counted(_WORK, "debit_lost")
    """Tokens taken again after a lost reply; if they were taken twice, they refill."""
    refunds_lost: int = counted(_WORK, "refund_lost")
    """Tokens that could not be given back; they refill instead."""
    debts_cut: int = counted(_WORK, "debt_cut")
    """Adjustments that took less than they asked for."""
