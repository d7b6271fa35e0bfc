"""Authorizations that nobody settles: found, and charged at what they hold.

The process that granted an authorization remembers when it expires. For those of processes that are
gone there is a marker for each region of an organisation, put before the first authorization in it.
A sweep visits the regions that are a few minutes old, settles what has expired, and is done with a
region once nothing in it is open. It comes back twice, the last time after more than a day: a
transaction that arrives late, and that nobody was told of, is found then.

Bounds: `REMEMBERED_MAX` authorizations of this process; those beyond are left to the sweep.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Collection
from typing import Final, NamedTuple

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.items import (
    REGION_DIGITS,
    authorization_of,
    marker_delete,
    marker_of,
    marker_put,
    markers_query,
    region_of,
    region_query,
    unsettled_put,
    unsettled_query,
    unsettled_region,
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Store, query_items

REMEMBERED_MAX: Final = 100_000
SETTLED_MAX: Final = 1_000
"""How many that are settled wait for their time in the heap, beside as many as are open."""
MARKED_MAX: Final = 10_000
VISITS_MS: Final = (240_000, 80 * 60_000, 26 * 3_600_000)
"""How old a region is at each visit."""


class Due(NamedTuple):
    """An authorization of this process, and when it expires."""

    expires_at_ms: int
    id: str
    org_id: str
    authorization: Authorization


class OpenList:
    """The open authorizations that this process has granted."""

    def __init__(self) -> None:
        self._open: dict[str, Due] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, org_id: str, authorization: Authorization) -> None:
        """Remember when it expires; one that is extended is remembered anew."""
        if len(self._open) >= REMEMBERED_MAX and authorization.id not in self._open:
            return
        due = Due(authorization.expires_at_ms, authorization.id, org_id, authorization)
        self._open[due.id] = due
        heapq.heappush(self._heap, (due.expires_at_ms, due.id))
        if len(self._heap) > 2 * len(self._open) + SETTLED_MAX:
            self._heap = [(one.expires_at_ms, one.id) for one in self._open.values()]
            heapq.heapify(self._heap)

    def remove(self, authorization_id: str) -> None:
        """Forget one that is settled."""
        self._open.pop(authorization_id, None)

    def find(self, authorization_id: str) -> Authorization | None:
        """An authorization as this process has written it; another may have changed it since."""
        due = self._open.get(authorization_id)
        return None if due is None else due.authorization

    def take_due(self, now_ms: int) -> list[Due]:
        """Those that have expired; they are forgotten."""
        due: list[Due] = []
        while self._heap and self._heap[0][0] <= now_ms:
            expires_at_ms, authorization_id = heapq.heappop(self._heap)
            one = self._open.get(authorization_id)
            if one is not None and one.expires_at_ms == expires_at_ms:
                del self._open[authorization_id]
                due.append(one)
        return due

    @property
    def remembered(self) -> int:
        """How many entries there are in memory, those of settled ones among them."""
        return len(self._heap)

    def __len__(self) -> int:
        return len(self._open)


class Regions:
    """Marks regions in which something may be open, and reads them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._marked: BoundedCache[tuple[str, str], bool] = BoundedCache(MARKED_MAX)
        self._noted: BoundedCache[tuple[str, str], bool] = BoundedCache(MARKED_MAX)

    async def mark(self, org_id: str, authorization_id: str) -> None:
        """Mark the region of an authorization before it is written, unless this process has."""
        region = region_of(authorization_id)
        if (org_id, region) not in self._marked:
            await self._store.put(marker_put(org_id, region))
            self._marked.put((org_id, region), True)  # noqa: FBT003

    async def read_due(self, visit: int) -> list[tuple[str, str]]:
        """The organisation and region of each that is to be visited now for that time."""
        return await self._read_marked(visit, self._clock.now_ms() - VISITS_MS[visit])

    async def read(self, org_id: str, region: str) -> AsyncIterator[Authorization]:
        """The authorizations of a region; one that can't be read is reported and left out."""
        async for item in query_items(self._store, region_query(org_id, region)):
            try:
                authorization = authorization_of(item)
            except UnreadableItemError:
                continue
            if authorization is not None:
                yield authorization

    async def read_unfinished(self, org_id: str, state: State) -> list[Authorization]:
        """The authorizations of an organisation that are open, or those that are unsettled."""
        if state is State.UNSETTLED:
            markers = query_items(self._store, unsettled_query(org_id))
            regions = [unsettled_region(item)[1] async for item in markers]
        else:
            ahead_ms = self._clock.now_ms() + VISITS_MS[0]
            marked = await self._read_marked(0, ahead_ms)
            regions = [region for one, region in marked if one == org_id]
        return [
            one
            for region in regions
            async for one in self.read(org_id, region)
            if one.state is state
        ]

    async def read_exposed(self, org_ids: Collection[str]) -> list[tuple[str, Authorization]]:
        """What is open or unsettled at these organisations: the markers are read once for all."""
        wanted = set(org_ids)
        alone = next(iter(wanted)) if len(wanted) == 1 else ""
        markers = query_items(self._store, unsettled_query(alone))
        regions = {unsettled_region(item) async for item in markers}
        regions |= set(await self._read_marked(0, self._clock.now_ms() + VISITS_MS[0]))
        return [
            (org_id, one)
            for org_id, region in sorted(regions)
            if org_id in wanted
            async for one in self.read(org_id, region)
            if one.state in (State.OPEN, State.UNSETTLED)
        ]

    async def read_all_marked(self, org_id: str) -> list[str]:
        """Every region of an organisation in which anything may be open or unsettled."""
        markers = query_items(self._store, unsettled_query(org_id))
        regions = {unsettled_region(item)[1] async for item in markers}
        ahead_ms = self._clock.now_ms() + VISITS_MS[0]
        for visit in range(len(VISITS_MS)):
            marked = await self._read_marked(visit, ahead_ms)
            regions |= {region for one, region in marked if one == org_id}
        return sorted(regions)

    async def note_unsettled(self, org_id: str, region: str) -> None:
        """Let those who list unsettled authorizations know where one is."""
        if (org_id, region) not in self._noted:
            await self._store.put(unsettled_put(org_id, region))
            self._noted.put((org_id, region), True)  # noqa: FBT003

    async def note_visited(self, org_id: str, region: str, visit: int) -> None:
        """Nothing is open in the region: it is visited later once more, or never again."""
        if visit + 1 < len(VISITS_MS):
            await self._store.put(marker_put(org_id, region, visit + 1))
        await self._store.delete(marker_delete(org_id, region, visit))

    async def _read_marked(self, visit: int, until_ms: int) -> list[tuple[str, str]]:
        last = f"{max(0, until_ms):012x}"[:REGION_DIGITS]
        found = []
        async for item in query_items(self._store, markers_query(visit, last)):
            named = marker_of(item)
            if named is not None:
                found.append((named[1], named[0]))
        return found
