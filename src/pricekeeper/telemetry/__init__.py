"""Logs and counters: what an operator sees of what happens inside."""

from pricekeeper.telemetry.families import (
    BOUNDS,
    BOUNDS_US,
    Durations,
    Family,
    Kind,
    Sizes,
    counted,
    families_of,
    read_samples,
)
from pricekeeper.telemetry.meter import StoreMeter

__all__ = [
    "BOUNDS",
    "BOUNDS_US",
    "Durations",
    "Family",
    "Kind",
    "Sizes",
    "StoreMeter",
    "counted",
    "families_of",
    "read_samples",
]
