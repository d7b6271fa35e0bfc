"""Background work of the service: carrying counts over, and the daily price refresh."""

from __future__ import annotations

from typing import Final

import structlog

from pricekeeper.bootstrap import Services, Supervisor, price_source
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.runtime import recent_decisions
from pricekeeper.metering import AggregationReport

CARRY_INTERVAL_MS: Final = 5_000
QUOTAS_SHOWN_MAX: Final = 1_000
"""Clients whose quotas are shown; a metric with a line for each of a million helps nobody."""
PRICES_INTERVAL_MS: Final = 24 * 3_600_000

_log = structlog.get_logger(__name__)


class Observer:
    """Turns what the features have counted into metrics, and keeps the prices fresh."""

    def __init__(self, services: Services, metrics: Metrics, supervisor: Supervisor) -> None:
        self._services = services
        self._supervisor = supervisor
        self.metrics = metrics
        metrics.refresh = self.carry

    def aggregated(self, report: AggregationReport) -> None:
        """Note an aggregator run."""
        self.metrics.aggregator_lag.set((report.lag_ms or 0) / 1000)
        if report.failed:
            _log.warning("aggregation_incomplete", failed=report.failed, errors=report.errors)

    def carry(self) -> None:
        """Carry over what every feature has counted."""
        carry, selection = self.metrics.carry, self._services.selection.meter
        self.metrics.carry_store()
        carry(
            "pricekeeper_job_crashes",
            "Background jobs that crashed.",
            "job",
            self._supervisor.crashes,
        )
        carry(
            "pricekeeper_selections",
            "Model selections by outcome; warm ones came from memory.",
            "reason",
            {**selection.decisions, "warm": selection.warm},
        )
        carry(
            "pricekeeper_sticky_flips",
            "Sticky fallbacks: made here, lost to others, unknown, failed.",
            "outcome",
            {
                "made": selection.flips,
                "lost": selection.flips_lost,
                "unknown": selection.flips_unknown,
                "failed": selection.flips_failed,
            },
        )
        for decision in recent_decisions()[:QUOTAS_SHOWN_MAX]:
            for use in decision.choice.quotas:
                place = self.metrics.quota.labels(decision.policy.scope_key, use.label)
                place.set(use.quota_pct_hundredths / 10_000)
        limiter = self._services.limiter.meter
        carry(
            "pricekeeper_limiter_decisions",
            "Acquires by outcome.",
            "outcome",
            {
                "granted": limiter.granted,
                "denied": limiter.denied,
                "prefetched": limiter.prefetched,
                "unlimited": limiter.unlimited,
                "rolled_back": limiter.rolled_back,
            },
        )

    async def carry_forever(self) -> None:
        """Carry over again and again, for workers that are seldom scraped."""
        while True:
            await self._services.clock.sleep_ms(CARRY_INTERVAL_MS)
            self.carry()

    async def refresh_prices_daily(self) -> None:
        """Fill the price cache once a day, beginning now."""
        wanted = self._services.settings.price_source
        if wanted is None:
            return
        source = price_source(wanted)
        while True:
            report = await self._services.prices.refresh(source)
            _log.info("prices_refreshed", report=str(report))
            await self._services.clock.sleep_ms(PRICES_INTERVAL_MS)
