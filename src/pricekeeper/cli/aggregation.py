"""What a process does that aggregates and serves nobody: it sums, and it sweeps."""

from __future__ import annotations

from dataclasses import replace

from pricekeeper.authorizations.expiry import Expiry
from pricekeeper.clock import Clock
from pricekeeper.metering import AggregationReport, Aggregator
from pricekeeper.metering.folding import Look
from pricekeeper.storage import Store


async def aggregate_and_sweep(
    store: Store, clock: Clock, *, retention_days: int, look: Look
) -> AggregationReport:
    """Bring the totals up to date, then charge what has expired of processes that are gone."""
    aggregator = Aggregator(store, clock, retention_days=retention_days, look=look)
    report = await aggregator.run_once()
    expiry = Expiry.on_store(store, clock, retention_days)
    try:
        swept = await expiry.sweep()
    finally:
        await expiry.close()
    return replace(report, expired=swept.expired, unswept=swept.failed)
