"""Listing single records of an organisation, the newest first.

Records come in the order of the ticks in which they were posted, and within a tick by the moment
at which they were sent. One call looks at a bounded number of ticks, so that a page may be empty
and yet have a next one: where nobody of the organisation has posted anything for hours, or where
nothing fits.

Whether a record is voided stands beside it, in its region, which is read as a whole anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from heapq import nlargest
from typing import Final, NamedTuple

from pricekeeper.concurrency import in_groups
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering.journal import Record
from pricekeeper.metering.journal_items import PostedRegion, VoidNote
from pricekeeper.metering.journal_reading import CONCURRENCY, JournalReader
from pricekeeper.storage import Store

PAGE_MAX: Final = 100
TICKS_MAX: Final = 128
"""Ticks that one page looks at: a little more than two hours, if somebody posts all the time."""
RECORDS_MAX: Final = 20_000
"""Once a page has looked at so many records, it ends with the tick."""

_CURSOR: Final = re.compile(r"([0-9a-f]{8})(?:-([0-9a-f]{12})-([0-9a-f-]{36}))?")


class Cursor(NamedTuple):
    """After which record to go on; without one, after the whole tick."""

    tick: int
    sent_at_ms: int = -1
    request_id: str = ""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that `text` is."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidValueError("after", "must be the `next` of the page before")
        tick = int(found[1], 16)
        return cls(tick) if found[2] is None else cls(tick, int(found[2], 16), found[3])

    @property
    def text(self) -> str:
        """The cursor as the next request brings it along."""
        tick = f"{self.tick:08x}"
        return f"{tick}-{self.sent_at_ms:012x}-{self.request_id}" if self.request_id else tick


class RecordFilter(NamedTuple):
    """Which records are wanted. All ends are included."""

    first_ms: int
    last_ms: int
    app_id: str | None = None
    label: str | None = None
    tag: tuple[str, str] | None = None
    """A tag that the record has with that value. An empty one is no tag, as in the totals."""

    def has(self, record: Record) -> bool:
        """Whether the record is one of them."""
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
    """Some records, and where to go on; ``None`` at the end."""

    records: list[Record]
    after: Cursor | None
    voided: Mapping[str, VoidNote]
    """Of these and maybe of others of their regions: those that are voided."""


class JournalListing:
    """Reads records of one organisation, page by page."""

    def __init__(self, store: Store) -> None:
        self._reader = JournalReader(store)

    async def read_page(
        self, org_id: str, ticks: tuple[int, int], wanted: RecordFilter, after: Cursor | None
    ) -> RecordPage:
        """The next records that were posted in these ticks, both ends included."""
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
        """How many records were looked at, and those that are wanted, the newest first."""
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
