"""The aggregator as an AWS Lambda function, for deployments that run none in the service.

The function's handler is ``pricekeeper.cli.aggregator_lambda.handler``; its settings are the
service's own, from the environment. The event is not looked at, so any schedule will do, and
two functions at once do no harm: totals only move forward. It opens the store and nothing else:
a function that sums needs no keys, and has no folder to keep any in. Alerts that follow from what
it sums are decided here, and delivered by the instances of the service. Authorizations of instances
that are gone are charged at what they hold, also while there are no instances at all.

Lambda gives one event at a time to a process and freezes it in between. So what took time to
open is kept: the event loop, and the store that is bound to it. A frozen process loses its
connections without noticing; the aggregator begins with a read, which the store sends again.
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
from pricekeeper.authorizations.expiry import Expiry
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.metering import AggregationReport, Aggregator
from pricekeeper.metering.folding import Look, look_at_nothing
from pricekeeper.settings import RETENTION_DAYS_DEFAULT, StoreLocation, read_settings
from pricekeeper.storage import Store, open_store, require_format
from pricekeeper.telemetry.logs import configure_logging

log = structlog.get_logger("pricekeeper.aggregator")


class WarmAggregator:
    """An event loop with an open store on it, kept from one run to the next."""

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
        """Aggregate and sweep. If the store could not be opened, the next run tries that again."""
        return self._runner.run(self._run_once())

    def close(self) -> None:
        """Let go of everything. Lambda never asks for that; whoever embeds this may."""
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
    """The one of this process, made by the first event and not at import.

    A setting that is wrong is then the error of an invocation, which is logged and counted,
    and not that of a process that won't start.
    """
    settings = read_settings(os.environ)
    configure_logging(settings.log_level)
    return WarmAggregator(settings.store, settings.retention_days)


def handler(event: object, context: object) -> dict[str, Any]:
    """Run one aggregation; what it did, as JSON can say it.

    A schedule throws the answer away. So a run that left something behind raises, for Lambda's
    error count and the alarm on it; the next run visits them again.
    """
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
    """Bring the totals up to date, then charge what has expired of processes that are gone."""
    aggregator = Aggregator(store, clock, retention_days=retention_days, look=look)
    report = await aggregator.run_once()
    expiry = Expiry.on_store(store, clock, retention_days)
    try:
        swept = await expiry.sweep()
    finally:
        await expiry.close()
    return replace(report, expired=swept.expired, unswept=swept.failed)
