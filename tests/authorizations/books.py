"""What the items of a store say of budgets, whoever wrote them: the auditor of the simulation.

It reads the items themselves, at any moment, and holds the enforced value of every account against
what it must be: the records that count in it, the holds of open authorizations, and the charges of
those that nobody has settled.

It looks after every step of a history. The store replaces an item whenever it is written, so what
was made of an item is good for as long as the store has that very item.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar, cast

from memory_store import MemoryStore
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations.grants import authorizations_on
from pricekeeper.authorizations.outcomes import with_outcome
from pricekeeper.budgets import Balance, BudgetAccount, accounts_of
from pricekeeper.budgets.items import USED, balance_of, filed_through
from pricekeeper.clock import Clock
from pricekeeper.ledger.items import number_of
from pricekeeper.ledger.position import OUTCOMES, SHEET, outcome_name, outcomes_sort_key
from pricekeeper.ledger.sheet import Sheet, sheet_from
from pricekeeper.metering.journal import Record, lanes_of, records_on
from pricekeeper.metering.journal_items import PostedRegion, pages_query
from pricekeeper.storage import Item, Key, Put, Query, Store, query_items
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS, region_at, tick_of

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


class Written(NamedTuple):
    """A sheet, and where it is in the log."""

    chapter: str
    number: int
    sheet: Sheet


class Auditor:
    """Holds the items of a store against each other.

    What accounts have, and what has become of authorizations, is summed from all sheets of the log,
    from the first one on, whatever was filed. What was filed must be the same, as far as it goes.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._seen_writes = self._made_at = -1
        self._made: dict[str, object] = {}
        journal = partial(Reading, store, USAGE_AGG_SHARDED.name, "#J#")
        self._granted: Reading[list[Authorization]] = journal(_granted_in)
        self._sheets: Reading[Written | None] = journal(_sheet_in)
        self._filed_outcomes: Reading[Item | None] = journal(_outcomes_in)
        self._records: Reading[list[Record]] = journal(lambda item: [*records_on(item)])
        self._filed = Reading(store, RATE_BUCKETS.name, "#BUDGETS", _filed_in)
        self.accounts: dict[AccountKey, BudgetAccount] = {}
        """Every account that anybody may have opened."""
        self.recounted: set[AccountKey] = set()
        """Those of a budget that not everybody knows of: less may be spent from them than was."""
        self.given_late: set[AccountKey] = set()
        """Those of a budget that was given in the middle: what others spend without it, while it
        is held by those who know of it, may be more than it has."""

    def know(self, accounts: tuple[BudgetAccount, ...]) -> None:
        self.accounts.update({(one.key, one.id): one for one in accounts})

    def has_news(self) -> bool:
        """Whether anything was written since this was last asked."""
        before, self._seen_writes = self._seen_writes, self._store.writes
        return before != self._seen_writes

    def sheets(self) -> list[Written]:
        """The log, in its order. No sheet is missing, and each chapter but the last is sealed."""
        return self._remember("sheets", self._read_sheets)

    def authorizations(self) -> list[Authorization]:
        return self._remember("authorizations", self._read_authorizations)

    def outcomes(self, through: str = "~") -> dict[str, str]:
        """What the log says up to a chapter has become of authorizations."""
        return self._upto(self._remember("outcomes", self._sum_outcomes), through)

    def records(self) -> list[Record]:
        return [record for some in self._records for record in some]

    def balances(self, through: str = "~") -> dict[AccountKey, Balance]:
        """What each account has, by the log up to a chapter."""
        return self._upto(self._remember("balances", self._sum_balances), through)

    def _remember(self, name: str, make: Callable[[], _T]) -> _T:
        """What was made of the store, as long as nothing is written."""
        if self._made_at != self._store.writes:
            self._made, self._made_at = {}, self._store.writes
        if name not in self._made:
            self._made[name] = make()
        return cast("_T", self._made[name])

    def _read_sheets(self) -> list[Written]:
        found = sorted(filter(None, self._sheets), key=lambda one: one[:2])
        following: tuple[str, int] | None = None
        for chapter, number, sheet in found:
            assert following is None or following == (chapter, number), f"{following} is missing"
            following = (chapter, number + 1)
            if sheet.next is not None:
                following = (sheet.next.name, 0)
        return found

    def _read_authorizations(self) -> list[Authorization]:
        outcomes = self.outcomes()
        return [
            with_outcome(one, outcomes.get(one.id, "")) for some in self._granted for one in some
        ]

    def _sum_outcomes(self) -> dict[str, dict[str, str]]:
        """The outcomes after each chapter."""
        after: dict[str, dict[str, str]] = {"": {}}
        last: dict[str, str] = {}
        for one in self.sheets():
            last.update(one.sheet.outcomes)
            if one.sheet.next is not None:
                after[one.chapter] = dict(last)
        after["~"] = last
        return after

    def _sum_balances(self) -> dict[str, dict[AccountKey, Balance]]:
        """The balances after each chapter."""
        after: dict[str, dict[AccountKey, Balance]] = {"": {}}
        found: dict[AccountKey, Balance] = {}
        for one in self.sheets():
            for key, change in one.sheet.changes.items():
                for account_id, picos in change.accounts.items():
                    have = found.get((key, account_id))
                    found[key, account_id] = picos if have is None else have + picos
            if one.sheet.next is not None:
                after[one.chapter] = dict(found)
        after["~"] = found
        return after

    def _upto(self, after: dict[str, _T], through: str) -> _T:
        assert through in after, f"{through} was filed, and is not sealed"
        return after[through]

    def check(self) -> None:
        """Every account has exactly what the records and the authorizations say."""
        self.check_filed()
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

    def check_filed(self) -> None:
        """What was filed is what the log says, up to the chapter that was filed last."""
        for through, balances in self._filed:
            right = self.balances(through)
            for key, balance in balances.items():
                assert balance == right[key], f"{key[1]}: {balance} was filed, not {right[key]}"
        for item in filter(None, self._filed_outcomes):
            outcomes = {
                outcome_name(one): text
                for one, text in self.outcomes(item["f"]).items()
                if outcomes_sort_key(one) == item["SK"]
            }
            for name, text in item.items():
                if name not in ("PK", "SK", "f", EXPIRY):
                    assert outcomes[name] == text, f"{text} was filed, not {outcomes[name]}"

    def check_limits(self) -> None:
        """No account of a hard budget has used more than its limit."""
        for key, balance in self.balances().items():
            account = self.accounts[key]
            if account.is_hard and key not in self.given_late:
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


def _granted_in(item: Item) -> list[Authorization]:
    return list(authorizations_on(item)) if item["SK"].startswith(SHEET) else []


def _sheet_in(item: Item) -> Written | None:
    if not item["SK"].startswith(SHEET):
        return None
    org_id = item["PK"].split("#")[1]
    return Written(item["SK"][1:10], number_of(item), sheet_from(org_id, item))


def _outcomes_in(item: Item) -> Item | None:
    return item if item["SK"].startswith(OUTCOMES) else None


def _filed_in(item: Item) -> tuple[str, dict[AccountKey, Balance]]:
    found: dict[AccountKey, Balance] = {}
    for name in item:
        if name.startswith(USED):
            balance = balance_of(item, name.removeprefix(USED))
            assert balance is not None
            found[Key(item["PK"], item["SK"]), name.removeprefix(USED)] = balance
    return filed_through(item), found
