"""Live sums: the counters of open ticks, by total and tick.

The live total is the stored one plus the records of later ticks, summed as the next fold would sum
them. These can be a hundred thousand, so a reading is remembered and only changes are read:

- A record is acknowledged within `in_flight_ms` of its sending. So one that was acknowledged after
  a reading began is in a region marked in a tick since then; other regions have not changed.
- Pages only grow. A page of the same weight and length is not parsed again.

Callers share readings (`concurrency.shared_readings`) for `REUSE_MS`. A reading contains all that
this process counted before the call, unless a long reading is reused to save the processor.

Bounds: `READINGS_MAX` shared readings, and `PAGES_MAX` remembered pages; the organisation that was
read longest ago is evicted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Read, SharedReadings, error_copy, gather_in_groups
from pricekeeper.days import MS_PER_DAY
from pricekeeper.errors import StoreError, UnreadableItemError
from pricekeeper.metering.aggregation_report import Tally
from pricekeeper.metering.counters import NOTHING, Account, Counters
from pricekeeper.metering.facets import Facet, Facets, SumsByFacet, facet_of
from pricekeeper.metering.fold import Sums
from pricekeeper.metering.items import CHECKPOINT, closed_tick_from
from pricekeeper.metering.journal import records_on, weight_on
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.journal_reading import CONCURRENCY, JournalReader
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.metering.tag_values import TagValues
from pricekeeper.storage import Item, Store
from pricekeeper.ticks import tick_of

REUSE_MS: Final = 1_000
PAGE_US: Final = 12
RECORD_US: Final = 12
READINGS_MAX: Final = 256
PAGES_MAX: Final = 100_000
BEFORE_ANY_FOLD_MS: Final = 2 * MS_PER_DAY
PAGES_A_TURN: Final = 64
"""Pages checked before other requests get a turn."""
_ALL: Final = ""
_FACETS_MAX: Final = 10_000


class LiveReading(NamedTuple):
    """The counters posted in open ticks, by organisation, total and tick."""

    found: Mapping[str, SumsByFacet]
    as_of_ms: int
    """Everything acknowledged before is in it, except for the ``lacking`` organisations."""
    lacking: Mapping[str, StoreError] = {}

    def sums_of(self, account: Account) -> Sums:
        """The account's counters by tick; raise if its organisation is lacking."""
        if (error := self.lacking.get(account.org_id)) is not None:
            raise error_copy(error)
        return self.found.get(account.org_id, {}).get(facet_of(account), {})


class _Page(NamedTuple):
    state: tuple[int, int]
    """Its weight and its bytes: a place that was taken gets its record later."""
    sums: dict[tuple[tuple[Facet, ...], int], Counters]


class _Tail:
    def __init__(self, org_id: str) -> None:
        self.org_id = org_id
        self.began_ms = 0
        self.regions: dict[int, set[PostedRegion]] = {}
        self._lanes: dict[tuple[str, int], dict[str, _Page]] = {}
        self._facets = Facets(org_id)
        self.sums: SumsByFacet = {}
        self.pages = 0
        self.work_us = 0
        self.lock = asyncio.Lock()
        """Two readings at once would change the same sums."""

    def close(self, closed: int) -> None:
        self.regions = {tick: some for tick, some in self.regions.items() if tick > closed}
        kept = {one.region for some in self.regions.values() for one in some}
        for lane in [lane for lane in self._lanes if lane[0] not in kept]:
            self.pages -= len(self._lanes.pop(lane))
        for facet, sums in list(self.sums.items()):
            for tick in [tick for tick in sums if tick <= closed]:
                del sums[tick]
            if not sums:
                del self.sums[facet]
        if len(self.sums) > _FACETS_MAX:
            self._facets = Facets(self.org_id)  # it remembers every hour and tag that it saw

    def to_read(self, since_tick: int) -> set[tuple[PostedRegion, int]]:
        """The lanes with possible changes: posted into since then, or never read."""
        return {
            (posting._replace(lanes=1), lane)
            for tick, some in self.regions.items()
            for posting in some
            for lane in range(posting.lanes)
            if tick >= since_tick or (posting.region, lane) not in self._lanes
        }

    def begin_lane(self, region: str, lane: int) -> None:
        self._lanes.setdefault((region, lane), {})

    def take(self, region: str, lane: int, item: Item, closed: int) -> None:
        pages, name, state = self._lanes[region, lane], str(item["SK"]), _state_of(item)
        known = pages.get(name)
        self.work_us += PAGE_US
        if known is not None and known.state == state:
            return
        sums: dict[tuple[tuple[Facet, ...], int], Counters] = {}
        for record in records_on(item):
            self.work_us += RECORD_US
            key = (self._facets.of(record), record.entry.tick)
            sums[key] = sums.get(key, NOTHING) + record.entry.counters
        if known is None:
            self.pages += 1
        pages[name] = _Page(state, sums)
        for (facets, tick), counters in sums.items():
            if tick > closed:
                more = counters
                if known is not None and (facets, tick) in known.sums:
                    more = counters - known.sums[facets, tick]
                for facet in facets:
                    by_tick = self.sums.setdefault(facet, {})
                    by_tick[tick] = by_tick.get(tick, NOTHING) + more


class LiveSums:
    """Reads the records of open ticks."""

    def __init__(
        self, store: Store, clock: Clock, *, retention_days: int, in_flight_ms: int
    ) -> None:
        """No record is acknowledged later than ``in_flight_ms`` after it was sent."""
        self._store = store
        self._clock = clock
        self._in_flight_ms = in_flight_ms
        self._journal = JournalReader(store)
        self._tag_values = TagValues(store, retention_days, FoldMeter())
        self._readings: SharedReadings[str, LiveReading] = SharedReadings(
            "pricekeeper-live", clock.monotonic_ms, entries_max=READINGS_MAX, reuse_ms=REUSE_MS
        )
        self._tails: dict[str, _Tail] = {}
        """The longest unread first."""

    async def read(self, org_ids: Collection[str], tag_key: str | None = None) -> LiveReading:
        """At most a second old. Values of ``tag_key`` get the headings that a fold gives them."""
        key = next(iter(org_ids)) if len(org_ids) == 1 else _ALL
        reading = await self._readings.get(key, lambda: self._read_anew(key))
        if tag_key is None:
            return reading
        return await self._register_values(reading, org_ids, tag_key)

    def note_counted(self, org_id: str) -> None:
        """Outdate readings: this process has counted something for the organisation."""
        self._readings.outdate(org_id, _ALL)

    async def _register_values(
        self, reading: LiveReading, org_ids: Collection[str], tag_key: str
    ) -> LiveReading:
        found, lacking = dict[str, SumsByFacet](), dict(reading.lacking)
        for org_id in reading.found.keys() & set(org_ids):
            tally, sums = Tally(), reading.found[org_id]
            wanted = {
                facet: some
                for facet, some in sums.items()
                if facet.tag is None or facet.tag.key == tag_key
            }
            found[org_id] = await self._tag_values.register_values(wanted, tally)
            if tally.unreadable:
                lacking[org_id] = UnreadableItemError(f"the values of tag {tag_key} can't be read")
        return LiveReading(found, reading.as_of_ms, lacking)

    async def _read_anew(self, key: str) -> Read[LiveReading]:
        now_ms = self._clock.now_ms()
        closed = closed_tick_from(await self._store.get(*CHECKPOINT))
        if closed is None:
            closed = tick_of(max(0, now_ms - BEFORE_ANY_FOLD_MS))
        found: dict[str, SumsByFacet] = {}
        lacking: dict[str, StoreError] = {}
        work_us = 0
        for tail in await self._find_tails(key, closed, now_ms):
            before_us = tail.work_us
            try:
                found[tail.org_id] = await self._read_tail(tail, closed, now_ms)
            except UnreadableItemError as error:  # it concerns that organisation alone
                lacking[tail.org_id] = error
            work_us += tail.work_us - before_us
        self._forget_oldest()
        return Read(LiveReading(found, now_ms, lacking), work_us)

    async def _find_tails(self, key: str, closed: int, now_ms: int) -> list[_Tail]:
        ticks = await self._journal.read_ticks(closed + 1, tick_of(now_ms) + 1)
        by_tick = await gather_in_groups(
            lambda tick: self._journal.read_postings([tick], key), ticks, CONCURRENCY
        )
        for tick, postings in zip(ticks, by_tick, strict=True):
            for posting in postings:
                tail = self._tails.pop(posting.org_id, None) or _Tail(posting.org_id)
                tail.regions.setdefault(tick, set()).add(posting)
                self._tails[posting.org_id] = tail  # now it is the last
        if key == _ALL:
            return list(self._tails.values())
        return [self._tails[key]] if key in self._tails else []

    async def _read_tail(self, tail: _Tail, closed: int, now_ms: int) -> SumsByFacet:
        async with tail.lock:
            since_tick = tick_of(max(0, tail.began_ms - self._in_flight_ms))
            tail.close(closed)
            lanes = sorted(tail.to_read(since_tick))
            try:
                await gather_in_groups(partial(self._read_lane, tail, closed), lanes, CONCURRENCY)
            except BaseException:
                # It is unknown which lanes were read.
                if self._tails.get(tail.org_id) is tail:
                    del self._tails[tail.org_id]
                raise
            tail.began_ms = max(tail.began_ms, now_ms)
            return {facet: dict(sums) for facet, sums in tail.sums.items()}

    async def _read_lane(self, tail: _Tail, closed: int, one: tuple[PostedRegion, int]) -> None:
        posting, lane = one
        tail.begin_lane(posting.region, lane)
        turn = 0
        async for item in self._journal.read_pages(posting, lane):
            tail.take(posting.region, lane, item, closed)
            turn += 1
            if turn % PAGES_A_TURN == 0:
                await asyncio.sleep(0)

    def _forget_oldest(self) -> None:
        """Forget organisations without open ticks, then the oldest until the pages fit."""
        for org_id in [one for one, tail in self._tails.items() if not tail.regions]:
            del self._tails[org_id]
        pages = sum(tail.pages for tail in self._tails.values())
        while pages > PAGES_MAX:
            pages -= self._tails.pop(next(iter(self._tails))).pages


def _state_of(item: Item) -> tuple[int, int]:
    """Return a value that each write on a page changes."""
    return weight_on(item), sum(len(one) for one in item.values() if isinstance(one, bytes))
