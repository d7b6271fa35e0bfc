"""Totals: as last aggregated, or with everything that was posted since; how they are written.

A total is complete up to the moment of its sum or of the last complete aggregation, if that is
later, but never later than now. A live total is the stored one with the open ticks of a
`LiveReading`.

If a total is unreadable, the records of its day are summed instead. If these are unreadable, too,
or there are none, `UnreadableItemError` is raised; the answer is never zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import ConditionFailedError, UnreadableItemError
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.facets import Facet
from pricekeeper.metering.fold import Fold
from pricekeeper.metering.items import (
    CHECKPOINT,
    Holds,
    account_from,
    account_update,
    checkpoint_from,
    day_expires_at_epoch,
    fold_from,
    fold_put,
    lacking_update,
    spent_put,
    spent_query,
    total_from,
    total_key,
    total_so_far,
)
from pricekeeper.metering.journal import ticks_of_day
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.live import LiveReading
from pricekeeper.storage import Item, Key, Store, Table, query_items
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.values import AppId, ModelLabel, OrgId

_APP = "#APP#"


@dataclass(frozen=True, slots=True)
class OrgTotals:
    """An organisation's spend on a day: in all, and by those of its apps that have quotas."""

    total: Mapping[ModelLabel, Total]
    apps: Mapping[AppId, Mapping[ModelLabel, Total]]


@dataclass(frozen=True, slots=True)
class Readings:
    """The totals of some accounts; for each unreadable one the error instead."""

    totals: Mapping[Account, Total]
    unreadable: Mapping[Account, UnreadableItemError]

    def require_all(self) -> Mapping[Account, Total]:
        for error in self.unreadable.values():
            raise error
        return self.totals


def total_keys(accounts: Iterable[Account]) -> list[tuple[Table, Key]]:
    """The keys of the totals of these accounts."""
    return [total_key(account) for account in accounts]


def totals_from(
    accounts: Iterable[Account], found: Iterable[Item | None], live: LiveReading | None = None
) -> Readings:
    """Decode the items at the keys of these accounts. ``live`` must have been read before."""
    totals: dict[Account, Total] = {}
    unreadable: dict[Account, UnreadableItemError] = {}
    for account, item in zip(accounts, found, strict=True):
        try:
            total = total_from(item)
            if live is not None:
                counters = fold_from(item).counters_with(live.sums_of(account))
                total = Total.of(counters, max(total.as_of_ms, live.as_of_ms))
            totals[account] = total
        except UnreadableItemError as error:
            unreadable[account] = error
    return Readings(totals, unreadable)


def org_totals_of(org_scope: str, totals: Mapping[Account, Total]) -> OrgTotals:
    """Sum the accounts of an organisation on one day."""
    sums: dict[ModelLabel, Counters] = {}
    as_of_ms: dict[ModelLabel, int] = {}
    apps: dict[AppId, dict[ModelLabel, Total]] = {}
    for account, total in totals.items():
        label = ModelLabel(account.label)
        sums[label] = sums.get(label, NOTHING) + total
        as_of_ms[label] = min(as_of_ms.get(label, total.as_of_ms), total.as_of_ms)
        if account.scope_key != org_scope:
            app_id = AppId(account.scope_key.removeprefix(org_scope + _APP))
            apps.setdefault(app_id, {})[label] = total
    return OrgTotals(
        {label: Total.of(counters, as_of_ms[label]) for label, counters in sums.items()}, apps
    )


class TotalsReader:
    """Reads spend. A label without usage has a total of nothing."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._journal = JournalReader(store)

    async def read(
        self,
        accounts: Collection[Account],
        *,
        consistent: bool = True,
        live: LiveReading | None = None,
    ) -> Readings:
        """Unreadable totals are summed from records. ``live`` must have been read before."""
        now_ms = self._clock.now_ms()
        checkpoint, *found = await self._store.batch_get(
            [CHECKPOINT, *total_keys(accounts)], consistent=consistent
        )
        complete_ms = checkpoint_from(checkpoint) or 0
        readings = totals_from(accounts, found, live)
        totals = {
            account: Total.of(total, min(now_ms, max(total.as_of_ms, complete_ms)))
            for account, total in readings.totals.items()
        }
        if not readings.unreadable:
            return Readings(totals, {})
        instead = await self.sum_unreadable(readings.unreadable)
        return Readings({**totals, **instead.totals}, instead.unreadable)

    async def sum_unreadable(self, unreadable: Mapping[Account, UnreadableItemError]) -> Readings:
        totals: dict[Account, Total] = {}
        errors: dict[Account, UnreadableItemError] = {}
        for account, error in unreadable.items():
            as_of_ms = self._clock.now_ms()
            try:
                summed = await self._sum_records(account)
            except UnreadableItemError as another:
                errors[account] = another
                continue
            if summed is None:
                errors[account] = error
            else:
                totals[account] = Total.of(summed, as_of_ms)
        return Readings(totals, errors)

    async def read_accounts(self, day: str, prefix: str) -> list[Account]:
        items = query_items(self._store, spent_query(day, prefix))
        return [account async for item in items if (account := account_from(day, item)) is not None]

    async def read_org(self, org_id: OrgId, labels: Iterable[str], day: str) -> OrgTotals:
        """In all scopes, since the organisation may have changed its quota scope that day."""
        org_scope = f"ORG#{org_id}"
        wanted = [Account(org_scope, label, day) for label in labels]
        wanted += await self.read_accounts(day, f"{org_scope}#")
        totals = (await self.read(list(dict.fromkeys(wanted)))).require_all()
        return org_totals_of(org_scope, totals)

    async def _sum_records(self, account: Account) -> Counters | None:
        """``None`` if there are none."""
        ticks = await self._journal.read_ticks(*ticks_of_day(account.day))
        postings = await self._journal.read_postings(ticks, account.org_id)
        found: Counters | None = None
        async for record in self._journal.read_records(postings):
            terms = record.terms
            if (terms.scope_key, terms.label, terms.day) == account:
                found = (found or NOTHING) + record.entry.counters
        return found


PARTITIONS_MAX: Final = 50_000
"""A forgotten partition is entered again."""


class StoredTotals:
    """Writes totals, and lists each one before it is written, so that readers can find it.

    An item ``SPENT#{day}`` names each account with a total of that day, an item ``ACCOUNTS#{org}``
    each partition with totals. Both live as long as the totals.
    """

    def __init__(self, store: Store, clock: Clock, retention_days: int) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._listed: BoundedCache[tuple[str, str, Holds], bool] = BoundedCache(PARTITIONS_MAX)

    async def read(self, facets: Collection[Facet]) -> dict[Facet, Item | None]:
        stored = await self._store.batch_get([(DAILY_TOTAL, facet.key) for facet in facets])
        return dict(zip(facets, stored, strict=True))

    async def put(
        self,
        facet: Facet,
        fold: Fold,
        stored: Item | None,
        as_of_ms: int,
        *,
        is_whole: bool = False,
    ) -> None:
        """``is_whole``: made from all records. `ConditionFailedError` if another was first."""
        if stored is None:
            await self.enter_in_lists(facet)
        else:
            as_of_ms = max(as_of_ms, total_so_far(stored).as_of_ms)
        expires = day_expires_at_epoch(facet.day, self._retention_days)
        await self._store.put(
            fold_put(facet.key, fold, stored, as_of_ms, expires, is_whole=is_whole)
        )

    async def enter_in_lists(self, facet: Facet) -> None:
        account = facet.account
        if account is not None:
            expires = day_expires_at_epoch(facet.day, self._retention_days)
            await self._store.put(spent_put(account, expires))
        holds: Holds = "has_hours" if account is None else "has_days"
        await self.enter_partition(facet.org_id, facet.pk, facet.day, holds)

    async def enter_partition(self, org_id: str, partition: str, day: str, holds: Holds) -> None:
        if (partition, day, holds) in self._listed:
            return
        expires = day_expires_at_epoch(day, self._retention_days)
        with contextlib.suppress(ConditionFailedError):  # it is listed for longer already
            await self._store.update(account_update(org_id, partition, holds, expires))
        self._listed.put((partition, day, holds), True)  # noqa: FBT003

    async def mark_lacking(self, account: Account) -> None:
        with contextlib.suppress(ConditionFailedError):  # there is none, or it is marked
            await self._store.update(lacking_update(account, self._clock.now_ms()))
