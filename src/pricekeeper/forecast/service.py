"""Reads the recorded hours that forecasts are made from, and caches them.

A client's hours are read for the first forecast of an hour, and kept until the totals of another
hour are complete. Concurrent callers share the read.

Bounds: `CLIENTS_MAX` clients are cached, with `HISTORY_HOURS_MAX` hours (three months) by label
each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.days import MS_PER_DAY, org_day
from pricekeeper.forecast.forecast import HISTORY_HOURS_MAX, Hourly
from pricekeeper.forecast.profile import MS_PER_HOUR
from pricekeeper.metering.ranges import RangeReader
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Policy

CLIENTS_MAX: Final = 64


class RecordedHours(NamedTuple):
    """A client's spend in each hour by label, in pico-dollars."""

    by_label: Mapping[str, Mapping[int, int]]
    complete_until_hour: int

    def of(self, labels: Collection[str] = ()) -> Hourly:
        sums: dict[int, int] = {}
        for label, costs in self.by_label.items():
            if not labels or label in labels:
                for hour, cost in costs.items():
                    sums[hour] = sums.get(hour, 0) + cost
        return Hourly(sums, self.complete_until_hour)


class SpendHistory:
    """Reads recorded hours."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self._reader = RangeReader(store, clock)
        self._known: BoundedCache[Client, RecordedHours] = BoundedCache(CLIENTS_MAX)
        self._reads: SingleFlight[tuple[Client, int], RecordedHours] = SingleFlight(
            "pricekeeper-recorded-hours"
        )

    async def read(self, policy: Policy, *, whole_org: bool) -> RecordedHours:
        client = Client(policy.org_id, None if whole_org else policy.app_id)
        complete_until = await self._reader.read_complete_ms() // MS_PER_HOUR
        known = self._known.get(client)
        if known is not None and known.complete_until_hour == complete_until:
            return known
        return await self._reads.run(
            (client, complete_until), lambda: self._read(client, policy.timezone, complete_until)
        )

    async def _read(self, client: Client, zone: str, complete_until: int) -> RecordedHours:
        now_ms = self._clock.now_ms()
        last_ms = min(now_ms, complete_until * MS_PER_HOUR)
        first_ms = max(0, last_ms - HISTORY_HOURS_MAX * MS_PER_HOUR)
        days = org_day(zone, max(0, first_ms - MS_PER_DAY)), org_day(zone, last_ms)
        costs = await self._reader.read_hourly_costs(client.org_id, client.app_id, *days)
        recorded = RecordedHours(costs, complete_until)
        self._known.put(client, recorded)
        return recorded
