"""Reading totals: the aggregated ones in one read, or the shards themselves.

A total is complete up to the moment it was summed or, if that is later, up to the last complete
aggregation, since one that found nothing new writes nothing. Should the clock of whoever summed
be ahead of ours, it is complete up to now at the most.

A total that can't be read is only a copy: the sum of the shards takes its place. Where that can't
be read either, or nobody knows how many shards there are, there is no answer for that account, and
`UnreadableItemError` is raised to whoever asked for it. It is never an answer of nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pricekeeper.clock import Clock
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.items import (
    CHECKPOINT,
    accounts_from,
    checkpoint_from,
    counter_places,
    counters_from,
    markers_query,
    total_from,
    total_place,
)
from pricekeeper.storage import Item, Key, Store, Table
from pricekeeper.values import AppId, ModelLabel, OrgId

_APP = "#APP#"


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
    return [total_place(account) for account in accounts]


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


class TotalsReader:
    """Answers what was spent. A label without usage has a total of nothing."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def aggregated(
        self, accounts: Collection[Account], *, consistent: bool = True
    ) -> Readings:
        """The totals as they were aggregated last: one read.

        What can't be read is summed from its shards: a query and a read more for each scope.
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
        instead = await self.sums_instead(readings.unreadable)
        return Readings({**totals, **instead.totals}, instead.unreadable)

    async def sums_instead(self, unreadable: Mapping[Account, UnreadableItemError]) -> Readings:
        """The sums of the shards of accounts whose totals can't be read, each for itself."""
        totals: dict[Account, Total] = {}
        errors = dict(unreadable)
        counts: dict[Account, int] = {}
        for scope_key, day in {(account.scope_key, account.day) for account in unreadable}:
            counts |= await self.accounts(day, f"{scope_key}#LABEL#")
        for account in unreadable:
            if account not in counts:
                continue  # nobody knows how many shards to sum: the error stands
            try:
                totals |= await self.live({account: counts[account]})
            except UnreadableItemError as error:
                errors[account] = error
            else:
                del errors[account]
        return Readings(totals, errors)

    async def live(self, accounts: Mapping[Account, int]) -> dict[Account, Total]:
        """The sums of the shards, now; ``accounts`` are given with their shard counts."""
        as_of_ms = self._clock.now_ms()
        places = [
            place for account, count in accounts.items() for place in counter_places(account, count)
        ]
        found = iter(await self._store.batch_get(places) if places else ())
        return {
            account: Total.of(counters_from(next(found) for _ in range(count)), as_of_ms)
            for account, count in accounts.items()
        }

    async def accounts(self, day: str, prefix: str) -> dict[Account, int]:
        """The accounts with usage whose scope starts so, with their shard counts."""
        accounts: dict[Account, int] = {}
        after = ""
        while True:  # ends with the partition: every page begins behind the one before
            page = await self._store.query(markers_query(day, prefix, after))
            for account, count in accounts_from(day, page.items).items():
                accounts[account] = max(accounts.get(account, 0), count)
            after = page.after
            if not after:
                return accounts

    async def scope(
        self, scope_key: str, labels: Iterable[str], day: str, *, live: bool
    ) -> dict[ModelLabel, Total]:
        """The totals of one scope by label."""
        wanted = {ModelLabel(label): Account(scope_key, label, day) for label in labels}
        if not live:
            totals = (await self.aggregated(wanted.values())).require_all()
            return {label: totals[account] for label, account in wanted.items()}
        nothing = Total(as_of_ms=self._clock.now_ms())
        active = await self.accounts(day, f"{scope_key}#LABEL#")
        sums = await self.live(
            {account: active[account] for account in wanted.values() if account in active}
        )
        return {label: sums.get(account, nothing) for label, account in wanted.items()}

    async def active(self, scope_key: str, day: str) -> dict[ModelLabel, Total]:
        """The sums of one scope, now, for every label that it has used."""
        totals = await self.live(await self.accounts(day, f"{scope_key}#LABEL#"))
        return {ModelLabel(account.label): total for account, total in totals.items()}

    async def org(self, org_id: OrgId, labels: Iterable[str], day: str, *, live: bool) -> OrgTotals:
        """Everything the organisation spent on that day, in whatever scope it was counted.

        A record is counted in one scope, so the sum over all of them is right also for a day on
        which the organisation changed from one quota scope to the other.
        """
        org_scope = f"ORG#{org_id}"
        active = await self.accounts(day, f"{org_scope}#")
        wanted = dict(active)
        for label in labels:
            wanted.setdefault(Account(org_scope, label, day), 0)
        if live:
            totals: Mapping[Account, Total] = await self.live(wanted)
        else:
            totals = (await self.aggregated(wanted)).require_all()
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
