"""The regions of organisations that have open or unsettled authorizations: marks and reads them.

A region is marked before the first authorization in it is granted, and again every `MARKED_MS`,
since a chapter of the log may last longer than its region. A sweep visits regions that are a few
minutes old and removes the mark when nothing in it is open. It comes back twice, the last time
after more than a day, for sheets that arrived late. Another mark says where unsettled ones are, for
as long as they are kept.

Authorizations are returned in their state of now (`Authorization.at`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Final

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.items import (
    Marker,
    marker_delete,
    marker_of,
    marker_put,
    markers_query,
    unsettled_delete,
    unsettled_put,
    unsettled_queries,
    unsettled_region,
)
from pricekeeper.authorizations.reading import AuthorizationReader, Seen
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import MS_PER_DAY
from pricekeeper.errors import ConditionFailedError
from pricekeeper.ledger.position import region_of
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.journal_items import page_expires_at_epoch
from pricekeeper.storage import Store, query_items
from pricekeeper.ticks import region_at

MARKED_MAX: Final = 10_000
KEPT_MARGIN_DAYS: Final = 3
"""Some items of a day are kept this much longer than the retention."""
MARKED_MS: Final = 180_000
VISITS_MS: Final = (240_000, 80 * 60_000, 26 * 3_600_000)
"""The age of a region at each visit."""


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

    def read(self, org_id: str, region: str) -> AsyncIterator[Seen]:
        """The authorizations of a region, as the log says; unreadable ones are reported."""
        return self._reader.read_region(org_id, region)

    async def read_unfinished(
        self, org_id: str, states: Collection[State], before: str = ""
    ) -> AsyncIterator[Authorization]:
        """The authorizations of an organisation in these states, newest first, region by region.

        ``before`` is the id of the last one on the page before.
        """
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
                found = [one.at(now_ms) async for one, _ in self.read(org_id, region)]
                for one in sorted(found, key=lambda one: one.id, reverse=True):
                    if one.state in states and (not before or one.id < before):
                        yield one

    async def read_exposed(
        self, org_ids: Collection[str], first_ms: int, last_ms: int
    ) -> list[tuple[str, Authorization]]:
        """The open and unsettled authorizations of these organisations in that time.

        The marks are read once for all of them.
        """
        wanted, now_ms = set(org_ids), self._clock.now_ms()
        alone = next(iter(wanted)) if len(wanted) == 1 else ""
        first, last = region_at(max(0, first_ms)), region_at(max(0, last_ms))
        regions = {(one.org_id, one.region) for one in await self.read_fresh()}
        for _, query in unsettled_queries(first, last, alone):
            markers = query_items(self._store, query)
            regions |= {unsettled_region(item) async for item in markers}
        return [
            (org_id, one.at(now_ms))
            for org_id, region in sorted(regions)
            if org_id in wanted and first <= region <= last
            async for one, _ in self.read(org_id, region)
            if one.state in (State.OPEN, State.UNSETTLED)
        ]

    async def read_all_marked(self, org_id: str) -> list[str]:
        """Every region of an organisation that may have open or unsettled authorizations."""
        regions: set[str] = set()
        for _, query in unsettled_queries(*self._all_regions(), org_id):
            markers = query_items(self._store, query)
            regions |= {unsettled_region(item)[1] async for item in markers}
        ahead_ms = self._clock.now_ms() + VISITS_MS[0]
        for visit in range(len(VISITS_MS)):
            marked = await self._read_marked(visit, ahead_ms)
            regions |= {one.region for one in marked if one.org_id == org_id}
        return sorted(regions)

    async def read_fresh(self) -> list[Marker]:
        """The regions that may have open ones, also those too young for a sweep."""
        return await self._read_marked(0, self._clock.now_ms() + VISITS_MS[0])

    def _all_regions(self) -> tuple[str, str]:
        """The first region that is kept, and the last that can exist."""
        now_ms = self._clock.now_ms()
        kept_ms = (self._retention_days + KEPT_MARGIN_DAYS) * MS_PER_DAY
        return region_at(max(0, now_ms - kept_ms)), region_at(now_ms + VISITS_MS[0])

    async def note_unsettled(self, org_id: str, region: str) -> None:
        if (org_id, region) not in self._noted:
            await self._store.put(unsettled_put(org_id, region, self._expires(region)))
            self._noted.put((org_id, region), True)  # noqa: FBT003

    async def note_visited(self, marker: Marker, visit: int, *, some_unsettled: bool) -> None:
        """Nothing is open in the region: schedule its next visit, if there is one.

        The mark stays if the region was marked again meanwhile.
        """
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
