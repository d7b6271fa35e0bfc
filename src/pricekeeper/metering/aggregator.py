"""The aggregator: folds posted records into the totals, which only move forward.

A run reads the marked ticks above the checkpoint, and the records of their regions. Their sums move
each total forward (`metering.fold`), on condition that it is still the one that was read. So any
number of processes may run it, and a lost reply does no harm. Unreadable accounts and pages are
reported and retried by the next run.

A tick is closed two ticks after its end. By then each of its records is written, or a repair of its
day was requested, even if a clock has leapt by a minute. Once its records are in the totals, the
checkpoint moves past it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from pricekeeper.clock import LEAP_MS_MAX, Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.days import MS_PER_DAY, day_of
from pricekeeper.errors import ConditionFailedError, OutcomeUnknownError, StoreError
from pricekeeper.metering.aggregation_report import AggregationReport, RebuildReport, Tally
from pricekeeper.metering.folding import FoldRunner, Look, look_at_nothing
from pricekeeper.metering.items import (
    CHECKPOINT,
    RETENTION_DAYS,
    awaited_from,
    awaited_update,
    checkpoint_from,
    checkpoint_put,
    checkpoint_update,
    closed_tick_from,
)
from pricekeeper.metering.journal import ticks_of_day
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.storage import Store
from pricekeeper.ticks import tick_of

INTERVAL_MS: Final = 60_000
JITTER_PCT: Final = 10
TICKS_AT_ONCE: Final = 64

_HOUR_MS: Final = 3_600_000
_ZONE_WESTERNMOST_MS: Final = 12 * _HOUR_MS
_ZONE_EASTERNMOST_MS: Final = 14 * _HOUR_MS
_MARGIN_MS: Final = _HOUR_MS


def closable_tick(now_ms: int) -> int:
    """The last tick that can be closed: it ended two ticks ago."""
    return tick_of(now_ms) - 3


def days_open(since_ms: int, now_ms: int) -> Iterator[str]:
    """Yield the days, in any zone, on which records between these moments may count."""
    first_ms = since_ms - LATE_MS_MAX - _ZONE_WESTERNMOST_MS - _MARGIN_MS
    last_ms = now_ms + AHEAD_MS_MAX + _ZONE_EASTERNMOST_MS + _MARGIN_MS
    for number in range(first_ms // MS_PER_DAY, last_ms // MS_PER_DAY + 1):
        yield day_of((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=number)).date())


class Aggregator:
    """Brings the totals up to date, once or at intervals."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        retention_days: int = RETENTION_DAYS,
        look: Look = look_at_nothing,
        randomness: random.Random | None = None,
    ) -> None:
        """``look`` is called for every organisation whose totals a run has looked at."""
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._random = randomness or random.Random()  # noqa: S311  # spreads runs, no secret
        self._fold_runner = FoldRunner(store, clock, retention_days, look)

    @property
    def meter(self) -> FoldMeter:
        return self._fold_runner.meter

    async def run_forever(
        self,
        interval_ms: int = INTERVAL_MS,
        observe: Callable[[AggregationReport], None] = lambda _: None,
    ) -> None:
        """Run at every interval, plus or minus a tenth, unless any instance has just run."""
        while True:
            spread_ms = interval_ms * JITTER_PCT // 100
            await self._clock.sleep_ms(interval_ms + self._random.randint(-spread_ms, spread_ms))
            began_ms = self._clock.now_ms()
            try:
                report = await self.run_once(unless_run_within_ms=interval_ms // 2)
            except StoreError as error:  # the next interval tries again
                told = (f"{type(error).__name__}: {error}",)
                report = AggregationReport(began_ms, failed=1, errors=told)
            observe(report)

    async def run_once(self, *, unless_run_within_ms: int = 0) -> AggregationReport:
        """Raises only if the posted ticks can't be read at all."""
        began_ms = self._clock.now_ms()
        checkpoint = await self._store.get(*CHECKPOINT)
        last_ms = checkpoint_from(checkpoint)
        since_last_ms = None if last_ms is None else began_ms - last_ms
        if since_last_ms is not None and 0 <= since_last_ms < unless_run_within_ms:
            return AggregationReport(began_ms, since_last_ms=since_last_ms, skipped=True)
        oldest_ms = began_ms - self._retention_days * MS_PER_DAY
        since_ms = max(oldest_ms, min(began_ms, oldest_ms if last_ms is None else last_ms))
        tally = Tally()
        closed = closed_tick_from(checkpoint)
        is_ahead = closed is not None and closed > closable_tick(began_ms) + 1
        if is_ahead or _is_ahead(last_ms, began_ms):
            closed = await self._rebuild(since_ms, began_ms, tally)
        else:
            first = tick_of(oldest_ms) if closed is None else closed
            closed = await self._fold(began_ms, first, tally)
        if not tally.failed:
            await self._advance_checkpoint(began_ms, closed, last_ms)
        await self._fold_runner.repair(closable_tick(began_ms), tally)
        lag_ms = None if last_ms is None else tally.written_at_ms - since_ms
        return AggregationReport(
            began_at_ms=began_ms,
            accounts=tally.accounts,
            written=tally.written,
            failed=tally.failed,
            unreadable=tally.unreadable,
            errors=tuple(tally.errors),
            lag_ms=lag_ms if tally.written else 0,
            since_last_ms=since_last_ms,
        )

    async def rebuild_day(self, day: str, org_id: str = "") -> RebuildReport:
        """Rebuild a day from the journal. No total goes back, so expired records stay counted."""
        tally = Tally()
        closable = closable_tick(self._clock.now_ms())
        ticks = await self._fold_runner.read_ticks(*ticks_of_day(day))
        orgs = await self._fold_runner.rebuild_all(ticks, [day], closable, tally, org_id)
        return RebuildReport(
            day, orgs, tuple(tally.changes), tally.failed, tally.unreadable, tuple(tally.errors)
        )

    async def read_caught_up_at_ms(self) -> int:
        """The moment up to which all records are in the totals, in at most two calls."""
        last_ms = checkpoint_from(await self._store.get(*CHECKPOINT))
        if last_ms is not None:
            return last_ms
        try:
            waiting = await self._store.update(awaited_update(self._clock.now_ms()))
        except ConditionFailedError as known:
            waiting = dict(known.item or {})
        return awaited_from(waiting)

    async def _fold(self, began_ms: int, closed: int, tally: Tally) -> int:
        closable = max(closed, closable_tick(began_ms))
        ticks = await self._fold_runner.read_ticks(closed + 1, tick_of(began_ms) + 1)
        failed: set[str] = set()
        for some in in_groups(ticks, TICKS_AT_ONCE):
            failed |= await self._fold_runner.fold(some, closable, tally, failed)
            if not failed:
                closed = max(closed, min(some[-1], closable))
        return closed if failed else closable

    async def _rebuild(self, since_ms: int, began_ms: int, tally: Tally) -> int:
        """Rebuild the open days since then: a clock far ahead has closed ticks that are open."""
        closable = closable_tick(began_ms)
        first = tick_of(began_ms - LATE_MS_MAX - _MARGIN_MS)
        ticks = await self._fold_runner.read_ticks(first, tick_of(began_ms) + 1)
        await self._fold_runner.rebuild_all(
            ticks, list(days_open(since_ms, began_ms)), closable, tally
        )
        return closable

    async def _advance_checkpoint(self, began_ms: int, closed: int, last_ms: int | None) -> None:
        """``last_ms`` is the checkpoint read when the run began."""
        try:
            await self._store.update(checkpoint_update(began_ms, closed))
        except ConditionFailedError as refusal:
            # A later run is stored, unless it is unreadable or was made by a wrong clock.
            is_wrong = last_ms is None or _is_ahead(last_ms, began_ms)
            if is_wrong and checkpoint_from(refusal.item) == last_ms:
                with contextlib.suppress(OutcomeUnknownError):
                    await self._store.put(checkpoint_put(began_ms, closed))
        except OutcomeUnknownError:
            pass  # this run may not be remembered, and the next one does it over


def _is_ahead(last_ms: int | None, began_ms: int) -> bool:
    return last_ms is not None and last_ms > began_ms + LEAP_MS_MAX
