"""Reading the journal: marked ticks, regions posted into, and records.

Every read is consistent. A read of a closed tick is final. A read of an open tick has everything
that was acknowledged before the read began.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from typing import Final, NamedTuple

from pricekeeper.budgets import BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.concurrency import gather_in_groups, in_groups
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.journal import Record, is_void_note, records_on
from pricekeeper.metering.journal_items import (
    PostedRegion,
    VoidNote,
    newest_ticks_query,
    pages_query,
    postings_from,
    tick_markers_query,
    ticks_from,
    ticks_query,
    void_note_from,
)
from pricekeeper.metering.usage import AHEAD_MS_MAX
from pricekeeper.storage import (
    Item,
    Page,
    Store,
    invalid_cursor,
    query_items,
    query_pages,
    read_items,
)
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.ticks import tick_of

CONCURRENCY: Final = 8
"""Queries of one reader."""


class JournalReader:
    """Reads ticks, regions and records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_ticks(self, first: int, last: int) -> list[int]:
        return list(ticks_from(await read_items(self._store, ticks_query(first, last))))

    async def read_newest_ticks(self, first: int, last: int, limit: int) -> list[int]:
        found: list[int] = []
        if first <= last:
            async for page in query_pages(self._store, newest_ticks_query(first, last, limit)):
                found += ticks_from(page.items)
                if len(found) >= limit:
                    break
        return found[:limit]

    async def read_postings_by_tick(
        self, ticks: Collection[int], org_id: str
    ) -> list[list[PostedRegion]]:
        markers = await asyncio.gather(*(self._read_markers(org_id, tick) for tick in ticks))
        return [sorted(postings_from(items)) for items in markers]

    async def read_postings(self, ticks: Collection[int], org_id: str = "") -> list[PostedRegion]:
        read = partial(self._read_markers, org_id)
        markers = await gather_in_groups(read, sorted(ticks), CONCURRENCY)
        return sorted({posting for items in markers for posting in postings_from(items)})

    async def read_records(
        self,
        postings: Iterable[PostedRegion],
        skipped: list[UnreadableItemError] | None = None,
        voided: dict[str, VoidNote] | None = None,
    ) -> AsyncIterator[Record]:
        """Yield the records of these regions, whenever they were posted.

        An organisation recreated with another number of shards has two numbers of lanes in a
        region; each lane is read once. Errors of unreadable pages are added to ``skipped``, else
        raised. At the end, ``voided`` has the notes of voided records.
        """
        lanes = {
            (posting._replace(lanes=1), lane)
            for posting in postings
            for lane in range(posting.lanes)
        }
        for some in in_groups(sorted(lanes), CONCURRENCY):
            first = await asyncio.gather(
                *(self._store.query(pages_query(posting, lane)) for posting, lane in some)
            )
            for (posting, lane), page in zip(some, first, strict=True):
                if not page.items and not page.after:
                    continue  # most lanes of most regions are empty
                async for item in self._read_pages(posting, lane, page):
                    try:
                        if voided is not None and is_void_note(item["SK"]):
                            request_id = item["SK"][1:]
                            voided[request_id] = void_note_from(USAGE_AGG_SHARDED, item, request_id)
                        records = list(records_on(item))
                    except UnreadableItemError as error:
                        if skipped is None:
                            raise
                        skipped.append(error)
                        continue
                    for record in records:
                        yield record
                    await asyncio.sleep(0)  # a page takes a fraction of a millisecond

    def read_pages(self, posting: PostedRegion, lane: int) -> AsyncIterator[Item]:
        return query_items(self._store, pages_query(posting, lane))

    async def _read_pages(
        self, posting: PostedRegion, lane: int, page: Page
    ) -> AsyncIterator[Item]:
        for item in page.items:
            yield item
        if page.after:
            async for item in query_items(self._store, pages_query(posting, lane, page.after)):
                yield item

    async def _read_markers(self, org_id: str, tick: int) -> list[Item]:
        return await read_items(self._store, tick_markers_query(tick, org_id))


PAGE_MAX: Final = 100
TICKS_MAX: Final = 128
"""In one page of a listing: two hours of constant posting."""
RECORDS_MAX: Final = 20_000
"""A page of a listing ends with the tick in which it has read so many records."""

_CURSOR: Final = re.compile(r"([0-9a-f]{8})(?:-([0-9a-f]{12})-([0-9a-f-]{36}))?")


class Cursor(NamedTuple):
    """The record to continue after; without one, the tick to continue after."""

    tick: int
    sent_at_ms: int = -1
    request_id: str = ""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise invalid_cursor()
        tick = int(found[1], 16)
        return cls(tick) if found[2] is None else cls(tick, int(found[2], 16), found[3])

    @property
    def text(self) -> str:
        tick = f"{self.tick:08x}"
        return f"{tick}-{self.sent_at_ms:012x}-{self.request_id}" if self.request_id else tick


class RecordFilter(NamedTuple):
    """Selects records. All ends are included."""

    first_ms: int
    last_ms: int
    app_id: str | None = None
    label: str | None = None
    tag: tuple[str, str] | None = None
    """A tag and its value. An empty value selects records without the tag."""

    def has(self, record: Record) -> bool:
        terms = record.terms
        entry = record.entry  # a correction is listed when it was made
        at_ms = entry.sent_at_ms if entry.voids else entry.happened_at_ms
        if not self.first_ms <= at_ms <= self.last_ms:
            return False
        if self.app_id is not None and terms.app_id != self.app_id:
            return False
        if self.label is not None and terms.label != self.label:
            return False
        if self.tag is None:
            return True
        key, value = self.tag
        return dict(terms.tags).get(key, "") == value


class RecordPage(NamedTuple):
    """Some records, and where to continue; ``None`` at the end."""

    records: list[Record]
    after: Cursor | None
    voided: Mapping[str, VoidNote]
    """Also of other records of their regions."""


class JournalListing:
    """Reads records of one organisation, page by page."""

    def __init__(self, store: Store) -> None:
        self._reader = JournalReader(store)

    async def read_page(
        self, org_id: str, ticks: tuple[int, int], wanted: RecordFilter, after: Cursor | None
    ) -> RecordPage:
        first, last = ticks
        if after is not None:
            last = min(last, after.tick if after.request_id else after.tick - 1)
        looked_at = await self._reader.read_newest_ticks(first, last, TICKS_MAX)
        found: list[Record] = []
        voided: dict[str, VoidNote] = {}
        records_read = 0
        for some in in_groups(looked_at, CONCURRENCY):
            for tick, postings in zip(
                some, await self._reader.read_postings_by_tick(some, org_id), strict=True
            ):
                read, fitting = await self._read_tick(tick, postings, wanted, after, voided)
                found += fitting
                records_read += read
                if len(found) > PAGE_MAX:
                    return RecordPage(found[:PAGE_MAX], _cursor(found[PAGE_MAX - 1]), voided)
                if len(found) == PAGE_MAX or records_read >= RECORDS_MAX:
                    return RecordPage(found, Cursor(tick), voided)
        is_end = len(looked_at) < TICKS_MAX
        return RecordPage(found, None if is_end else Cursor(looked_at[-1]), voided)

    async def _read_tick(
        self,
        tick: int,
        postings: list[PostedRegion],
        wanted: RecordFilter,
        after: Cursor | None,
        voided: dict[str, VoidNote],
    ) -> tuple[int, list[Record]]:
        read, found = 0, list[Record]()
        async for record in self._reader.read_records(postings, voided=voided):
            read += 1
            if record.entry.tick == tick and wanted.has(record) and _is_behind(record, after):
                found.append(record)
                if len(found) > 2 * PAGE_MAX:  # no more than a page and one are ever wanted
                    found = nlargest(PAGE_MAX + 1, found, key=_cursor)
        return read, nlargest(PAGE_MAX + 1, found, key=_cursor)


def _cursor(record: Record) -> Cursor:
    return Cursor(record.entry.tick, record.entry.sent_at_ms, record.request_id)


def _is_behind(record: Record, after: Cursor | None) -> bool:
    return after is None or not after.request_id or _cursor(record) < after


class WindowSpend:
    """Sums the spend in the windows of any number of accounts, in one pass over the records."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self._reader = JournalReader(store)

    async def read_spend(self, accounts: Sequence[BudgetAccount]) -> dict[BudgetAccount, int]:
        sums = dict.fromkeys(accounts, 0)
        for org_id in dict.fromkeys(account.org_id for account in accounts):
            mine = [account for account in accounts if account.org_id == org_id]
            started_ms = min(account.span.starts_at_ms for account in mine)
            postings = await self.find_postings(org_id, started_ms)
            async for record in self._reader.read_records(postings):
                terms, entry = record.terms, record.entry
                tags, at_ms = dict(terms.tags), entry.happened_at_ms
                for account in mine:
                    if account.counts(terms.app_id, terms.label, tags, at_ms):
                        sums[account] += entry.cost_usd_picos
        return sums

    async def find_postings(self, org_id: str, since_ms: int) -> list[PostedRegion]:
        """The regions of records since then; some are posted minutes before."""
        first = tick_of(since_ms - AHEAD_MS_MAX)
        last = tick_of(self._clock.now_ms() + AHEAD_MS_MAX)
        ticks = await self._reader.read_ticks(first, last)
        return await self._reader.read_postings(ticks, org_id)
