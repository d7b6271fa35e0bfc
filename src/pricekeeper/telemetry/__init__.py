"""Logs and counters: what an operator sees of what happens inside."""

from pricekeeper.telemetry.meter import StoreMeter
from pricekeeper.telemetry.sizes import BOUNDS, BOUNDS_US, Durations, Sizes

__all__ = ["BOUNDS", "BOUNDS_US", "Durations", "Sizes", "StoreMeter"]
