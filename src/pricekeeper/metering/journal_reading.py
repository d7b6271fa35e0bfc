"""Reading the journal: the ticks in which something was posted, where, and the records themselves.

Every read is consistent. What is read of a tick that has been closed is final; of an open tick,
it holds everything that was acknowledged before the reading began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from functools import partial
from typing import Final

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
from pricekeeper.storage import Item, Page, Store, query_items, query_pages, read_items
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

CONCURRENCY: Final = 8
"""Queries of one reader under way."""


class JournalReader:
    """Reads what was posted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_ticks(self, first: int, last: int) -> list[int]:
        """The ticks, from the first to the last, in which anybody posted something."""
        return list(ticks_from(await read_items(self._store, ticks_query(first, last))))

    async def read_newest_ticks(self, first: int, last: int, limit: int) -> list[int]:
        """The last of these ticks in which anybody posted something, so many, the newest first."""
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
        """Where the organisation posted something in each of these few ticks."""
        markers = await asyncio.gather(*(self._read_markers(org_id, tick) for tick in ticks))
        return [sorted(postings_from(items)) for items in markers]

    async def read_postings(self, ticks: Collection[int], org_id: str = "") -> list[PostedRegion]:
        """Where something was posted in these ticks, by everybody or by one organisation."""
        read = partial(self._read_markers, org_id)
        markers = await gather_in_groups(read, sorted(ticks), CONCURRENCY)
        return sorted({posting for items in markers for posting in postings_from(items)})

    async def read_records(
        self,
        postings: Iterable[PostedRegion],
        skipped: list[UnreadableItemError] | None = None,
        voided: dict[str, VoidNote] | None = None,
    ) -> AsyncIterator[Record]:
        """The records of these regions, whenever they were posted.

        An organisation that was made anew with another number of shards has posted into one region
        under two numbers of lanes; each lane is read once. A page that can't be read is left out
        and told of in ``skipped``; without that, `UnreadableItemError` is raised. Once all is read,
        ``voided`` has the notes of those that are voided.
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
        """The pages of one lane of a region, as they are stored."""
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
