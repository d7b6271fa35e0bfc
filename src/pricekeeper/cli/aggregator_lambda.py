"""The aggregator outside the service: for ``pricekeeper aggregate``, and as an AWS Lambda function.

The handler is ``pricekeeper.cli.aggregator_lambda.handler``. Two at once do no harm. It decides
alerts, which the service delivers, and charges expired authorizations of dead instances.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import structlog

from pricekeeper.alerts import make_look
from pricekeeper.authorizations import Expiry
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.metering import AggregationReport, Aggregator
from pricekeeper.metering.folding import Look, look_at_nothing
from pricekeeper.settings import RETENTION_DAYS_DEFAULT, StoreLocation, read_settings
from pricekeeper.storage import Store, open_store, require_format
from pricekeeper.telemetry.logs import configure_logging

log = structlog.get_logger("pricekeeper.aggregator")


class WarmAggregator:
    """An event loop and an open store, kept between runs."""

    def __init__(
        self, location: StoreLocation, retention_days: int = RETENTION_DAYS_DEFAULT
    ) -> None:
        self._location = location
        self._retention_days = retention_days
        self._clock = SystemClock()
        self._runner = asyncio.Runner()
        self._store: Store | None = None
        self._look: Look = look_at_nothing

    def run_once(self) -> AggregationReport:
        """Aggregate and sweep; reopens the store after a failure."""
        return self._runner.run(self._run_once())

    def close(self) -> None:
        """Close the store and loop. Lambda never calls it."""
        if self._store is not None:
            self._runner.run(self._store.close())
        self._runner.close()

    async def _run_once(self) -> AggregationReport:
        if self._store is None:
            store = await open_store(self._location, clock=self._clock)
            try:
                await require_format(store, may_begin=False)
            except BaseException:
                await store.close()
                raise
            self._store = store
            self._look = make_look(self._store, self._clock)
        return await aggregate_and_sweep(
            self._store, self._clock, retention_days=self._retention_days, look=self._look
        )


@cache
def warm_aggregator() -> WarmAggregator:
    """Make it at the first event, so that Lambda logs a wrong setting."""
    settings = read_settings(os.environ)
    configure_logging(settings.log_level)
    return WarmAggregator(settings.store, settings.retention_days)


def handler(event: object, context: object) -> dict[str, Any]:
    """Run one aggregation. An incomplete one raises for Lambda's count; the next tries again."""
    del event, context
    report = warm_aggregator().run_once()
    answer: dict[str, Any] = msgspec.to_builtins(report)
    if report.failed or report.unreadable or report.unswept:
        log.error("aggregation_incomplete", **answer)
        behind = report.failed + report.unreadable
        if not behind:
            raise StoreUnavailableError(
                f"expired authorizations of {report.unswept} regions could not be charged"
            )
        raise StoreUnavailableError(
            f"{behind} of {report.accounts} totals could not be brought up to date: "
            + "; ".join(report.errors)
        )
    log.info("aggregation", **answer)
    return answer


async def aggregate_and_sweep(
    store: Store, clock: Clock, *, retention_days: int, look: Look
) -> AggregationReport:
    """Bring totals up to date, then charge expired authorizations of dead processes."""
    aggregator = Aggregator(store, clock, retention_days=retention_days, look=look)
    report = await aggregator.run_once()
    expiry = Expiry.on_store(store, clock, retention_days)
    try:
        swept = await expiry.sweep()
    finally:
        await expiry.close()
    return replace(report, expired=swept.expired, unswept=swept.failed)
