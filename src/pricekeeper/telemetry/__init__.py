"""Logs and counters: what an operator sees of what happens inside."""

from pricekeeper.telemetry.families import Family, Kind, counted, families_of, read_samples
from pricekeeper.telemetry.meter import StoreMeter
from pricekeeper.telemetry.sizes import BOUNDS, BOUNDS_US, Durations, Sizes

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
