"""Counts what has no price, for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_UNKNOWN: Final = Family(
    "pricekeeper_price_unknown",
    "Calls and usage records that were refused, because a price is not known.",
    ("label",),
)


@dataclass(slots=True)
class PricingMeter:
    """What one instance could not price."""

    unpriced: Counter[str] = counted(_UNKNOWN, factory=Counter)
    """By model label; labels are the deployment's."""
