"""Marks the ticks and regions that a process posts into, and requests repairs of late records.

The tick of a write is marked before it, and closed two ticks after its end. A record answered more
than `ANSWER_MS_MAX` after its tick may have missed the tick's last sum. So a repair of its day is
requested before the record is acknowledged.

Bounds: `TICKS_MAX` and `MARKED_MAX` remembered marks, `REPAIRED_MAX` remembered requests, and
`SENDINGS_MAX` sendings of one write, with the pauses of `BACKOFF`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff, BoundedCache, NextFlight
from pricekeeper.errors import ContendedError, OutcomeUnknownError, StoreError
from pricekeeper.metering.journal_items import (
    PostedRegion,
    Repair,
    marker_put,
    page_expires_at_epoch,
    repair_put,
    tick_put,
)
from pricekeeper.metering.receipt import Receipt
from pricekeeper.storage import Put, Store
from pricekeeper.ticks import TICK_MS, region_at, tick_of

ANSWER_MS_MAX: Final = 45_000
"""Of the 131 s until a tick is closed. The rest is for clocks that differ by seconds, or leap by a
minute unnoticed."""
SENDINGS_MAX: Final = 6
BACKOFF: Final = Backoff(40, 500)
TICKS_MAX: Final = 16
MARKED_MAX: Final = 10_000
REPAIRED_MAX: Final = 50_000
"""A forgotten repair is requested again."""
NONCE_BYTES: Final = 6


def is_late(sent_at_ms: int, now_ms: int) -> bool:
    """Whether a record sent then, answered now, may have missed its tick's last sum."""
    return now_ms > (sent_at_ms // TICK_MS + 1) * TICK_MS + ANSWER_MS_MAX


class Sendings:
    """Counts the sendings of a write, and whether one may have been applied unseen."""

    def __init__(self, clock: Clock, randomness: Random, *, doubt: bool) -> None:
        self._clock = clock
        self._random = randomness
        self._count = 0
        self.doubt = doubt

    async def fail(self, failure: StoreError) -> None:
        """Pause before the next sending; raise the error for callers if there is none."""
        self.doubt |= isinstance(failure, OutcomeUnknownError)
        self._count += 1
        is_temporary = isinstance(failure, (OutcomeUnknownError, ContendedError))
        if not is_temporary or self._count == SENDINGS_MAX:
            raise self._error_of(failure) from failure
        await self._clock.sleep_ms(BACKOFF.pause_ms(self._count, self._random.randrange))

    def _error_of(self, failure: StoreError) -> StoreError:
        """Once in doubt, a later failure proves nothing."""
        if self.doubt and not isinstance(failure, OutcomeUnknownError):
            return OutcomeUnknownError(f"the records may or may not be counted: {failure}")
        return failure


class Marks:
    """The marks of one process."""

    def __init__(self, store: Store, clock: Clock, randomness: Random, retention_days: int) -> None:
        self._store = store
        self._clock = clock
        self._random = randomness
        self.retention_days = retention_days
        self._ticks: BoundedCache[int, bool] = BoundedCache(TICKS_MAX)
        self._marked: BoundedCache[tuple[int, PostedRegion], bool] = BoundedCache(MARKED_MAX)
        self._repaired: BoundedCache[tuple[str, bytes, int], bool] = BoundedCache(REPAIRED_MAX)
        self._repairs: NextFlight[Repair, None] = NextFlight("pricekeeper-repair")

    def expires_at_epoch(self, region: str) -> int:
        return page_expires_at_epoch(region, self.retention_days)

    def new_nonce(self) -> bytes:
        return self._random.randbytes(NONCE_BYTES)

    def sendings(self, *, doubt: bool) -> Sendings:
        return Sendings(self._clock, self._random, doubt=doubt)

    def is_marked(self, posting: PostedRegion, sent_at_ms: int) -> bool:
        tick = tick_of(sent_at_ms)
        return bool(self._marked.peek((tick, posting)) and self._ticks.peek(tick))

    async def mark(self, posting: PostedRegion, sent_at_ms: int) -> None:
        tick = tick_of(sent_at_ms)
        expires = page_expires_at_epoch(region_at(sent_at_ms), self.retention_days)
        if tick not in self._ticks:
            await self._store.put(tick_put(tick, expires))
            self._ticks.put(tick, True)  # noqa: FBT003
        if (tick, posting) not in self._marked:
            await self._store.put(marker_put(tick, posting, expires))
            self._marked.put((tick, posting), True)  # noqa: FBT003

    async def request_repair_if_late(self, org_id: str, receipts: Iterable[Receipt]) -> None:
        """Request repairs of days whose totals may lack these records, once for each record.

        A duplicate may have arrived late and unacknowledged.
        """
        now_ms = self._clock.now_ms()
        late = {
            (org_id, receipt.fingerprint, receipt.accepted_at_ms): receipt.org_day
            for receipt in receipts
            if is_late(receipt.accepted_at_ms, now_ms)
        }
        asked_for = {key: day for key, day in late.items() if key not in self._repaired}
        expires = page_expires_at_epoch(region_at(now_ms), self.retention_days)
        for day in sorted(set(asked_for.values())):
            repair = Repair(org_id, day)
            put = repair_put(repair, self.new_nonce().hex(), expires)
            try:
                await self._repairs.run(repair, partial(self._put, put))
            except StoreError as error:  # the record is counted, but the repair may be missing
                message = f"the record may be missing from totals: {error}"
                raise OutcomeUnknownError(message) from error
        for key in asked_for:
            self._repaired.put(key, True)  # noqa: FBT003

    async def _put(self, put: Put) -> None:
        """It is idempotent."""
        sendings = self.sendings(doubt=False)
        while True:  # at most `SENDINGS_MAX` times
            try:
                await self._store.put(put)
            except StoreError as failure:
                await sendings.fail(failure)
            else:
                return
