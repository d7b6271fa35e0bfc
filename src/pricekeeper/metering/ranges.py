"""Totals over a range of days: one query for each partition and kind of total."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import gather_in_groups
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.breakdown import Breakdown, Cell, Grouping, Row
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.facets import DAY, HOUR, NO_APP, TAG, Facet, hour_from, tag_from
from pricekeeper.metering.fold import Sums, add_up
from pricekeeper.metering.items import (
    CHECKPOINT,
    Partition,
    checkpoint_from,
    fold_from,
    partition_from,
    partitions_query,
    total_from,
)
from pricekeeper.metering.live import LiveReading
from pricekeeper.metering.totals import TotalsReader
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import DAILY_TOTAL

CONCURRENCY: Final = 8
"""Queries of one reader."""
_BEHIND: Final = "$"
_APP: Final = "#APP#"


class DayRange(NamedTuple):
    """The days to read, and optionally only some of their hours. All ends are included."""

    first_day: str
    last_day: str
    hours: tuple[int, int] | None = None

    def has_hour(self, hour: int) -> bool:
        return self.hours is None or self.hours[0] <= hour <= self.hours[1]


class SpendTable(NamedTuple):
    """Spend by group."""

    rows: list[Row]
    total: Counters
    as_of_ms: int
    """Everything acknowledged before is in it; 0 if nothing was aggregated yet."""


class RangeReader:
    """Reads totals of many days at once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._totals = TotalsReader(store, clock)

    async def read_partitions(self, org_id: str, prefix: str = "") -> list[Partition]:
        items = query_items(self._store, partitions_query(org_id, prefix))
        return [one async for item in items if (one := partition_from(item)) is not None]

    async def read_complete_ms(self) -> int:
        return checkpoint_from(await self._store.get(*CHECKPOINT)) or 0

    async def read_days(
        self,
        partitions: Iterable[Partition],
        first_day: str,
        last_day: str,
        complete_ms: int,
        unfolded: Unfolded | None = None,
    ) -> dict[Account, Total]:
        """``complete_ms``: up to then, all totals are complete at least."""
        now_ms = self._clock.now_ms()
        totals: dict[Account, Total] = {}
        unreadable: dict[Account, UnreadableItemError] = {}

        async def read(partition: Partition) -> None:
            async for item in self._items(partition, f"{DAY}{first_day}", f"{DAY}{last_day}"):
                account = Account(
                    partition.scope_key, partition.label, str(item["SK"]).removeprefix(DAY)
                )
                try:
                    total = total_from(item)
                    counters = total if unfolded is None else unfolded.with_posted(item)
                except UnreadableItemError as error:
                    unreadable[account] = error
                    continue
                as_of_ms = min(now_ms, max(total.as_of_ms, complete_ms))
                totals[account] = Total.of(counters, as_of_ms)

        await gather_in_groups(read, [one for one in partitions if one.has_days], CONCURRENCY)
        if unreadable:
            totals |= (await self._totals.sum_unreadable(unreadable)).require_all()
            for account in unreadable:
                if unfolded is not None:
                    unfolded.drop(account)
        return totals

    async def read_totals_by_day(
        self, org_id: str, prefix: str, scope_key: str, labels: Iterable[str], days: Sequence[str]
    ) -> dict[str, dict[Account, Total]]:
        """The labels of the scope have a total on every day, possibly of nothing."""
        own = [Partition(scope_key, label) for label in labels]
        others = {one.pk: one for one in await self.read_partitions(org_id, prefix)}
        partitions = {**others, **{one.pk: one for one in own}}
        complete_ms = await self.read_complete_ms()
        nothing = Total(as_of_ms=min(self._clock.now_ms(), complete_ms))
        found = await self.read_days(partitions.values(), days[0], days[-1], complete_ms)
        by_day: dict[str, dict[Account, Total]] = {
            day: {Account(scope_key, one.label, day): nothing for one in own} for day in days
        }
        for account, total in found.items():
            by_day.setdefault(account.day, {})[account] = total
        return by_day

    async def read_spend(
        self,
        org_ids: Collection[str],
        app_id: str | None,
        span: DayRange,
        grouping: Grouping,
        *,
        label: str | None = None,
        tag_value: str | None = None,
        live: LiveReading | None = None,
    ) -> SpendTable:
        """``app_id`` needs a single organisation; ``live`` must have been read before."""
        if live is None or not live.lacking.keys().isdisjoint(org_ids):
            as_of_ms = await self.read_complete_ms()
        else:
            as_of_ms = live.as_of_ms
        breakdown = Breakdown(grouping, tag_value)

        async def read_org(org_id: str) -> None:
            prefix = "" if app_id is None else f"ORG#{org_id}{_APP}{app_id}#LABEL#"
            partitions = [
                one
                for one in await self.read_partitions(org_id, prefix)
                if label in {None, one.label}
            ]
            posted = {} if live is None else live.found.get(org_id, {})
            unfolded = Unfolded(org_id, posted, prefix, label)
            if app_id is None and span.hours is None and grouping.fits_days:
                await self._add_days(partitions, span, breakdown, unfolded)
            else:
                await self._add_hours(partitions, span, breakdown, unfolded)

        await gather_in_groups(read_org, list(org_ids), CONCURRENCY)
        rows = breakdown.rows()
        total = add_up(row.counters for row in rows)
        return SpendTable(rows, total, min(as_of_ms, self._clock.now_ms()))

    async def read_hourly_costs(
        self, org_id: str, app_id: str | None, first_day: str, last_day: str
    ) -> dict[str, dict[int, int]]:
        """Return pico-dollars by label and hour since the epoch; hours without spend are absent."""
        prefix = "" if app_id is None else f"ORG#{org_id}{_APP}{app_id}#LABEL#"
        partitions = await self.read_partitions(org_id, prefix)
        costs: dict[str, dict[int, int]] = {}

        async def read(partition: Partition) -> None:
            mine = costs.setdefault(partition.label, {})
            async for item in self._items(partition, *_bounds(HOUR, DayRange(first_day, last_day))):
                _, hour = hour_from(item["SK"])
                mine[hour] = mine.get(hour, 0) + total_from(item).cost_usd_picos

        await gather_in_groups(read, [one for one in partitions if one.has_hours], CONCURRENCY)
        return costs

    async def _add_days(
        self,
        partitions: Iterable[Partition],
        span: DayRange,
        breakdown: Breakdown,
        unfolded: Unfolded,
    ) -> None:
        org_id = unfolded.org_id
        found = await self.read_days(partitions, span.first_day, span.last_day, 0, unfolded)
        for account, total in found.items():
            breakdown.add(Cell(org_id, "", account.label, account.day), total.counters)
        for partition, sort_key, counters in unfolded.left_in((DAY,), span):
            day = sort_key.removeprefix(DAY)
            breakdown.add(Cell(org_id, "", partition.label, day), counters)

    async def _add_hours(
        self,
        partitions: Iterable[Partition],
        span: DayRange,
        breakdown: Breakdown,
        unfolded: Unfolded,
    ) -> None:
        """Add totals by hour and, unless hours are asked for, adopted usage, which has no hour."""
        hours = _Hours(unfolded.org_id, span, breakdown)

        async def read(partition: Partition) -> None:
            if partition.has_hours:
                for prefix in hours.prefixes:
                    async for item in self._items(partition, *_bounds(prefix, span)):
                        hours.add(partition, str(item["SK"]), unfolded.with_posted(item))
            if partition.has_adopted and not hours.are_told:
                async for item in self._items(
                    partition, f"{DAY}{span.first_day}", f"{DAY}{span.last_day}"
                ):
                    hours.add_adopted(partition, item)

        await gather_in_groups(read, list(partitions), CONCURRENCY)
        for left in unfolded.left_in(hours.prefixes, span):
            hours.add(*left)

    def _items(self, partition: Partition, first: str, last: str) -> AsyncIterator[Item]:
        query = Query(DAILY_TOTAL, partition.pk, first=first, last=last)
        return query_items(self._store, query)


class _Hours:
    def __init__(self, org_id: str, span: DayRange, breakdown: Breakdown) -> None:
        self._org_id = org_id
        self._span = span
        self._breakdown = breakdown
        self.are_told = span.hours is not None or breakdown.grouping.has_hours

    @property
    def prefixes(self) -> tuple[str, ...]:
        key = self._breakdown.grouping.tag_key
        return (HOUR,) if key is None else (f"{TAG}{key}#", HOUR)

    def add(self, partition: Partition, sort_key: str, counters: Counters) -> None:
        tag = tag_from(sort_key) if sort_key.startswith(TAG) else None
        day, hour = hour_from(sort_key) if tag is None else (tag.day, tag.hour)
        if not self._span.has_hour(hour):
            return
        cell = Cell(self._org_id, _app_of(partition), partition.label, day, hour)
        if tag is None:
            self._breakdown.add(cell, counters)
        else:
            self._breakdown.add_tagged(cell, tag.value, counters)

    def add_adopted(self, partition: Partition, item: Item) -> None:
        adopted = fold_from(item).adopted
        if adopted != NOTHING:
            day = str(item["SK"]).removeprefix(DAY)
            cell = Cell(self._org_id, _app_of(partition), partition.label, day)
            self._breakdown.add(cell, adopted)


def _bounds(prefix: str, span: DayRange) -> tuple[str, str]:
    return f"{prefix}{span.first_day}#", f"{prefix}{span.last_day}{_BEHIND}"


def _app_of(partition: Partition) -> str:
    app_id = partition.scope_key.partition(_APP)[2]
    return "" if app_id == NO_APP else app_id


class Unfolded:
    """Posted counters of one organisation's totals; each total gets them once."""

    def __init__(
        self, org_id: str, posted: Mapping[Facet, Sums], prefix: str = "", label: str | None = None
    ) -> None:
        """Only partitions that start with ``prefix`` and, if given, have the ``label``."""
        self.org_id = org_id
        self._left = {
            (facet.pk, facet.sk): (facet.day, sums)
            for facet, sums in posted.items()
            if facet.pk.startswith(prefix) and label in {None, _partition(facet.pk).label}
        }

    def with_posted(self, item: Item) -> Counters:
        total = total_from(item)
        _, sums = self._left.pop((str(item["PK"]), str(item["SK"])), ("", None))
        return total.counters if sums is None else fold_from(item).counters_with(sums)

    def drop(self, account: Account) -> None:
        self._left.pop((account.partition, f"{DAY}{account.day}"), None)

    def left_in(
        self, prefixes: tuple[str, ...], span: DayRange
    ) -> Iterator[tuple[Partition, str, Counters]]:
        """The counters of totals that do not exist yet, with their sort keys."""
        for (pk, sort_key), (day, sums) in self._left.items():
            if sort_key.startswith(prefixes) and span.first_day <= day <= span.last_day:
                yield _partition(pk), sort_key, add_up(sums.values())


def _partition(pk: str) -> Partition:
    scope_key, _, label = pk.partition("#LABEL#")
    return Partition(scope_key, label)
