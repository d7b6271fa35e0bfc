"""Logs and counters: what an operator sees of what happens inside."""

from pricekeeper.telemetry.meter import StoreMeter

__all__ = ["StoreMeter"]
