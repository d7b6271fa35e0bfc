"""Totals over a range of days: one query for each partition and kind, however many days."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from pricekeeper.clock import Clock
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.breakdown import Breakdown, Cell, Grouping, Row
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.facets import DAY, HOUR, NO_APP, TAG, hour_from, tag_from
from pricekeeper.metering.fold import add_up
from pricekeeper.metering.items import (
    CHECKPOINT,
    Partition,
    checkpoint_from,
    fold_from,
    partition_from,
    partitions_query,
    total_from,
)
from pricekeeper.metering.totals import TotalsReader
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import DAILY_TOTAL

_T = TypeVar("_T")
CONCURRENCY: Final = 8
"""Queries of one reader under way."""
_BEHIND: Final = "$"
"""Sorts right behind ``#``, which follows a day in a sort key."""
_APP: Final = "#APP#"


class Span(NamedTuple):
    """The days to look at, and of these the hours, if not all of them. All ends are included."""

    first_day: str
    last_day: str
    hours: tuple[int, int] | None = None

    def has_hour(self, hour: int) -> bool:
        """Whether that hour, since the epoch, is in it."""
        return self.hours is None or self.hours[0] <= hour <= self.hours[1]


class Spend(NamedTuple):
    """What was spent, broken down."""

    rows: list[Row]
    total: Counters
    as_of_ms: int
    """Everything that was acknowledged before is in it; 0 if nothing was aggregated yet."""


class RangeReader:
    """Reads totals of many days at once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._totals = TotalsReader(store, clock)

    async def read_partitions(self, org_id: str, prefix: str = "") -> list[Partition]:
        """Where the organisation has totals, or those whose key starts so."""
        items = query_items(self._store, partitions_query(org_id, prefix))
        return [one async for item in items if (one := partition_from(item)) is not None]

    async def read_complete_ms(self) -> int:
        """The moment up to which everything is in the totals; 0 if nothing was aggregated yet."""
        return checkpoint_from(await self._store.get(*CHECKPOINT)) or 0

    async def read_days(
        self, partitions: Iterable[Partition], first_day: str, last_day: str, complete_ms: int
    ) -> dict[Account, Total]:
        """The totals of accounts on those days of the range that have one.

        ``complete_ms`` is the moment up to which all of them are complete at least.
        """
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
                except UnreadableItemError as error:
                    unreadable[account] = error
                    continue
                as_of_ms = min(now_ms, max(total.as_of_ms, complete_ms))
                totals[account] = Total.of(total, as_of_ms)

        await _run_for_each(read, [one for one in partitions if one.has_days])
        if unreadable:
            totals |= (await self._totals.sum_unreadable(unreadable)).require_all()
        return totals

    async def read_totals_by_day(
        self, org_id: str, prefix: str, scope_key: str, labels: Iterable[str], days: Sequence[str]
    ) -> dict[str, dict[Account, Total]]:
        """What accounts whose partition starts so have spent on each of these successive days.

        The labels of the scope have a total on every day, which may be nothing.
        """
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
        org_ids: Iterable[str],
        app_id: str | None,
        span: Span,
        grouping: Grouping,
        *,
        label: str | None = None,
        tag_value: str | None = None,
    ) -> Spend:
        """What these organisations have spent, or one app of the only one.

        ``label`` narrows it to one label, ``tag_value`` to one value of the grouping's tag.
        """
        as_of_ms = await self.read_complete_ms()
        breakdown = Breakdown(grouping, tag_value=tag_value)

        async def read_org(org_id: str) -> None:
            prefix = "" if app_id is None else f"ORG#{org_id}{_APP}{app_id}#LABEL#"
            partitions = [
                one
                for one in await self.read_partitions(org_id, prefix)
                if label in {None, one.label}
            ]
            if app_id is None and span.hours is None and grouping.fits_days:
                await self._add_days(org_id, partitions, span, breakdown)
            else:
                await self._add_hours(org_id, partitions, span, breakdown)

        await _run_for_each(read_org, list(org_ids))
        rows = breakdown.rows()
        total = add_up(row.counters for row in rows)
        return Spend(rows, total, min(as_of_ms, self._clock.now_ms()))

    async def read_hourly_costs(
        self, org_id: str, app_id: str | None, first_day: str, last_day: str
    ) -> dict[str, dict[int, int]]:
        """What an organisation, or one app of it, has spent in each hour since the epoch, by label.

        In pico-dollars; hours in which nothing was spent are not in it.
        """
        prefix = "" if app_id is None else f"ORG#{org_id}{_APP}{app_id}#LABEL#"
        partitions = await self.read_partitions(org_id, prefix)
        costs: dict[str, dict[int, int]] = {}

        async def read(partition: Partition) -> None:
            mine = costs.setdefault(partition.label, {})
            async for item in self._items(partition, *_bounds(HOUR, Span(first_day, last_day))):
                _, hour = hour_from(item["SK"])
                mine[hour] = mine.get(hour, 0) + total_from(item).cost_usd_picos

        await _run_for_each(read, [one for one in partitions if one.has_hours])
        return costs

    async def _add_days(
        self, org_id: str, partitions: Iterable[Partition], span: Span, breakdown: Breakdown
    ) -> None:
        found = await self.read_days(partitions, span.first_day, span.last_day, 0)
        for account, total in found.items():
            breakdown.add(Cell(org_id, "", account.label, account.day), total.counters)

    async def _add_hours(
        self, org_id: str, partitions: Iterable[Partition], span: Span, breakdown: Breakdown
    ) -> None:
        """Add what is known by hour, and where hours are not asked for, what is known by day alone.

        That is what an earlier version, or another program, has counted in shards.
        """
        tells_hours = span.hours is not None or breakdown.grouping.has_hours

        async def read(partition: Partition) -> None:
            if partition.has_hours:
                await self._add_tags(org_id, partition, span, breakdown)
                bounds = _bounds(HOUR, span)
                async for item in self._items(partition, *bounds):
                    day, hour = hour_from(item["SK"])
                    if span.has_hour(hour):
                        cell = Cell(org_id, _app_of(partition), partition.label, day, hour)
                        breakdown.add(cell, total_from(item).counters)
            if partition.has_days and not tells_hours:
                bounds = f"{DAY}{span.first_day}", f"{DAY}{span.last_day}"
                async for item in self._items(partition, *bounds):
                    total_from(item)  # raises if it can't be read, or does not have everything
                    day = str(item["SK"]).removeprefix(DAY)
                    shards = fold_from(item).shards
                    if shards != NOTHING:
                        cell = Cell(org_id, _app_of(partition), partition.label, day)
                        breakdown.add(cell, shards)

        await _run_for_each(read, partitions)

    async def _add_tags(
        self, org_id: str, partition: Partition, span: Span, breakdown: Breakdown
    ) -> None:
        key = breakdown.grouping.tag_key
        if key is None:
            return
        async for item in self._items(partition, *_bounds(f"{TAG}{key}#", span)):
            tag = tag_from(item["SK"])
            if span.has_hour(tag.hour):
                cell = Cell(org_id, _app_of(partition), partition.label, tag.day, tag.hour)
                breakdown.add_tagged(cell, tag.value, total_from(item).counters)

    def _items(self, partition: Partition, first: str, last: str) -> AsyncIterator[Item]:
        query = Query(DAILY_TOTAL, partition.pk, first=first, last=last)
        return query_items(self._store, query)


def _bounds(prefix: str, span: Span) -> tuple[str, str]:
    return f"{prefix}{span.first_day}#", f"{prefix}{span.last_day}{_BEHIND}"


def _app_of(partition: Partition) -> str:
    """The app of a partition; nothing, if that is the organisation's own or shared by its apps."""
    app_id = partition.scope_key.partition(_APP)[2]
    return "" if app_id == NO_APP else app_id


async def _run_for_each(work: Callable[[_T], Awaitable[None]], entries: Iterable[_T]) -> None:
    """Do the work for each of them, some at a time. The first error ends it."""
    some: list[_T] = []
    for entry in entries:
        some.append(entry)
        if len(some) == CONCURRENCY:
            await asyncio.gather(*map(work, some))
            some = []
    await asyncio.gather(*map(work, some))
