"""Reading totals: the aggregated ones in one read, or with what was posted since.

A total is complete up to the moment it was summed or, if that is later, up to the last complete
aggregation, since one that found nothing new writes nothing. Should the clock of whoever summed
be ahead of ours, it is complete up to now at the most.

A live sum is a total with everything that was posted since in it: the same that the next fold
would write. It reads the ticks that are not closed, of one organisation.

A total is only a copy: if it is unreadable, its parts are summed instead. Where they can't be
read either, or there are none, there is no answer for that account, and
`UnreadableItemError` is raised to whoever asked for it. It is never an answer of nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pricekeeper.clock import Clock
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.fold import add_up
from pricekeeper.metering.folding import ticks_of_day
from pricekeeper.metering.items import (
    CHECKPOINT,
    account_from,
    checkpoint_from,
    closed_tick_from,
    fold_from,
    spent_query,
    total_from,
    total_key,
)
from pricekeeper.metering.journal import shards_at_most
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.shards import (
    accounts_from,
    counters_from,
    read_shard_sum,
    read_with_shards,
    shard_markers_query,
)
from pricekeeper.storage import Item, Key, Store, Table, query_items, query_pages
from pricekeeper.ticks import tick_of
from pricekeeper.values import AppId, ModelLabel, OrgId

_APP = "#APP#"
SumsByAccount = dict[Account, dict[int, Counters]]


@dataclass(frozen=True, slots=True)
class OrgTotals:
    """What an organisation spent on a day: in all, and by those of its apps that have their own."""

    total: Mapping[ModelLabel, Total]
    apps: Mapping[AppId, Mapping[ModelLabel, Total]]


@dataclass(frozen=True, slots=True)
class Readings:
    """What was found of some accounts: each has a total, or the reason why it has none."""

    totals: Mapping[Account, Total]
    unreadable: Mapping[Account, UnreadableItemError]

    def require_all(self) -> Mapping[Account, Total]:
        """The totals; raises if one of them can't be read."""
        for error in self.unreadable.values():
            raise error
        return self.totals


def total_keys(accounts: Iterable[Account]) -> list[tuple[Table, Key]]:
    """Where the totals of these accounts are."""
    return [total_key(account) for account in accounts]


def totals_from(accounts: Iterable[Account], found: Iterable[Item | None]) -> Readings:
    """The totals of these accounts in what was found at their keys."""
    totals: dict[Account, Total] = {}
    unreadable: dict[Account, UnreadableItemError] = {}
    for account, item in zip(accounts, found, strict=True):
        try:
            totals[account] = total_from(item)
        except UnreadableItemError as error:
            unreadable[account] = error
    return Readings(totals, unreadable)


def org_totals_of(org_scope: str, totals: Mapping[Account, Total]) -> OrgTotals:
    """What the accounts of an organisation on one day come to."""
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
    """Answers what was spent. A label without usage has a total of nothing."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._journal = JournalReader(store)
        self.records_read = 0
        """How many records live sums have read, for who decides how often to make one."""

    async def read_aggregated(
        self, accounts: Collection[Account], *, consistent: bool = True
    ) -> Readings:
        """The totals as they were aggregated last: one read.

        What can't be read is made anew, from the records of its day.
        """
        now_ms = self._clock.now_ms()
        checkpoint, *found = await self._store.batch_get(
            [CHECKPOINT, *total_keys(accounts)], consistent=consistent
        )
        complete_ms = checkpoint_from(checkpoint) or 0
        readings = totals_from(accounts, found)
        totals = {
            account: Total.of(total, min(now_ms, max(total.as_of_ms, complete_ms)))
            for account, total in readings.totals.items()
        }
        if not readings.unreadable:
            return Readings(totals, {})
        instead = await self.sum_unreadable(readings.unreadable)
        return Readings({**totals, **instead.totals}, instead.unreadable)

    async def sum_unreadable(self, unreadable: Mapping[Account, UnreadableItemError]) -> Readings:
        """The sums of the parts of accounts whose totals can't be read, each for itself."""
        totals: dict[Account, Total] = {}
        errors: dict[Account, UnreadableItemError] = {}
        for account, error in unreadable.items():
            as_of_ms = self._clock.now_ms()
            try:
                anew = await self._read_parts(account)
            except UnreadableItemError as another:
                errors[account] = another
                continue
            if anew is None:
                errors[account] = error
            else:
                totals[account] = Total.of(anew, as_of_ms)
        return Readings(totals, errors)

    async def read_live(self, scope_prefix: str, day: str) -> dict[Account, Total]:
        """The totals of accounts whose scope starts so, with what was posted until now.

        ``scope_prefix`` is a scope and ``#LABEL#``, or an organisation and ``#`` for all of it.
        """
        as_of_ms = self._clock.now_ms()
        found, lanes = await self._read_open(scope_prefix, day, as_of_ms)
        shard_counts = await self._read_sharded(day, scope_prefix)
        known = {**shard_counts, **dict.fromkeys(await self._read_spent(day, scope_prefix), 0)}
        for account in found.keys() - known.keys():  # nobody has looked for its shards yet
            shard_counts[account] = shards_at_most(lanes)
        wanted = {account: shard_counts.get(account, 0) for account in {**known, **found}}
        read = await read_with_shards(self._store, wanted)
        totals: dict[Account, Total] = {}
        for account, (stored, shards) in read.items():
            summed = counters_from(shards)
            try:
                fold = fold_from(stored)
            except UnreadableItemError as error:
                anew = (await self.sum_unreadable({account: error})).require_all()
                totals[account] = anew[account]
                continue
            fold = fold.with_shards(summed) or fold
            totals[account] = Total.of(fold.with_found(found.get(account, {})), as_of_ms)
        return totals

    async def read_accounts(self, day: str, prefix: str) -> list[Account]:
        """The accounts with totals, or with shards, whose scope starts so."""
        return [
            *{
                **await self._read_sharded(day, prefix),
                **dict.fromkeys(await self._read_spent(day, prefix)),
            }
        ]

    async def read_scope(
        self, scope_key: str, labels: Iterable[str], day: str, *, live: bool
    ) -> dict[ModelLabel, Total]:
        """The totals of one scope by label."""
        wanted = {ModelLabel(label): Account(scope_key, label, day) for label in labels}
        if not live:
            totals = (await self.read_aggregated(wanted.values())).require_all()
            return {label: totals[account] for label, account in wanted.items()}
        nothing = Total(as_of_ms=self._clock.now_ms())
        sums = await self.read_live(f"{scope_key}#LABEL#", day)
        return {label: sums.get(account, nothing) for label, account in wanted.items()}

    async def read_active(self, scope_key: str, day: str) -> dict[ModelLabel, Total]:
        """The sums of one scope, now, for every label that it has used."""
        totals = await self.read_live(f"{scope_key}#LABEL#", day)
        return {ModelLabel(account.label): total for account, total in totals.items()}

    async def read_org(
        self, org_id: OrgId, labels: Iterable[str], day: str, *, live: bool
    ) -> OrgTotals:
        """Everything the organisation spent on that day, in whatever scope it was counted.

        A record is counted in one scope, so the sum over all of them is right also for a day on
        which the organisation changed from one quota scope to the other.
        """
        org_scope = f"ORG#{org_id}"
        wanted = [Account(org_scope, label, day) for label in labels]
        totals: Mapping[Account, Total]
        if live:
            nothing = Total(as_of_ms=self._clock.now_ms())
            totals = {
                **dict.fromkeys(wanted, nothing),
                **await self.read_live(f"{org_scope}#", day),
            }
        else:
            wanted += await self.read_accounts(day, f"{org_scope}#")
            totals = (await self.read_aggregated(list(dict.fromkeys(wanted)))).require_all()
        return org_totals_of(org_scope, totals)

    async def _read_open(
        self, scope_prefix: str, day: str, now_ms: int
    ) -> tuple[SumsByAccount, int]:
        """What was posted for that day in ticks that are not closed, by account and tick.

        And over how many lanes at most.
        """
        closed = closed_tick_from(await self._store.get(*CHECKPOINT))
        first = ticks_of_day(day)[0] if closed is None else closed + 1
        return await self._read(scope_prefix, day, first, tick_of(now_ms) + 1)

    async def _read(
        self, scope_prefix: str, day: str, first: int, last: int
    ) -> tuple[SumsByAccount, int]:
        found: SumsByAccount = {}
        ticks = set(await self._journal.read_ticks(first, last))
        postings = await self._journal.read_postings(ticks, scope_prefix.split("#")[1])
        async for record in self._journal.read_records(postings):
            self.records_read += 1
            terms, tick = record.terms, record.entry.tick
            if terms.day != day or tick not in ticks:
                continue
            if f"{terms.scope_key}#LABEL#".startswith(scope_prefix):
                account = Account(terms.scope_key, terms.label, day)
                sums = found.setdefault(account, {})
                sums[tick] = sums.get(tick, NOTHING) + record.entry.counters
        return found, max((posting.lanes for posting in postings), default=1)

    async def _read_parts(self, account: Account) -> Counters | None:
        """What the account has spent, from its records and shards; ``None`` if it has neither."""
        prefix = f"{account.scope_key}#LABEL#"
        found, _ = await self._read(prefix, account.day, *ticks_of_day(account.day))
        shards = await read_shard_sum(self._store, account)
        if account not in found and shards is None:
            return None
        return add_up(found.get(account, {}).values()) + (shards or NOTHING)

    async def _read_sharded(self, day: str, prefix: str) -> dict[Account, int]:
        """The accounts with shards whose scope starts so, and how many they have."""
        counts: dict[Account, int] = {}
        async for page in query_pages(self._store, shard_markers_query(day, prefix)):
            for account, count in accounts_from(day, page.items).items():
                counts[account] = max(counts.get(account, 0), count)
        return counts

    async def _read_spent(self, day: str, prefix: str) -> list[Account]:
        """The accounts with totals whose scope starts so."""
        items = query_items(self._store, spent_query(day, prefix))
        return [account async for item in items if (account := account_from(day, item)) is not None]
