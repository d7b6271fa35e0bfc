"""Reads authorizations: the grant from its sheet, the outcome from the log; marks their regions.

The outcome is on an unfiled sheet in memory, or filed beside the grant (`pricekeeper.ledger`). The
usage record of a captured one is on the sheet of its capture.

A region is marked before the first grant in it, and again every `MARKED_MS`, since a chapter may
last longer. A sweep removes the mark of a region a few minutes old when nothing in it is open. It
comes back twice, the last time after more than a day, for late sheets. Another mark says where
unsettled ones are.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Final, NamedTuple

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.items import (
    Marker,
    RecordPlace,
    authorization_on,
    authorizations_on,
    captured,
    marker_delete,
    marker_of,
    marker_put,
    markers_query,
    record_place,
    unsettled_delete,
    unsettled_put,
    unsettled_queries,
    unsettled_region,
    with_outcome,
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import MS_PER_DAY
from pricekeeper.errors import ConditionFailedError, ContendedError, UnreadableItemError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.items import (
    behind_query,
    outcomes_key,
    prefix_query,
    sheet_key,
    sheet_partition,
)
from pricekeeper.ledger.position import (
    OUTCOMES,
    SHEET,
    authorization_id_of,
    outcome_name,
    outcomes_sort_key,
    region_of,
    sheet_number,
    sheet_sort_key,
)
from pricekeeper.ledger.sheet import parse_filed, readable_names, readable_sheet
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.journal import Record, name_on_sheet, record_on
from pricekeeper.metering.journal_items import page_expires_at_epoch
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.ticks import region_at

READINGS_MAX: Final = 4
CLAIM_SHEETS: Final = 256
"""How many sheets behind its claim an authorization is at most."""
CLAIM_PAGE: Final = 16
"""Read at once: it is nearly always on one of the first."""
UNKNOWN: Final = -1
"""The generation of an authorization that must be read again before it is changed."""

MARKED_MAX: Final = 10_000
KEPT_MARGIN_DAYS: Final = 3
"""Some items of a day are kept this much longer than the retention."""
MARKED_MS: Final = 180_000
VISITS_MS: Final = (240_000, 80 * 60_000, 26 * 3_600_000)


class Seen(NamedTuple):
    """An authorization, and the generation of the log when it was read."""

    authorization: Authorization
    generation: int
    """No outcome that came before was forgotten since then."""


class AuthorizationReader:
    """Reads authorizations of organisations."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def find(self, org_id: str, own_id: str) -> Seen | None:
        book = await self._ledger.read_book(org_id)
        for _ in range(READINGS_MAX):
            generation = book.generation
            keys = (sheet_key(org_id, own_id), outcomes_key(org_id, outcomes_sort_key(own_id)))
            sheet, filed = await self._store.batch_get([(USAGE_AGG_SHARDED, key) for key in keys])
            granted = None if sheet is None else authorization_on(sheet, sheet_number(own_id))
            if granted is None:
                return None
            outcome = book.outcome(own_id) or await self._read_filed(org_id, own_id, filed)
            place = record_place(outcome)
            record = None if place is None else await self._read_record(org_id, place)
            if book.generation == generation:  # else an outcome may be neither filed nor here
                return Seen(with_outcome(granted, outcome, record), generation)
        raise ContendedError("chapters were filed while an authorization was read")

    async def find_named(self, org_id: str, name: str, claim: str) -> str | None:
        """Find the authorization by the caller's id; ``claim`` says about where in the log to look.

        A claim without a grant costs most: it reads `CLAIM_SHEETS` sheets.
        """
        book = await self._ledger.read_book(org_id)
        own_id = book.named(name)
        if own_id is not None or book.has_chapter_of(sheet_sort_key(claim)):
            return own_id
        read = 0
        async for sheet in query_items(self._store, behind_query(org_id, claim, CLAIM_PAGE)):
            number = readable_names(sheet).get(name)
            if number is not None:
                return authorization_id_of(str(sheet["SK"]), number)
            read += 1
            if read >= CLAIM_SHEETS:
                break
        return None

    async def find_record(self, org_id: str, own_id: str, request_id: str) -> Record | None:
        item = await self._store.get(USAGE_AGG_SHARDED, sheet_key(org_id, own_id))
        if item is None or request_id not in readable_names(item):
            return None
        return record_on(item, name_on_sheet(sheet_number(own_id)))

    async def read_region(self, org_id: str, region: str) -> AsyncIterator[Seen]:
        """Without the settlements of captured ones; reasons of voids may be cut.

        Unreadable ones are reported and left out.
        """
        book = await self._ledger.read_book(org_id)
        for _ in range(READINGS_MAX):
            generation = book.generation
            pk = sheet_partition(org_id, region)
            query = Query(USAGE_AGG_SHARDED, pk, first=OUTCOMES, last=f"{SHEET}~")
            filed: dict[str, Item] = {}
            found: list[Authorization] = []
            async for item in query_items(self._store, query):
                if str(item["SK"]).startswith(OUTCOMES):
                    filed[str(item["SK"])] = item
                else:
                    found += authorizations_on(item)
            outcomes = [
                book.outcome(one.id) or _filed(filed.get(outcomes_sort_key(one.id)), one.id)[0]
                for one in found
            ]
            if book.generation == generation:
                for granted, outcome in zip(found, outcomes, strict=True):
                    yield Seen(with_outcome(granted, outcome), generation)
                return
        raise ContendedError("chapters were filed while a region was read")

    async def _read_filed(self, org_id: str, own_id: str, filed: Item | None) -> str:
        outcome, place = _filed(filed, own_id)
        if place:
            page = await self._store.query(prefix_query(org_id, place))
            for item in page.items:
                return readable_sheet(org_id, item).outcomes.get(own_id, outcome)
        return outcome

    async def _read_record(self, org_id: str, place: RecordPlace) -> Record:
        page = await self._store.query(prefix_query(org_id, place.prefix))
        record = record_on(page.items[0], name_on_sheet(place.number)) if page.items else None
        if record is None:
            outcome = captured(*place)
            raise UnreadableItemError(f"the record of {outcome[:40]!r} is not there")
        return record


def _filed(item: Item | None, authorization_id: str) -> tuple[str, str]:
    """The filed outcome, empty if none, and where the rest of a cut one is."""
    text = "" if item is None else item.get(outcome_name(authorization_id), "")
    return parse_filed(text if isinstance(text, str) else "")


class Regions:
    """Marks regions that may have open authorizations, and reads them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        reader: AuthorizationReader,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._reader = reader
        self._retention_days = retention_days
        self._marked: BoundedCache[tuple[str, str], int] = BoundedCache(MARKED_MAX)
        self._noted: BoundedCache[tuple[str, str], bool] = BoundedCache(MARKED_MAX)

    def needs_mark(self, org_id: str, region: str) -> bool:
        marked_ms = self._marked.peek((org_id, region))
        return marked_ms is None or self._clock.monotonic_ms() - marked_ms >= MARKED_MS

    async def mark(self, org_id: str, region: str) -> None:
        now_ms = self._clock.monotonic_ms()
        nonce = f"{self._clock.now_ms():x}"
        await self._store.put(marker_put(org_id, region, self._expires(region), nonce=nonce))
        self._marked.put((org_id, region), now_ms)

    async def read_due(self, visit: int) -> list[Marker]:
        return await self._read_marked(visit, self._clock.now_ms() - VISITS_MS[visit])

    async def read_unfinished(
        self, org_id: str, states: Collection[State], before: str = ""
    ) -> AsyncIterator[Authorization]:
        """Newest first, region by region, after the id ``before``."""
        now_ms = self._clock.now_ms()
        marked = {one.region for one in await self.read_fresh() if one.org_id == org_id}
        for period, query in unsettled_queries(*self._all_regions(), org_id):
            regions = {region for region in marked if region.startswith(period)}
            if State.UNSETTLED in states:
                markers = query_items(self._store, query)
                regions |= {unsettled_region(item)[1] async for item in markers}
            for region in sorted(regions, reverse=True):
                if before and region > region_of(before):
                    continue
                found = [
                    one.at(now_ms) async for one, _ in self._reader.read_region(org_id, region)
                ]
                for one in sorted(found, key=lambda one: one.id, reverse=True):
                    if one.state in states and (not before or one.id < before):
                        yield one

    async def read_exposed(
        self, org_ids: Collection[str], first_ms: int, last_ms: int
    ) -> list[tuple[str, Authorization]]:
        """The marks are read once for all organisations."""
        wanted, now_ms = set(org_ids), self._clock.now_ms()
        alone = next(iter(wanted)) if len(wanted) == 1 else ""
        first, last = region_at(max(0, first_ms)), region_at(max(0, last_ms))
        regions = {(one.org_id, one.region) for one in await self.read_fresh()}
        regions |= await self._read_unsettled(first, last, alone)
        return [
            (org_id, one.at(now_ms))
            for org_id, region in sorted(regions)
            if org_id in wanted and first <= region <= last
            async for one, _ in self._reader.read_region(org_id, region)
            if one.state in (State.OPEN, State.UNSETTLED)
        ]

    async def read_all_marked(self, org_id: str) -> list[str]:
        unsettled = await self._read_unsettled(*self._all_regions(), org_id)
        regions = {region for _, region in unsettled}
        ahead_ms = self._clock.now_ms() + VISITS_MS[0]
        for visit in range(len(VISITS_MS)):
            marked = await self._read_marked(visit, ahead_ms)
            regions |= {one.region for one in marked if one.org_id == org_id}
        return sorted(regions)

    async def read_fresh(self) -> list[Marker]:
        """The regions that may have open ones, also those too young for a sweep."""
        return await self._read_marked(0, self._clock.now_ms() + VISITS_MS[0])

    async def _read_unsettled(
        self, first_region: str, last_region: str, org_id: str
    ) -> set[tuple[str, str]]:
        queries = unsettled_queries(first_region, last_region, org_id)
        return {
            unsettled_region(item)
            for _, query in queries
            async for item in query_items(self._store, query)
        }

    def _all_regions(self) -> tuple[str, str]:
        now_ms = self._clock.now_ms()
        kept_ms = (self._retention_days + KEPT_MARGIN_DAYS) * MS_PER_DAY
        return region_at(max(0, now_ms - kept_ms)), region_at(now_ms + VISITS_MS[0])

    async def note_unsettled(self, org_id: str, region: str) -> None:
        if (org_id, region) not in self._noted:
            await self._store.put(unsettled_put(org_id, region, self._expires(region)))
            self._noted.put((org_id, region), True)  # noqa: FBT003

    async def note_visited(self, marker: Marker, visit: int, *, some_unsettled: bool) -> None:
        """Nothing is open in the region: schedule its next visit, unless it was marked again."""
        org_id, region, _ = marker
        if visit + 1 < len(VISITS_MS):
            await self._store.put(marker_put(org_id, region, self._expires(region), visit + 1))
        elif not some_unsettled:
            await self._store.delete(unsettled_delete(org_id, region))
        with contextlib.suppress(ConditionFailedError):
            await self._store.delete(marker_delete(marker, visit))

    def _expires(self, region: str) -> int:
        return page_expires_at_epoch(region, self._retention_days)

    async def _read_marked(self, visit: int, until_ms: int) -> list[Marker]:
        last = region_at(max(0, until_ms))
        items = query_items(self._store, markers_query(visit, last))
        found = [marker_of(item) async for item in items]
        return [marker for marker in found if marker is not None]
