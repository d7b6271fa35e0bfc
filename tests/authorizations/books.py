"""What the items of a store say of budgets, whoever wrote them: the auditor of the simulation.

It reads the items themselves, at any moment, and holds the enforced value of every account against
what it must be: the records that count in it, the holds of open authorizations, and the charges of
those that nobody has settled.

It looks after every step of a history. The store replaces an item whenever it is written, so what
was made of an item is good for as long as the store has that very item.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from memory_store import MemoryStore
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations.items import region_query
from pricekeeper.authorizations.sheet import authorizations_on
from pricekeeper.budgets import Balance, BudgetAccount, accounts_of
from pricekeeper.budgets.items import USED, balance_of
from pricekeeper.clock import Clock
from pricekeeper.metering.journal import (
    TICK_MS,
    Record,
    lanes_of,
    records_on,
    region_at,
    tick_of,
)
from pricekeeper.metering.journal_items import PostedRegion, pages_query
from pricekeeper.storage import Item, Key, Put, Query, Store, query_items
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy

AccountKey = tuple[Key, str]
_T = TypeVar("_T")


class Reading(Generic[_T]):
    """What is made of each item of some partitions, made anew for those that were written."""

    def __init__(
        self, store: MemoryStore, table: str, part: str, make: Callable[[Item], _T]
    ) -> None:
        self._store = store
        self._table = table
        self._part = part
        self._make = make
        self._made: dict[Key, tuple[Item, _T]] = {}

    def __iter__(self) -> Iterator[_T]:
        made = self._made
        for (table, pk), items in self._store.partitions.items():
            if table != self._table or self._part not in pk:
                continue
            for sk, item in items.items():
                key = Key(pk, sk)
                known = made.get(key)
                if known is None or known[0] is not item:
                    known = made[key] = (item, self._make(item))
                yield known[1]


class Auditor:
    """Holds the items of a store against each other."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._seen_writes = -1
        self._authorizations = Reading(store, USAGE_AGG_SHARDED.name, "#J#", _authorizations_in)
        self._records = Reading(store, USAGE_AGG_SHARDED.name, "#J#", lambda it: [*records_on(it)])
        self._balances = Reading(store, RATE_BUCKETS.name, "#BUDGETS", _balances_in)
        self.accounts: dict[AccountKey, BudgetAccount] = {}
        """Every account that anybody may have opened."""
        self.recounted: set[AccountKey] = set()
        """Those of a budget that not everybody knows of: less may be spent from them than was."""

    def know(self, accounts: tuple[BudgetAccount, ...]) -> None:
        self.accounts.update({(one.key, one.id): one for one in accounts})

    def has_news(self) -> bool:
        """Whether anything was written since this was last asked."""
        before, self._seen_writes = self._seen_writes, self._store.writes
        return before != self._seen_writes

    def authorizations(self) -> list[Authorization]:
        return [one for some in self._authorizations for one in some]

    def records(self) -> list[Record]:
        return [record for some in self._records for record in some]

    def balances(self) -> dict[AccountKey, Balance]:
        """What each account that is open has."""
        return {key: balance for some in self._balances for key, balance in some.items()}

    def check(self) -> None:
        """Every account has exactly what the records and the authorizations say."""
        held: defaultdict[AccountKey, int] = defaultdict(int)
        unsettled: defaultdict[AccountKey, int] = defaultdict(int)
        for one in self.authorizations():
            sums = {State.OPEN: held, State.UNSETTLED: unsettled}.get(one.state)
            if sums is not None:
                for hold in one.grant.accounts:
                    sums[Key(hold.pk, hold.sk), hold.id] += one.held_usd_picos
        records = self.records()
        for key, balance in self.balances().items():
            account = self.accounts[key]
            spent = sum(
                record.entry.cost_usd_picos
                for record in records
                if account.counts(
                    record.terms.app_id,
                    record.terms.label,
                    dict(record.terms.tags),
                    record.entry.happened_at_ms,
                )
            )
            if key in self.recounted:
                assert balance.spent <= spent, f"{key[1]} has {balance.spent} of {spent}"
                spent = balance.spent
            right = Balance(spent + held[key] + unsettled[key], held[key], unsettled[key])
            assert balance == right, f"{key[1]}: {balance} is not {right}"

    def check_limits(self) -> None:
        """No account of a hard budget has used more than its limit."""
        for key, balance in self.balances().items():
            account = self.accounts[key]
            if account.is_hard and key not in self.recounted:
                assert balance.used <= account.limit_usd_picos, f"{key[1]} is overspent: {balance}"

    def check_records(self) -> None:
        """Each captured authorization has one record, and no other authorization has one."""
        counted = Counter(record.request_id for record in self.records())
        for one in self.authorizations():
            expected = 1 if one.state is State.CAPTURED else 0
            assert counted[one.shown_id] == expected, f"{one.state}: {counted[one.shown_id]}"


def region_queries(org: Policy, first_ms: int, last_ms: int) -> list[Query]:
    """Everything that the journal has of an organisation, by when its ids were made."""
    queries: list[Query] = []
    for tick in range(tick_of(first_ms), tick_of(last_ms) + 1):
        region, lanes = region_at(tick * TICK_MS), lanes_of(org.agg_shard_count)
        queries.append(region_query(org.org_id, region))
        posting = PostedRegion(org.org_id, region, lanes)
        queries += [pages_query(posting, lane) for lane in range(lanes)]
    return queries


async def copy_books(
    store: Store,
    clock: Clock,
    policies: Sequence[Policy],
    moments_ms: Sequence[int],
    queries: Sequence[Query],
) -> Auditor:
    """An auditor of a copy of the accounts of these moments, and of what these queries find."""
    copy = MemoryStore(clock)
    auditor = Auditor(copy)
    accounts = [
        account
        for policy in policies
        for at_ms in moments_ms
        for account in accounts_of(policy, at_ms)
    ]
    auditor.know(tuple(accounts))
    keys = list({account.key for account in accounts})
    found = await store.batch_get([(RATE_BUCKETS, key) for key in keys])
    for item in found:
        if item is not None:
            await copy.put(Put(RATE_BUCKETS, item))
    for query in queries:
        async for item in query_items(store, query):
            await copy.put(Put(query.table, item))
    return auditor


def _authorizations_in(item: Item) -> list[Authorization]:
    return list(authorizations_on(item)) if item["SK"].startswith("s") else []


def _balances_in(item: Item) -> dict[AccountKey, Balance]:
    found: dict[AccountKey, Balance] = {}
    for name in item:
        if name.startswith(USED):
            balance = balance_of(item, name.removeprefix(USED))
            assert balance is not None
            found[Key(item["PK"], item["SK"]), name.removeprefix(USED)] = balance
    return found
