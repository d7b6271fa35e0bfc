"""Background work of the service: carrying counts over, and the daily price refresh."""

from __future__ import annotations

import os
from math import nan
from pathlib import Path
from typing import Final

import structlog

from pricekeeper.bootstrap import Services, Supervisor, price_source
from pricekeeper.errors import StoreError
from pricekeeper.http.election import Election
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import MULTIPROCESS, Metrics
from pricekeeper.http.spend import SpendMetric
from pricekeeper.limiter import LimiterMeter
from pricekeeper.metering import AggregationReport
from pricekeeper.selection import EXHAUSTED, Reason, quota_pct_hundredths
from pricekeeper.tenants import Client

CARRY_INTERVAL_MS: Final = 5_000
SPEND_INTERVAL_SECS: Final = 60
"""Where the aggregator is turned off; else its own."""
PRICES_INTERVAL_MS: Final = 24 * 3_600_000
_NO_SELECTIONS: Final = dict.fromkeys((*(reason.value for reason in Reason), EXHAUSTED), 0)
"""Shown from the beginning, so that the first one is seen as a change."""

_log = structlog.get_logger(__name__)


class Observer:
    """Turns what the features have counted into metrics, and keeps the prices fresh."""

    def __init__(
        self,
        services: Services,
        metrics: Metrics,
        supervisor: Supervisor,
        api_limits: ApiLimits,
    ) -> None:
        self._services = services
        self._supervisor = supervisor
        self._api_limits = api_limits
        self._quotas_shown: dict[tuple[str, str], float] = {}
        self._secrets_shown: dict[Client, int] = {}
        self._caught_up_at_ms: int | None = None
        self.metrics = metrics
        metrics.refresh = self.carry

    def aggregated(self, report: AggregationReport) -> None:
        """Note an aggregator run: what it has caught up with, or knows that another one has."""
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
        """Learn from the store how far the totals are, where this instance runs the aggregator.

        A restart changes nothing about that. If it can't be read, the lag grows from now on until a
        run knows better, so that an alarm comes late and not never.
        """
        if not self._services.settings.aggregator_interval_secs:
            return
        self._caught_up_at_ms = self._services.clock.now_ms()
        try:
            self._caught_up_at_ms = await self._services.aggregator.caught_up_at_ms()
        except StoreError as error:
            _log.warning("aggregator_lag_unknown", error=error.code)

    def carry(self) -> None:
        """Carry over what every feature has counted."""
        self.metrics.carry_own()
        self._carry_clock()
        self._carry_aggregator_lag()
        self._carry_quotas()
        self._carry_spend()
        self._carry_limits()
        self._carry_identity()
        self.metrics.carry("pricekeeper_job_crashes", self._supervisor.crashes)

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

    def _carry_clock(self) -> None:
        clock = self._services.clock
        self.metrics.clock_in_doubt.set(clock.doubt is not None)
        self.metrics.clock_leap.set(clock.leap_ms / 1000)
        self.metrics.carry("pricekeeper_clock_leaps", {"": clock.leaps})

    async def show_spend_forever(self) -> None:
        """Show what was spent, beginning now: after a restart it is what it was before."""
        folder = os.environ.get(MULTIPROCESS)
        interval_secs = self._services.settings.aggregator_interval_secs or SPEND_INTERVAL_SECS
        spend = SpendMetric(self._services, self.metrics.spend)
        with Election(None if folder is None else Path(folder), "spend") as election:
            while True:
                if election.is_elected():
                    await spend.refresh()
                await self._services.clock.sleep_ms(interval_secs * 1000)

    def _carry_aggregator_lag(self) -> None:
        """It grows until a run is complete; who does not run the aggregator does not know it."""
        lag_ms: float = nan
        if self._caught_up_at_ms is not None:
            lag_ms = max(0, self._services.clock.now_ms() - self._caught_up_at_ms)
        self.metrics.aggregator_lag.set(lag_ms / 1000)

    def _carry_quotas(self) -> None:
        """Show what has changed: of several workers, the one that heard last is believed."""
        now_ms = self._services.clock.now_ms()
        for scope, labels in self._services.metering.quota_uses.scopes.items():
            for label, use in labels.items():
                hundredths = quota_pct_hundredths(use.spend_usd_micros, use.quota_usd_micros)
                ratio = 0.0 if use.ends_at_ms <= now_ms else hundredths / 10_000
                if self._quotas_shown.get((scope, label)) != ratio:
                    self._quotas_shown[scope, label] = ratio
                    self.metrics.quota.labels(scope, label).set(ratio)

    def _carry_spend(self) -> None:
        metering, selection = self._services.metering.meter, self._services.selection.meter
        self.metrics.carry(
            "pricekeeper_usage_records",
            {
                "accepted": metering.accepted,
                "duplicate": metering.duplicates,
                "failed": metering.failed,
            },
        )
        # Every label from the beginning, so that the first record is seen as a change.
        labels = dict.fromkeys(map(str, self._services.prices.catalogue.labels), 0)
        self.metrics.carry("pricekeeper_price_estimated_records", labels | metering.estimated)
        over = self._services.aggregator.meter.tags_over
        self.metrics.carry("pricekeeper_tag_values_over", {"": over})
        self.metrics.carry_sizes("pricekeeper_usage_commit_records", metering.commit_sizes)
        self.metrics.carry(
            "pricekeeper_selections",
            {**_NO_SELECTIONS, **selection.decisions, "warm": selection.warm},
        )
        self.metrics.carry(
            "pricekeeper_sticky_flips",
            {
                "made": selection.flips,
                "lost": selection.flips_lost,
                "unknown": selection.flips_unknown,
                "failed": selection.flips_failed,
            },
        )

    def _carry_limits(self) -> None:
        api = self._api_limits
        self.metrics.carry("pricekeeper_api_limit_decisions", api.decisions)
        self._carry_limiter("api", api.limiter.meter)
        self._carry_limiter("tenants", self._services.limiter.meter)

    def _carry_limiter(self, limiter: str, meter: LimiterMeter) -> None:
        self.metrics.carry(
            "pricekeeper_limiter_work",
            {
                (limiter, "prefetched"): meter.prefetched,
                (limiter, "unlimited"): meter.unlimited,
                (limiter, "lost_race"): meter.lost_races,
                (limiter, "rolled_back"): meter.rolled_back,
                (limiter, "refund_lost"): meter.refunds_lost,
                (limiter, "debt_cut"): meter.debts_cut,
            },
        )

    def _carry_identity(self) -> None:
        identity, credentials = self._services.identity.meter, self._services.credentials.meter
        sessions = identity.sessions
        self.metrics.carry(
            "pricekeeper_tokens",
            {
                "issued": identity.issued,
                "refreshed": identity.refreshed,
                "login_refused": identity.logins_refused,
                "refresh_refused": identity.refreshes_refused,
            },
        )
        self.metrics.carry(
            "pricekeeper_token_checks",
            {
                "memory": identity.checks_from_memory,
                "store": identity.checks_from_store,
                "refused": identity.checks_refused,
            },
        )
        self.metrics.carry(
            "pricekeeper_revocations",
            {
                "token": identity.tokens_revoked,
                "session": sessions.ended,
                "evicted": sessions.evicted,
                "reused": sessions.reused,
                "client": identity.clients_ended + self._services.tenants.clients_deleted,
                "credentials": credentials.revoked,
                "rotation": credentials.rotated_out,
            },
        )
        self.metrics.carry(
            "pricekeeper_retrieval_tokens",
            {
                "issued": credentials.retrievals_issued,
                "claimed": credentials.retrievals_claimed,
                "refused": credentials.retrievals_refused,
            },
        )
        self._carry_secrets()

    def _carry_secrets(self) -> None:
        """Show each secret's moment once: of several workers, the one that saw it last is right."""
        for client, epoch in self._services.credentials.meter.secrets_created_at_epoch.items():
            if self._secrets_shown.get(client) != epoch:
                self._secrets_shown[client] = epoch
                self.metrics.secrets.labels(client.org_id, client.app_id or "").set(epoch)
