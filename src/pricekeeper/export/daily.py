"""Exports every day once it can no longer change, while the service runs.

One instance holds a lease; two that overlap write the same bytes. A row expires `RETENTION_RANGE`
days after its day or later, so unexported days are kept by keeping all rows that expire after a
moment.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
import structlog

from pricekeeper.clock import Clock
from pricekeeper.days import MS_PER_DAY, day_start_ms
from pricekeeper.errors import ConditionFailedError, ExportError, StoreError
from pricekeeper.export.destination import open_destination
from pricekeeper.export.manifest import Manifest, day_after, days_between, last_final_day
from pricekeeper.export.service import Exporter, Progress
from pricekeeper.metering.journal_items import ticks_from, ticks_query
from pricekeeper.settings import RETENTION_RANGE, Settings
from pricekeeper.storage import Condition, Item, Key, Remove, Set, Store, Update, attr
from pricekeeper.storage.kept_rows import EXPORT_STATE, KEPT_FROM
from pricekeeper.storage.tables import CONFIG
from pricekeeper.ticks import TICK_MS, tick_of

INTERVAL_MS: Final = 15 * 60_000
LEASE_MS: Final = 10 * 60_000
RENEW_MS: Final = 60_000

_DAY: Final = "day"
_OWNER: Final = "owner"
_UNTIL: Final = "until_ms"
_LEASE: Final = Key("EXPORT", "LEASE")
_SECS_PER_DAY: Final = 86_400

_log = structlog.get_logger(__name__)


class DailyExports:
    """The job that exports."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._state = ExportState(store)
        self._owner = secrets.token_hex(8)
        self._renewed_ms: int | None = None

    async def settle_keeping(self) -> None:
        """Begin or end keeping unexported usage, as the settings state."""
        if self._settings.exports_before_delete:
            await self._state.keep()
        else:
            await self._state.release()

    async def try_to_release(self) -> None:
        """Where nothing is exported, stop keeping usage; a failure is only logged."""
        try:
            await self._state.release()
        except StoreError as error:
            _log.warning("kept_usage_not_released", code=error.code, error=str(error))

    async def run_forever(self) -> None:
        while True:
            try:
                await self.settle_keeping()
                await self.run_once()
            except (ExportError, StoreError) as error:  # the next interval continues
                _log.error("export_failed", code=error.code, error=str(error))
            await self._clock.sleep_ms(INTERVAL_MS)

    async def run_once(self) -> list[Manifest]:
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
                _log_export(manifest)
        finally:
            await destination.close()
        return done

    async def find_next_day(self, exporter: Exporter) -> str:
        """Find the first day to export; without earlier exports, skip days without usage."""
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


def _log_export(manifest: Manifest) -> None:
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


class ExportState:
    """The state of exports in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_day(self) -> str | None:
        """``None``, or the last exported day; those before it are exported too."""
        return _day_in(await self._store.get(*EXPORT_STATE))

    async def advance(self, day: str) -> None:
        """Record days up to this as exported; never moves backwards."""
        table, key = EXPORT_STATE
        forward: Condition = attr(_DAY).absent() | attr(_DAY).lt(day)
        said, kept = Set(_DAY, day), Set(KEPT_FROM, kept_from_epoch(day))
        for actions, also in (
            ((said, kept), attr(KEPT_FROM).exists()),
            ((said,), attr(KEPT_FROM).absent()),
        ):
            try:
                await self._store.update(Update(table, key, actions, forward & also))
            except ConditionFailedError:
                continue
            return

    async def keep(self) -> None:
        table, key = EXPORT_STATE
        item = await self._store.get(table, key)
        if item is not None and KEPT_FROM in item:
            return
        day = _day_in(item)
        same = attr(_DAY).absent() if day is None else attr(_DAY).eq(day)
        kept = Set(KEPT_FROM, 0 if day is None else kept_from_epoch(day))
        try:
            await self._store.update(Update(table, key, (kept,), same))
        except ConditionFailedError:
            return  # a day was exported meanwhile; the next interval keeps

    async def release(self) -> None:
        table, key = EXPORT_STATE
        item = await self._store.get(table, key)
        if item is not None and KEPT_FROM in item:
            await self._store.update(Update(table, key, (Remove(KEPT_FROM),)))

    async def take_lease(self, owner: str, now_ms: int, lease_ms: int) -> bool:
        """Take or renew the lease; ``False`` if another instance has it."""
        free = attr(_UNTIL).absent() | attr(_UNTIL).lt(now_ms) | attr(_OWNER).eq(owner)
        actions = (Set(_OWNER, owner), Set(_UNTIL, now_ms + lease_ms))
        try:
            await self._store.update(Update(CONFIG, _LEASE, actions, free))
        except ConditionFailedError:
            return False
        return True


def kept_from_epoch(day: str) -> int:
    """Rows that expire later are kept, if days up to ``day`` are exported."""
    return day_start_ms("UTC", day_after(day)) // 1000 + RETENTION_RANGE[0] * _SECS_PER_DAY


def _day_in(item: Item | None) -> str | None:
    day = None if item is None else item.get(_DAY)
    return day if isinstance(day, str) else None
