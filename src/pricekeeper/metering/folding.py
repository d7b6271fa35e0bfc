"""Folding: adds the records of some ticks to the totals that they count in.

A fold sums an organisation's records by total and tick, moves each total forward, and writes it
only if the stored total is still the one it read. If another run was faster, or the reading is
older than the stored total, it reads the records again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, gather_in_groups, in_groups
from pricekeeper.days import MS_PER_DAY, org_day
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.metering.aggregation_report import Tally, TotalChange
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.facets import Facet, Facets, SumsByFacet
from pricekeeper.metering.fold import Behind, Sums
from pricekeeper.metering.items import day_expires_at_epoch, fold_from, lacks_records
from pricekeeper.metering.journal import Record, ticks_of_day
from pricekeeper.metering.journal_items import (
    PostedRegion,
    Repair,
    repair_delete,
    repair_from,
    repair_put,
    repairs_query,
)
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.metering.tag_values import TagValues
from pricekeeper.metering.totals import StoredTotals
from pricekeeper.storage import Item, Store, query_items
from pricekeeper.ticks import TICK_MS

ATTEMPTS_MAX: Final = 5
ORGS_AT_ONCE: Final = 8
TOTALS_AT_ONCE: Final = 100
REPAIR_PAUSE_MS: Final = 600_000
REPAIR_PAUSE_TIMES: Final = 20
"""At most every ten minutes, for at most a twentieth of the time: a client that repeats old records
requests a repair again and again."""
PAUSES_MAX: Final = 50_000
Look: TypeAlias = Callable[[str, Mapping[Facet, Counters]], Awaitable[None]]


async def look_at_nothing(org_id: str, totals: Mapping[Facet, Counters]) -> None:
    """Ignore the totals."""
    del org_id, totals


class _Reading(NamedTuple):
    """What a run has read of an organisation, and what becomes of it."""

    first: int
    last: int
    closable: int
    as_of_ms: int
    tally: Tally
    totals: dict[Facet, Counters]


class FoldRunner:
    """Runs folds, which move totals forward."""

    def __init__(
        self, store: Store, clock: Clock, retention_days: int, look: Look = look_at_nothing
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._look = look
        self._reader = JournalReader(store)
        self._pauses: BoundedCache[Repair, int] = BoundedCache(PAUSES_MAX)
        """The end of each repair's pause, on the monotonic clock."""
        self._totals = StoredTotals(store, clock, retention_days)
        self.meter = FoldMeter()
        self._tag_values = TagValues(store, retention_days, self.meter)

    async def read_ticks(self, first: int, last: int) -> list[int]:
        return await self._reader.read_ticks(first, last)

    async def fold(
        self, ticks: Sequence[int], closable: int, tally: Tally, without: Collection[str] = ()
    ) -> set[str]:
        """Bring the totals of every organisation that posted in these ticks up to date.

        Returns the organisations that failed. The caller excludes them (``without``) from later
        ticks until they succeed, because a total can't go back to an earlier tick.
        """
        postings: dict[str, list[PostedRegion]] = defaultdict(list)
        for posting in await self._reader.read_postings(ticks):
            if posting.org_id not in without:
                postings[posting.org_id].append(posting)
        fold_org = partial(self._fold_org, ticks, closable, tally)
        done = await gather_in_groups(fold_org, list(postings.values()), ORGS_AT_ONCE)
        return {org_id for org_id, is_done in zip(postings, done, strict=True) if not is_done}

    async def repair(self, closable: int, tally: Tally) -> None:
        async for item in query_items(self._store, repairs_query()):
            repair = repair_from(item)
            if repair is None or self._clock.monotonic_ms() < (self._pauses.peek(repair) or 0):
                continue
            began_ms = self._clock.monotonic_ms()
            try:
                await self.rebuild(repair, closable, tally)
                with contextlib.suppress(ConditionFailedError, OutcomeUnknownError):
                    await self._store.delete(repair_delete(item))
            except StoreError as error:
                tally.fail(1, error)
            ended_ms = self._clock.monotonic_ms()
            pause_ms = max(REPAIR_PAUSE_MS, (ended_ms - began_ms) * REPAIR_PAUSE_TIMES)
            self._pauses.put(repair, ended_ms + pause_ms)

    async def rebuild_all(
        self,
        ticks: Sequence[int],
        days: Iterable[str],
        closable: int,
        tally: Tally,
        org_id: str = "",
    ) -> int:
        """Rebuild these days; return how many organisations, or of one, posted in the ticks."""
        postings = await self._reader.read_postings(ticks, org_id)
        orgs = sorted({posting.org_id for posting in postings})
        for repair in [Repair(org_id, day) for org_id in orgs for day in days]:
            try:
                await self.rebuild(repair, closable, tally)
            except StoreError as error:
                tally.fail(1, error)
        return len(orgs)

    async def rebuild(self, repair: Repair, closable: int, tally: Tally) -> None:
        """The totals are read first, so the records read later contain everything in them."""
        reading = _Reading(0, 0, closable, self._clock.now_ms(), tally, {})
        facets: Collection[Facet] = await self._read_day(repair, tally)
        for _ in range(ATTEMPTS_MAX):
            stored = await self._totals.read(facets)
            found = await self._read_day(repair, tally)
            left = [facet for facet in found if facet not in stored]
            for facet, item in stored.items():
                if not await self._put_rebuilt(facet, item, found.get(facet, {}), reading):
                    left.append(facet)
            if not left:
                await self._look(repair.org_id, reading.totals)
                return
            facets = list(found)
        raise ContendedError(f"the totals of {repair.org_id} on {repair.day} kept changing")

    async def _fold_org(
        self, ticks: Sequence[int], closable: int, tally: Tally, postings: Sequence[PostedRegion]
    ) -> bool:
        """Return ``True`` if no later run must repeat it."""
        org_id, wanted_ticks = postings[0].org_id, set(ticks)
        left: Collection[Facet] | None = None
        totals: dict[Facet, Counters] = {}

        def is_wanted(record: Record) -> bool:
            return record.entry.tick in wanted_ticks

        try:
            for _ in range(ATTEMPTS_MAX):
                now_ms = self._clock.now_ms()
                reading = _Reading(ticks[0], ticks[-1], closable, now_ms, tally, totals)
                skipped: list[UnreadableItemError] = []
                found = await self._sum(org_id, postings, is_wanted, tally, skipped)
                wanted = found if left is None else {facet: found.get(facet, {}) for facet in left}
                if left is None:
                    tally.accounts += len(_accounts(found))
                left = await self._bring_forward(wanted, reading)
                if not left:
                    await self._look(org_id, totals)
                    if skipped:
                        await self._note_lacking(org_id, ticks, found)
                        tally.fail(1, skipped[0])
                    return True
            raise ContendedError(f"the totals of {org_id} kept changing")
        except StoreError as error:
            tally.fail(1, error)
            return isinstance(error, UnreadableItemError)

    async def _request_repair(self, repair: Repair) -> None:
        """Have a later run rebuild the day, when the unreadable item is mended."""
        expires = day_expires_at_epoch(repair.day, self._retention_days)
        await self._store.put(repair_put(repair, secrets.token_hex(8), expires))

    async def _note_lacking(self, org_id: str, ticks: Sequence[int], found: SumsByFacet) -> None:
        """Mark totals as lacking a page, and have every run try to mend them.

        The page may be of any account, and any day to which records of its ticks can belong.
        """
        first_ms, last_ms = ticks[0] * TICK_MS - 2 * MS_PER_DAY, ticks[-1] * TICK_MS + MS_PER_DAY
        for at_ms in (*range(first_ms, last_ms, MS_PER_DAY), last_ms):
            await self._request_repair(Repair(org_id, org_day("UTC", at_ms)))
        for account in _accounts(found):
            await self._totals.mark_lacking(account)

    async def _sum(
        self,
        org_id: str,
        postings: Iterable[PostedRegion],
        is_wanted: Callable[[Record], bool],
        tally: Tally,
        skipped: list[UnreadableItemError] | None = None,
    ) -> SumsByFacet:
        facets, found = Facets(org_id), SumsByFacet()
        async for record in self._reader.read_records(postings, skipped):
            if is_wanted(record):
                _count(found, facets.of(record), record.entry.tick, record.entry.counters)
        return await self._tag_values.register_values(found, tally)

    async def _read_day(self, repair: Repair, tally: Tally) -> SumsByFacet:
        org_id, day = repair
        ticks = await self._reader.read_ticks(*ticks_of_day(day))
        postings = await self._reader.read_postings(ticks, org_id)
        return await self._sum(org_id, postings, lambda one: one.terms.day == day, tally)

    async def _bring_forward(self, found: SumsByFacet, reading: _Reading) -> list[Facet]:
        """Move totals forward; return those whose records must be read again."""
        left = list[Facet]()
        for some in in_groups(list(found), TOTALS_AT_ONCE):
            moves = [
                self._move(facet, item, found[facet], reading)
                for facet, item in (await self._totals.read(some)).items()
            ]
            left += filter(None, await asyncio.gather(*moves))
        return left

    async def _move(
        self, facet: Facet, stored: Item | None, sums: Sums, reading: _Reading
    ) -> Facet | None:
        """The facet if its records must be read again."""
        try:
            before = fold_from(stored)
            fold = before.forward(sums, reading.last, reading.closable, reading.first)
            if fold is not None:
                await self._totals.put(facet, fold, stored, reading.as_of_ms)
                self._count_write(facet, reading.tally)
            reading.totals[facet] = (fold or before).total
        except (Behind, ConditionFailedError, OutcomeUnknownError):
            return facet
        except UnreadableItemError as error:
            reading.tally.fail(1, error)
            await self._totals.enter_in_lists(facet)  # readers sum its records instead
            await self._request_repair(Repair(facet.org_id, facet.day))
        return None

    async def _put_rebuilt(
        self, facet: Facet, stored: Item | None, sums: Sums, reading: _Reading
    ) -> bool:
        """Write a rebuilt total; ``False`` if another writer was faster."""
        before = fold_from(stored)
        fold = before.rebuilt(sums, reading.closable)
        if fold is None and lacks_records(stored):  # it is complete now: write it without the mark
            fold = msgspec.structs.replace(before, rev=before.rev + 1)
        if fold is not None:
            try:
                await self._totals.put(facet, fold, stored, reading.as_of_ms, is_whole=True)
            except (ConditionFailedError, OutcomeUnknownError):
                return False
            self._count_write(facet, reading.tally)
            if fold.total != before.total:
                change = TotalChange(facet.org_id, facet.pk, facet.sk, before.total, fold.total)
                reading.tally.changes.append(change)
        reading.totals[facet] = (fold or before).total
        return True

    def _count_write(self, facet: Facet, tally: Tally) -> None:
        tally.written += facet.account is not None
        tally.written_at_ms = self._clock.now_ms()


def _count(found: SumsByFacet, facets: Iterable[Facet], tick: int, counters: Counters) -> None:
    for facet in facets:
        sums = found.setdefault(facet, {})
        have = sums.get(tick)
        sums[tick] = counters if have is None else have + counters


def _accounts(found: SumsByFacet) -> list[Account]:
    return [account for facet in found if (account := facet.account) is not None]
