"""Background work of the service: carrying counts over, and the daily price refresh.

`Election` picks one of several workers by a lock on a file, which the operating system releases
when that worker ends.
"""

from __future__ import annotations

import fcntl
import os
from math import nan
from pathlib import Path
from typing import Final, Self

import structlog

from pricekeeper.bootstrap import Services, Supervisor, price_source
from pricekeeper.errors import StoreError
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import (
    API_LIMIT_DECISIONS,
    CRASHES,
    DENIALS,
    IN_DOUBT,
    LAG,
    LEAP,
    LEAPS,
    MULTIPROCESS,
    OUTBOX_AGE,
    OUTBOX_CHANNELS,
    QUOTA,
    SECRETS,
    Metrics,
)
from pricekeeper.http.money_metrics import BudgetMetrics, SpendMetric, count_by_name, ids_of, whose
from pricekeeper.metering import AggregationReport
from pricekeeper.selection import quota_pct_hundredths

CARRY_INTERVAL_MS: Final = 5_000
SPEND_INTERVAL_SECS: Final = 60
"""If the aggregator is off; else its interval is used."""
PRICES_INTERVAL_MS: Final = 24 * 3_600_000

_log = structlog.get_logger(__name__)


class Observer:
    """Turns the counts of features into metrics, and refreshes prices."""

    def __init__(
        self, services: Services, metrics: Metrics, supervisor: Supervisor, api_limits: ApiLimits
    ) -> None:
        self._services = services
        self._supervisor = supervisor
        self._api_limits = api_limits
        self._caught_up_at_ms: int | None = None
        self.metrics = metrics
        metrics.refresh = self.carry
        identity = services.identity.meter
        for meter in (
            services.strange_items,
            services.tenants.meter,
            services.credentials.meter,
            identity,
            identity.sessions,
            services.keys_meter,
            services.prices.meter,
            services.metering.meter,
            services.aggregator.meter,
            services.selection.meter,
            services.authorizations.meter,
            services.ledger.meter,
            services.alerts.meter,
            services.activity.feed.meter,
            services.activity.denials.meter,
        ):
            metrics.watch(meter)
        metrics.watch(api_limits.limiter.meter, "api")
        metrics.watch(services.limiter.meter, "tenants")

    def note_aggregation(self, report: AggregationReport) -> None:
        """Note how far an aggregation, here or elsewhere, has brought the totals."""
        if report.failed or report.unreadable:
            _log.warning(
                "aggregation_incomplete",
                failed=report.failed,
                unreadable=report.unreadable,
                errors=report.errors,
            )
        if not report.failed and not report.skipped:
            self._caught_up_at_ms = report.began_at_ms
        elif report.since_last_ms is not None:
            self._caught_up_at_ms = report.began_at_ms - report.since_last_ms

    async def read_lag(self) -> None:
        """Read how far the totals are, if this instance runs the aggregator.

        If that fails, the lag grows from now, so an alarm is late rather than missed.
        """
        if not self._services.aggregator_interval_secs:
            return
        self._caught_up_at_ms = self._services.clock.now_ms()
        try:
            self._caught_up_at_ms = await self._services.aggregator.read_caught_up_at_ms()
        except StoreError as error:
            _log.warning("aggregator_lag_unknown", error=error.code)

    def carry(self) -> None:
        self.metrics.carry_meters()
        self.metrics.carry(API_LIMIT_DECISIONS, self._api_limits.decisions)
        self.metrics.carry(CRASHES, self._supervisor.crashes)
        self.metrics.carry(DENIALS, count_by_name(self._services.activity.denials))
        self._show_clock()
        self._show_aggregator_lag()
        self._show_quotas()
        self._show_secrets()
        self._show_outbox()

    async def carry_forever(self) -> None:
        """For workers that are seldom scraped."""
        while True:
            await self._services.clock.sleep_ms(CARRY_INTERVAL_MS)
            self.carry()

    async def refresh_prices_daily(self) -> None:
        """Write the prices of the source, if there is one, and the file's where it states none."""
        prices, wanted = self._services.prices, self._services.settings.price_source
        source = None if wanted is None else price_source(wanted)
        while True:
            if source is not None:
                report = await prices.refresh(source)
                _log.info("prices_refreshed", report=str(report))
            try:
                await prices.publish_file()
            except StoreError as error:  # nothing is priced by these items; tomorrow, again
                _log.warning("prices_not_published", error=error.code)
            await self._services.clock.sleep_ms(PRICES_INTERVAL_MS)

    def _show_clock(self) -> None:
        clock = self._services.clock
        self.metrics.show(IN_DOUBT, clock.doubt is not None)
        self.metrics.show(LEAP, clock.leap_ms / 1000)
        self.metrics.carry(LEAPS, {(): clock.leaps})

    async def show_spend_forever(self) -> None:
        folder = os.environ.get(MULTIPROCESS)
        interval_secs = self._services.aggregator_interval_secs or SPEND_INTERVAL_SECS
        spend = SpendMetric(self._services, self.metrics.spend)
        budgets = BudgetMetrics(self._services, self.metrics)
        with Election(None if folder is None else Path(folder), "spend") as election:
            while True:
                if election.try_to_take_lock():
                    await spend.refresh()
                    await budgets.refresh(spend.org_ids)
                await self._services.clock.sleep_ms(interval_secs * 1000)

    def _show_aggregator_lag(self) -> None:
        """The lag grows until a run is complete; NaN without an aggregator."""
        lag_ms: float = nan
        if self._caught_up_at_ms is not None:
            lag_ms = max(0, self._services.clock.now_ms() - self._caught_up_at_ms)
        self.metrics.show(LAG, lag_ms / 1000)

    def _show_quotas(self) -> None:
        now_ms, shown = self._services.clock.now_ms(), dict[tuple[str, ...], float]()
        for key, scope in self._services.metering.quota_uses.scopes.items():
            org_id, app_id = ids_of(key)
            app_name = None if app_id is None else scope.policy.app_name
            owner = whose(scope.policy.org_name, app_name, org_id, app_id)
            for label, use in scope.labels.items():
                hundredths = quota_pct_hundredths(use.spend_usd_micros, use.quota_usd_micros)
                ratio = 0.0 if use.ends_at_ms <= now_ms else hundredths / 10_000
                shown[*owner, label] = ratio
        self.metrics.show_changes(QUOTA, shown)

    def _show_outbox(self) -> None:
        meter = self._services.alerts.meter
        self.metrics.show(OUTBOX_AGE, meter.outbox_age_secs)
        self.metrics.show(OUTBOX_CHANNELS, meter.outbox_channels)

    def _show_secrets(self) -> None:
        ages = self._services.credentials.meter.secret_ages
        self.metrics.show_changes(
            SECRETS,
            {
                whose(age.org_name, age.app_name, *client): age.created_at_epoch
                for client, age in ages.items()
            },
        )


class Election:
    """Whether this worker does the work. Without a folder it is the only one."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / f"{name}.lock"
        self._descriptor: int | None = None

    def try_to_take_lock(self) -> bool:
        """``True`` if the lock is or was taken."""
        if self._path is None or self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
