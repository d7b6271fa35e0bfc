"""Checks at intervals what no aggregation shows: denials, prices, lag, anomalies, secrets.

Each instance judges the denials and prices that it counted. Lag, spend and secrets come from the
store, so all instances find the same and one decides. Anomalies are checked every ten minutes for
organisations with new spend, secrets once a day by the instance that claims the day. A failed check
is logged and repeated at the next interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from pricekeeper.alerts.alert import Finding
from pricekeeper.alerts.anomaly import anomaly_findings, past_day, past_days
from pricekeeper.alerts.deciding import Decider
from pricekeeper.alerts.findings import (
    DENIED_MS,
    UNSETTLED_MS,
    BadShares,
    denial_findings,
    lag_findings,
    price_finding,
    secret_findings,
    unsettled_findings,
)
from pricekeeper.alerts.items import claim_update
from pricekeeper.alerts.watching import find_policy
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import day_start_ms, org_day
from pricekeeper.errors import ConditionFailedError, StoreError
from pricekeeper.metering.ranges import RangeReader
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.values import OrgId

INTERVAL_MS: Final = 30_000
ANOMALY_MS: Final = 600_000
PAST_MAX: Final = 10_000
SECRETS: Final = "SECRETS"

_log = structlog.get_logger(__name__)


class Sources(NamedTuple):
    """The counters of this instance, and the progress of the totals."""

    estimated: Counter[str]
    unpriced: Counter[str]
    read_caught_up_at_ms: Callable[[], Awaitable[int]]
    aggregator_interval_secs: int


class Checks:
    """Runs the checks."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenants: Tenants,
        decider: Decider,
        sources: Sources,
        active: BoundedCache[OrgId, bool],
    ) -> None:
        """``active`` are organisations with new spend; the checks remove them."""
        self._store = store
        self._clock = clock
        self._tenants = tenants
        self._decider = decider
        self._sources = sources
        self._active = active
        self._ranges = RangeReader(store, clock)
        self._past: BoundedCache[tuple[OrgId, str], tuple[dict[int, int], ...]] = BoundedCache(
            PAST_MAX
        )
        self._reported: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        self._anomalies_at_ms = 0
        self._secrets_day = ""
        self.denials: BadShares[Client] = BadShares(DENIED_MS)
        self.unsettled: BadShares[OrgId] = BadShares(UNSETTLED_MS)
        """Charged pico-dollars by organisation, and those of unsettled calls."""

    async def run_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            await self.run_once()

    async def run_once(self) -> None:
        """Make all checks that are due; a failure of one does not stop the others."""
        for look in (
            self._look_at_rates,
            self._look_at_prices,
            self._look_at_lag,
            self._look_at_anomalies,
            self._look_at_secrets,
        ):
            try:
                await look()
            except StoreError as error:
                _log.warning("alert_check_failed", check=look.__name__.strip("_"), code=error.code)

    async def _look_at_rates(self) -> None:
        now_ms = self._clock.now_ms()
        findings: list[Finding] = []
        for client, share in self.denials.bad(now_ms):
            policy = await find_policy(self._tenants, client.org_id, client.app_id)
            findings += [] if policy is None else denial_findings(policy, share, now_ms)
        for org_id, share in self.unsettled.bad(now_ms):
            policy = await find_policy(self._tenants, org_id)
            findings += [] if policy is None else unsettled_findings(policy, share, now_ms)
        await self._decider.decide(findings)

    async def _look_at_prices(self) -> None:
        now_ms = self._clock.now_ms()
        for is_estimated, counts in (
            (True, self._sources.estimated),
            (False, self._sources.unpriced),
        ):
            seen = Counter(counts)
            grown = seen - self._reported[is_estimated]
            await self._decider.decide(
                price_finding(label, is_estimated=is_estimated, records=more, now_ms=now_ms)
                for label, more in grown.items()
            )
            self._reported[is_estimated] = seen

    async def _look_at_lag(self) -> None:
        caught_up_at_ms = await self._sources.read_caught_up_at_ms()
        interval_secs = self._sources.aggregator_interval_secs
        now_ms = self._clock.now_ms()
        await self._decider.decide(lag_findings(caught_up_at_ms, interval_secs, now_ms))

    async def _look_at_anomalies(self) -> None:
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._anomalies_at_ms < ANOMALY_MS:
            return
        for org_id in list(self._active):
            policy = await find_policy(self._tenants, org_id)
            if policy is not None and policy.alerts.anomaly_pct:
                await self._decider.decide(await self._find_anomaly(policy, now_ms))
            self._active.pop(org_id)
        self._anomalies_at_ms = now_ms

    async def _find_anomaly(self, policy: Policy, now_ms: int) -> list[Finding]:
        zone, day = policy.timezone, org_day(policy.timezone, now_ms)
        elapsed_ms = now_ms - day_start_ms(zone, day)
        past = [
            past_day(hours, zone, one, elapsed_ms)
            for one, hours in zip(past_days(day), await self._read_past(policy, day), strict=True)
        ]
        today = await self._read_hours(policy.org_id, day)
        return list(anomaly_findings(policy, day, sum(today.values()), past, now_ms))

    async def _read_past(self, policy: Policy, day: str) -> tuple[dict[int, int], ...]:
        known = self._past.get((policy.org_id, day))
        if known is None:
            known = tuple([await self._read_hours(policy.org_id, one) for one in past_days(day)])
            self._past.put((policy.org_id, day), known)
        return known

    async def _read_hours(self, org_id: OrgId, day: str) -> dict[int, int]:
        hours: Counter[int] = Counter()
        for label in (await self._ranges.read_hourly_costs(org_id, None, day, day)).values():
            hours.update(label)
        return hours

    async def _look_at_secrets(self) -> None:
        day = org_day("UTC", self._clock.now_ms())
        if day == self._secrets_day:
            return
        try:
            await self._store.update(claim_update(SECRETS, day))
        except ConditionFailedError:
            self._secrets_day = day
            return
        async for policy in self._tenants.read_all():
            await self._decider.decide(secret_findings(policy, self._clock.now_ms()))
        self._secrets_day = day
