"""What the items of a store say of budgets, whoever wrote them: the auditor of the simulation.

It reads the items themselves, at any moment, and holds the enforced value of every account against
what it must be: the records that count in it, the holds of open authorizations, and the charges of
those that nobody has settled.

It looks after every step of a history, and reads what was written since the step before.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from memory_store import MemoryStore
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations.grants import authorizations_on
from pricekeeper.authorizations.outcomes import with_outcome
from pricekeeper.budgets import Balance, BudgetAccount, accounts_of
from pricekeeper.budgets.items import account_ids, balance_of, filed_through
from pricekeeper.clock import Clock
from pricekeeper.ledger.items import number_of
from pricekeeper.ledger.position import OUTCOMES, SHEET, outcome_name, outcomes_sort_key
from pricekeeper.ledger.sheet import Sheet, parse_filed, sheet_from
from pricekeeper.metering.journal import Record, lanes_of, records_on
from pricekeeper.metering.journal_items import PostedRegion, pages_query
from pricekeeper.storage import Item, Key, Put, Query, Store, query_items
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS, region_at, tick_of

AccountKey = tuple[Key, str]


class Written(NamedTuple):
    """A sheet, and where it is in the log."""

    chapter: str
    number: int
    sheet: Sheet


class LogSums:
    """What the sheets of a log add up to, from the first one on, whatever was filed."""

    def __init__(self) -> None:
        self.balances: dict[AccountKey, Balance] = {}
        self.outcomes: dict[str, str] = {}
        self.balances_after: dict[str, dict[AccountKey, Balance]] = {"": {}}
        """As they were after each chapter that is sealed."""
        self.outcomes_after: dict[str, dict[str, str]] = {"": {}}
        self._following: tuple[str, int] | None = None

    def add(self, one: Written) -> None:
        """Add the next sheet. None is missing, and each chapter but the last is sealed."""
        chapter, number, sheet = one
        following = self._following
        assert following in (None, (chapter, number)), f"{following} is missing"
        self._following = (chapter, number + 1)
        for key, change in sheet.changes.items():
            for account_id, picos in change.accounts.items():
                have = self.balances.get((key, account_id))
                self.balances[key, account_id] = picos if have is None else have + picos
        self.outcomes.update(sheet.outcomes)
        if sheet.next is not None:
            self._following = (sheet.next.name, 0)
            self.balances_after[chapter] = dict(self.balances)
            self.outcomes_after[chapter] = dict(self.outcomes)


class Auditor:
    """Holds the items of a store against each other.

    What accounts have, and what has become of authorizations, is summed from all sheets of the log.
    What was filed must be the same, as far as it goes.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._seen_writes = self._read_writes = 0
        self._sheets: dict[Key, Written] = {}
        self._records: dict[Key, list[Record]] = {}
        self._granted: dict[str, Authorization] = {}
        self._authorizations: dict[str, Authorization] = {}
        self._unsettled: set[str] = set()
        self._log: LogSums | None = None
        """``None`` if the sheets have to be summed anew."""
        self._summed = 0
        self._spent: dict[AccountKey, int] = {}
        """What the records add up to in each account that is known."""
        self._unchecked: dict[Key, Item] = {}
        """What was filed since it was last checked."""
        self.accounts: dict[AccountKey, BudgetAccount] = {}
        """Every account that anybody may have opened."""
        self.recounted: set[AccountKey] = set()
        """Those of a budget that not everybody knows of: less may be spent from them than was."""
        self.given_late: set[AccountKey] = set()
        """Those of a budget that was given in the middle: what others spend without it, while it
        is held by those who know of it, may be more than it has."""

    def know(self, accounts: tuple[BudgetAccount, ...]) -> None:
        records = self.records()
        for one in accounts:
            self.accounts[one.key, one.id] = one
            self._spent[one.key, one.id] = sum(_spent_from(one, records))

    def has_news(self) -> bool:
        """Whether anything was written since this was last asked."""
        before, self._seen_writes = self._seen_writes, len(self._store.written)
        return before != self._seen_writes

    def authorizations(self) -> Collection[Authorization]:
        """All of them, and what the log says has become of each."""
        self._read_log()
        return self._authorizations.values()

    def unsettled(self) -> Collection[str]:
        """The ids of those that are charged at their holds."""
        self._read_log()
        return self._unsettled

    def records(self) -> list[Record]:
        self._read()
        return [record for some in self._records.values() for record in some]

    def balances(self) -> dict[AccountKey, Balance]:
        """What each account has, by the log."""
        return self._read_log().balances

    def check(self) -> None:
        """Every account has exactly what the records and the authorizations say."""
        self.check_filed()
        held: defaultdict[AccountKey, int] = defaultdict(int)
        unsettled: defaultdict[AccountKey, int] = defaultdict(int)
        for one in self.authorizations():
            sums = {State.OPEN: held, State.UNSETTLED: unsettled}.get(one.state)
            if sums is not None:
                for hold in one.grant.accounts:
                    sums[hold.key, hold.id] += one.held_usd_picos
        for key, balance in self.balances().items():
            assert key in self.accounts, f"{key[1]} is nobody's account"
            spent = self._spent[key]
            if key in self.recounted:
                assert balance.spent <= spent, f"{key[1]} has {balance.spent} of {spent}"
                spent = balance.spent
            right = Balance(spent + held[key] + unsettled[key], held[key], unsettled[key])
            assert balance == right, f"{key[1]}: {balance} is not {right}"

    def check_filed(self) -> None:
        """What was filed is what the log says, up to the chapter that was filed last."""
        log = self._read_log()
        for key, item in self._unchecked.items():
            is_account = _is_account(key)
            through = filed_through(item) if is_account else item["f"]
            assert through in log.balances_after, f"{through} was filed, and is not sealed"
            if is_account:
                right = log.balances_after[through]
                for one, balance in _balances_in(item).items():
                    said = right.get(one)
                    assert balance == said, f"{one[1]}: {balance} was filed, not {said}"
                continue
            outcomes = {
                outcome_name(one): text
                for one, text in log.outcomes_after[through].items()
                if outcomes_sort_key(one) == key.sk
            }
            for name, text in item.items():
                if name not in ("PK", "SK", "f", EXPIRY):
                    part, place = parse_filed(text)
                    outcome = outcomes.get(name, "")
                    is_right = outcome.startswith(part) if place else outcome == part
                    assert is_right, f"{text} was filed, not {outcome}"
        self._unchecked.clear()

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

    def _read(self) -> None:
        """Read what was written since."""
        written = self._store.written
        if self._read_writes == len(written):
            return
        since, self._read_writes = written[self._read_writes :], len(written)
        for table, key in dict.fromkeys(since):
            if table == USAGE_AGG_SHARDED.name and "#J#" in key.pk:
                self._take_page(key, self._store.partitions[table, key.pk].get(key.sk or ""))
            elif table == RATE_BUCKETS.name and _is_account(key):
                self._unchecked[key] = self._store.partitions[table, key.pk][key.sk or ""]

    def _read_log(self) -> LogSums:
        """Read what was written since, and sum the sheets."""
        self._read()
        if self._log is None or self._summed < len(self._sheets):
            self._sum()
        assert self._log is not None
        return self._log

    def _take_page(self, key: Key, item: Item | None) -> None:
        """A page of the journal was written: usage, a sheet, or what was filed of its grants."""
        assert item is not None, f"{key} was deleted"
        sort_key = str(key.sk)
        if sort_key.startswith(OUTCOMES):
            self._unchecked[key] = item
            return
        self._take_records(key, list(records_on(item)))
        if not sort_key.startswith(SHEET):
            return
        if key in self._sheets:  # whoever writes a sheet twice has mistaken it
            self._log = None
        org_id = key.pk.split("#")[1]
        self._sheets[key] = Written(sort_key[1:10], number_of(item), sheet_from(org_id, item))
        for one in authorizations_on(item):
            self._granted[one.id] = self._authorizations[one.id] = one

    def _take_records(self, key: Key, records: list[Record]) -> None:
        before = self._records.get(key, [])
        if not before and not records:
            return
        self._records[key] = records
        for one, account in self.accounts.items():
            change = sum(_spent_from(account, records)) - sum(_spent_from(account, before))
            self._spent[one] += change

    def _sum(self) -> None:
        """Add the sheets that are new; all of them, if they are not the last ones."""
        sheets = sorted(self._sheets.values(), key=lambda one: one[:2])
        known = list(self._sheets.values())
        if self._log is None or sheets[self._summed :] != known[self._summed :]:
            self._log, self._summed = LogSums(), 0
            self._authorizations = dict(self._granted)
            self._unsettled = set()
        log, new = self._log, sheets[self._summed :]
        self._log = None  # unless all goes well
        for one in new:
            log.add(one)
            for authorization_id, outcome in one.sheet.outcomes.items():
                after = with_outcome(self._granted[authorization_id], outcome)
                self._authorizations[authorization_id] = after
                self._unsettled.discard(authorization_id)
                if after.state is State.UNSETTLED:
                    self._unsettled.add(authorization_id)
        self._log, self._summed = log, len(sheets)


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


def _is_account(key: Key) -> bool:
    return "#BUDGETS" in key.pk


def _spent_from(account: BudgetAccount, records: Iterable[Record]) -> Iterator[int]:
    """What each of the records that count in an account has cost."""
    for record in records:
        terms, at_ms = record.terms, record.entry.happened_at_ms
        if account.counts(terms.app_id, terms.label, dict(terms.tags), at_ms):
            yield record.entry.cost_usd_picos


def _balances_in(item: Item) -> dict[AccountKey, Balance]:
    found: dict[AccountKey, Balance] = {}
    for account_id in account_ids(item):
        balance = balance_of(item, account_id)
        assert balance is not None
        found[Key(item["PK"], item["SK"]), account_id] = balance
    return found
