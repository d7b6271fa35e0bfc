"""Authorizations that nobody settles: found, and charged at what they hold.

The process that granted an authorization remembers when it expires. For those of processes that are
gone there is a marker for each region of an organisation, put before the first authorization in it.
A sweep reads the regions that are a while old: it settles what has expired, and takes the marker
away once nothing in the region is open or unsettled.

Bounds: `REMEMBERED_MAX` authorizations of this process; those beyond are left to the sweep.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
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
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Store, query_items

REMEMBERED_MAX: Final = 100_000
MARKED_MAX: Final = 10_000
QUIET_MS: Final = 240_000
"""How old a region is before it is swept: nothing is authorized in it any more."""


class Due(NamedTuple):
    """An authorization of this process, and when it expires."""

    expires_at_ms: int
    id: str
    org_id: str
    lanes: int
    authorization: Authorization


class OpenList:
    """The open authorizations that this process has granted."""

    def __init__(self) -> None:
        self._open: dict[str, Due] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, org_id: str, lanes: int, authorization: Authorization) -> None:
        """Remember when it expires; one that is extended is remembered anew."""
        if len(self._open) >= REMEMBERED_MAX and authorization.id not in self._open:
            return
        due = Due(authorization.expires_at_ms, authorization.id, org_id, lanes, authorization)
        self._open[due.id] = due
        heapq.heappush(self._heap, (due.expires_at_ms, due.id))

    def remove(self, authorization_id: str) -> None:
        """Forget one that is settled."""
        self._open.pop(authorization_id, None)

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

    def __len__(self) -> int:
        return len(self._open)


class Regions:
    """Marks regions in which something may be open, and reads them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._marked: BoundedCache[tuple[str, str], bool] = BoundedCache(MARKED_MAX)

    async def mark(self, org_id: str, authorization_id: str) -> None:
        """Mark the region of an authorization before it is written, unless this process has."""
        region = region_of(authorization_id)
        if (org_id, region) not in self._marked:
            await self._store.put(marker_put(org_id, region))
            self._marked.put((org_id, region), True)  # noqa: FBT003

    async def read_marked(self, *, quiet: bool) -> list[tuple[str, str]]:
        """The organisation and region of each marker; of regions that are quiet, or of all."""
        until_ms = self._clock.now_ms() + (-QUIET_MS if quiet else QUIET_MS)
        last = f"{max(0, until_ms):012x}"[:REGION_DIGITS]
        found = []
        async for item in query_items(self._store, markers_query(last)):
            named = marker_of(item)
            if named is not None:
                found.append((named[1], named[0]))
        return found

    async def read(self, org_id: str, region: str) -> AsyncIterator[Authorization]:
        """The authorizations of a region; one that can't be read is reported and left out."""
        async for item in query_items(self._store, region_query(org_id, region)):
            try:
                authorization = authorization_of(item)
            except UnreadableItemError:
                continue
            if authorization is not None:
                yield authorization

    async def read_unfinished(self, org_id: str) -> list[Authorization]:
        """The authorizations of an organisation that are open or unsettled."""
        found: list[Authorization] = []
        for marked, region in await self.read_marked(quiet=False):
            if marked == org_id:
                found += [
                    one
                    async for one in self.read(org_id, region)
                    if one.state in (State.OPEN, State.UNSETTLED)
                ]
        return found

    async def unmark(self, org_id: str, region: str) -> None:
        """Take the marker of a region away, in which nothing is open or unsettled."""
        await self._store.delete(marker_delete(org_id, region))
