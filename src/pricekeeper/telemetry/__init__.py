"""Logs and counters: what an operator sees of what happens inside."""

from pricekeeper.telemetry.meter import StoreMeter
from pricekeeper.telemetry.sizes import BOUNDS, Sizes

__all__ = ["BOUNDS", "Sizes", "StoreMeter"]
