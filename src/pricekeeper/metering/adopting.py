"""Adopts usage that another service counted in the schema document's tables.

That service shards the counters of an account, and keeps a total of each account:

- UsageAggSharded ``{scope}#LABEL#{label}#SH#{n}`` / ``DAY#{day}``
- DailyTotal ``{scope}#LABEL#{label}`` / ``DAY#{day}``

The larger of both, counter by counter, becomes the ``adopted`` part of our total, which only grows.
So a repeated run adds only the difference, and completes a run that stopped half-way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.days import is_day
from pricekeeper.errors import ConditionFailedError, ContendedError, OutcomeUnknownError
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.facets import facet_of
from pricekeeper.metering.items import RETENTION_DAYS, day_expires_at_epoch, fold_from
from pricekeeper.metering.totals import StoredTotals
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.storage import Item, Query, Store, Table, TypedItem, query_items
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED

ATTEMPTS_MAX: Final = 10
_DAY: Final = "DAY#"


class Adopted(NamedTuple):
    """Usage found in the other store."""

    accounts: int
    changed: int
    cost_usd_picos: int
    """Also of earlier runs."""


class UsageAdopter:
    """Copies usage from another service's store into ours."""

    def __init__(
        self, source: Store, store: Store, clock: Clock, retention_days: int = RETENTION_DAYS
    ) -> None:
        self._source = source
        self._clock = clock
        self._retention_days = retention_days
        self._totals = StoredTotals(store, clock, retention_days)

    async def adopt(self, scope_key: str, label: str, shard_count: int) -> Adopted:
        """Adopt all kept days. Raises `UnreadableItemError` for an item of another form."""
        found = await self._read(scope_key, label, shard_count)
        accounts = changed = cost_usd_picos = 0
        for day, counters in sorted(found.items()):
            if day_expires_at_epoch(day, self._retention_days) <= self._clock.now_ms() // 1000:
                continue
            accounts += 1
            cost_usd_picos += counters.cost_usd_picos
            changed += await self._add(Account(scope_key, label, day), counters)
        return Adopted(accounts, changed, cost_usd_picos)

    async def _read(self, scope_key: str, label: str, shard_count: int) -> dict[str, Counters]:
        partition = f"{scope_key}#LABEL#{label}"
        found: dict[str, Counters] = defaultdict(Counters)
        for shard in range(shard_count):
            async for day, item in self._days(USAGE_AGG_SHARDED, f"{partition}#SH#{shard}"):
                found[day] += _counters_from(USAGE_AGG_SHARDED, item)
        async for day, item in self._days(DAILY_TOTAL, partition):
            found[day] = found[day].joined(_counters_from(DAILY_TOTAL, item))
        return found

    async def _days(self, table: Table, partition: str) -> AsyncIterator[tuple[str, Item]]:
        async for item in query_items(self._source, Query(table, partition, prefix=_DAY)):
            day = str(item["SK"]).removeprefix(_DAY)
            if is_day(day):
                yield day, item
            else:
                TypedItem(table, item).report_unreadable("its sort key names no day")

    async def _add(self, account: Account, counters: Counters) -> bool:
        facet = facet_of(account)
        for _ in range(ATTEMPTS_MAX):
            stored = (await self._totals.read([facet]))[facet]
            fold = fold_from(stored).with_adopted(counters)
            if fold is None:
                return False
            await self._totals.enter_partition(
                account.org_id, account.partition, account.day, "has_adopted"
            )
            try:
                # The moment of the total stays: records before it may not be folded yet.
                await self._totals.put(facet, fold, stored, as_of_ms=0)
            except (ConditionFailedError, OutcomeUnknownError):
                continue
            return True
        raise ContendedError(f"the total of {account.partition} on {account.day} kept changing")


def _counters_from(table: Table, item: Item) -> Counters:
    typed = TypedItem(table, item)
    return Counters(
        typed.whole("cost_usd_micros", least=0) * PICOS_PER_MICRO,
        typed.whole("input_tokens", least=0),
        typed.whole("output_tokens", least=0),
        requests=typed.whole("requests", least=0),
    )
