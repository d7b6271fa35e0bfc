"""Exports every day once it can no longer change, as long as the service runs.

However many instances do this, one is enough: whoever holds the lease. Should two overlap all the
same, both write the same bytes.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
import structlog

from pricekeeper.clock import Clock
from pricekeeper.days import MS_PER_DAY
from pricekeeper.errors import ExportError, StoreError
from pricekeeper.export.days import day_after, days_between, last_final_day
from pricekeeper.export.manifest import Manifest
from pricekeeper.export.opening import open_destination
from pricekeeper.export.service import Exporter, Progress
from pricekeeper.export.state import ExportState
from pricekeeper.metering.journal_items import ticks_from, ticks_query
from pricekeeper.settings import Settings
from pricekeeper.storage import Store
from pricekeeper.ticks import TICK_MS, tick_of

INTERVAL_MS: Final = 15 * 60_000
LEASE_MS: Final = 10 * 60_000
RENEW_MS: Final = 60_000

_log = structlog.get_logger(__name__)


class DailyExports:
    """The job that exports; it is also asked which day is next."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._state = ExportState(store)
        self._owner = secrets.token_hex(8)
        self._renewed_ms: int | None = None

    async def settle_keeping(self) -> None:
        """Keep what was not exported, or stop keeping it, as the settings say."""
        if self._settings.exports_before_delete:
            await self._state.keep()
        else:
            await self._state.release()

    async def try_to_release(self) -> None:
        """Stop keeping what was not exported, where nobody exports; if that fails, it is kept."""
        try:
            await self._state.release()
        except StoreError as error:
            _log.warning("kept_usage_not_released", code=error.code, error=str(error))

    async def run_forever(self, interval_ms: int = INTERVAL_MS) -> None:
        """Export whatever is due at every interval, until cancelled."""
        while True:
            try:
                await self.settle_keeping()
                await self.run_once()
            except (ExportError, StoreError) as error:  # the next interval goes on where it stopped
                _log.error("export_failed", code=error.code, error=str(error))
            await self._clock.sleep_ms(interval_ms)

    async def run_once(self) -> list[Manifest]:
        """Export every day that is due, the oldest first."""
        location = self._settings.export_to
        if location is None or not await self._take_lease():
            return []
        done: list[Manifest] = []
        destination = open_destination(
            location, self._clock, s3_endpoint=self._settings.s3_endpoint
        )
        try:
            exporter = Exporter(self._store, self._clock, destination, observe=self._renew)
            first = await self.find_next_day(exporter)
            for day in days_between(first, last_final_day(self._clock.now_ms())):
                if not await exporter.is_final(day):  # the aggregator is behind
                    break
                manifest = await exporter.export_day(day)
                await self._state.advance(day)
                done.append(manifest)
                _tell(manifest)
        finally:
            await destination.close()
        return done

    async def find_next_day(self, exporter: Exporter) -> str:
        """The first day that was not exported.

        If none ever was, the days before anything was posted need no export.
        """
        day = await self._state.read_day()
        if day is not None:
            return day_after(day)
        now_ms = self._clock.now_ms()
        last = last_final_day(now_ms)
        for day in days_between(await self._find_oldest_day(now_ms), last):
            if (await exporter.plan(day)).org_ids:
                return day
        return day_after(last)

    async def _find_oldest_day(self, now_ms: int) -> str:
        """The first day of the retention, or of what is kept beyond it."""
        oldest_ms = now_ms - self._settings.retention_days * MS_PER_DAY
        first = msgspec.structs.replace(ticks_query(0, tick_of(now_ms)), limit=1)
        for tick in ticks_from((await self._store.query(first)).items):
            oldest_ms = min(oldest_ms, tick * TICK_MS)
        return last_final_day(oldest_ms)

    async def _take_lease(self) -> bool:
        self._renewed_ms = self._clock.monotonic_ms()
        return await self._state.take_lease(self._owner, self._clock.now_ms(), LEASE_MS)

    async def _renew(self, progress: Progress) -> None:
        del progress
        if self._renewed_ms is None or self._clock.monotonic_ms() - self._renewed_ms > RENEW_MS:
            await self._take_lease()


def _tell(manifest: Manifest) -> None:
    facts = {
        "day": manifest.day,
        "organisations": len(manifest.organisations),
        "records": manifest.records,
        "cost_usd_picos": manifest.record_sums.cost_usd_picos,
    }
    if manifest.totals_equal_records:
        _log.info("exported", **facts)
        return
    differing = sum(one.differing_accounts for one in manifest.organisations)
    _log.warning("exported_totals_differ", differing_accounts=differing, **facts)
