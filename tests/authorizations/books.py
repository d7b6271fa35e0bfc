"""The auditor of the simulation: checks budgets by the items of a store.

It reads the items at any moment and compares each account with the records that count in it, the
holds of open authorizations and the charges of unsettled ones. It runs after every step of a
history, and reads what has changed since.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from memory_store import MemoryStore
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations.items import authorizations_on, with_outcome
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
    """The sums of all sheets of a log."""

    def __init__(self) -> None:
        self.balances: dict[AccountKey, Balance] = {}
        self.outcomes: dict[str, str] = {}
        self.balances_after: dict[str, dict[AccountKey, Balance]] = {"": {}}
        """As they were after each chapter that is sealed."""
        self.outcomes_after: dict[str, dict[str, str]] = {"": {}}
        self._following: tuple[str, int] | None = None

    def add(self, one: Written) -> list[AccountKey]:
        """Add the next sheet. None is missing, and each chapter but the last is sealed.

        Returns the accounts whose balances it changes.
        """
        chapter, number, sheet = one
        following = self._following
        assert following in (None, (chapter, number)), f"{following} is missing"
        self._following = (chapter, number + 1)
        changed: list[AccountKey] = []
        for key, change in sheet.changes.items():
            for account_id, picos in change.accounts.items():
                account = (key, account_id)
                have = self.balances.get(account)
                self.balances[account] = picos if have is None else have + picos
                changed.append(account)
        self.outcomes.update(sheet.outcomes)
        if sheet.next is not None:
            self._following = (sheet.next.name, 0)
            self.balances_after[chapter] = dict(self.balances)
            self.outcomes_after[chapter] = dict(self.outcomes)
        return changed


class Auditor:
    """Compares the items of a store with each other.

    Accounts and authorizations are summed from all sheets of the log; filed items must agree. Each
    check covers everything, but looks only at accounts and authorizations that have changed since
    they were last found right.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._seen_writes = self._read_writes = 0
        self._sheets: dict[Key, Written] = {}
        self._new_sheets: list[Written] = []
        """Those that are not summed, in the order in which they were written."""
        self._records: dict[Key, list[Record]] = {}
        self._counted: Counter[str] = Counter()
        """How many records there are of each request id."""
        self._granted: dict[str, Authorization] = {}
        self._authorizations: dict[str, Authorization] = {}
        self._shown: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The authorizations that are known by an id."""
        self.unsettled: set[str] = set()
        """The ids of those that are charged at their holds, as of the last check."""
        self._log: LogSums | None = None
        """``None`` if the sheets must be summed again."""
        self._last_summed: tuple[str, int] = ("", 0)
        self._spent: dict[AccountKey, int] = {}
        """What the records add up to in each account that is known."""
        self._due: dict[State, defaultdict[AccountKey, int]] = {
            State.OPEN: defaultdict(int),
            State.UNSETTLED: defaultdict(int),
        }
        """What authorizations that are open, or unsettled, add up to in each account."""
        self._unchecked: dict[Key, Item] = {}
        """Items filed since the last check."""
        self._unbalanced: set[AccountKey] = set()
        """Accounts of which something has changed since they were last checked."""
        self._unlimited: set[AccountKey] = set()
        """Those whose limits have to be checked."""
        self._unrecorded: dict[str, None] = {}
        """Ids of authorizations whose records have to be checked."""
        self.accounts: dict[AccountKey, BudgetAccount] = {}
        """Every account that may be open."""
        self._recounted: set[AccountKey] = set()
        self._given_late: set[AccountKey] = set()

    def know(self, accounts: tuple[BudgetAccount, ...]) -> None:
        records = self.records()
        for one in accounts:
            key = (one.key, one.id)
            if self.accounts.get(key) != one:
                self.accounts[key] = one
                self._spent[key] = sum(_spent_from(one, records))
                self._unbalanced.add(key)
                self._unlimited.add(key)

    def give_late(self, key: AccountKey) -> None:
        """An account is of a budget that was given in the middle, and not everybody knows of it.

        Until `end_recounts`, less may be spent from it than was. What others spend without it,
        while it is held by those who know of it, may be more than it has.
        """
        self._recounted.add(key)
        self._given_late.add(key)

    def end_recounts(self) -> None:
        """Everything was recounted, and no account has less than was spent from it."""
        self._unbalanced |= self._recounted
        self._recounted.clear()

    def has_news(self) -> bool:
        """Whether anything was written since this was last asked."""
        before, self._seen_writes = self._seen_writes, len(self._store.written)
        return before != self._seen_writes

    def authorizations(self) -> Collection[Authorization]:
        """All of them, and what the log says has become of each."""
        self._read_log()
        return self._authorizations.values()

    def records(self) -> list[Record]:
        self._read()
        return [record for some in self._records.values() for record in some]

    def balances(self) -> dict[AccountKey, Balance]:
        """What each account has, by the log."""
        return self._read_log().balances

    def check(self) -> None:
        """Every account has exactly what the records and the authorizations say."""
        self.check_filed()
        balances = self.balances()
        held, unsettled = self._due[State.OPEN], self._due[State.UNSETTLED]
        for key, balance in balances.items():
            if key not in self._unbalanced:
                continue
            assert key in self.accounts, f"{key[1]} is an unknown account"
            spent = self._spent[key]
            if key in self._recounted:
                assert balance.spent <= spent, f"{key[1]} has {balance.spent} of {spent}"
                spent = balance.spent
            right = Balance(spent + held[key] + unsettled[key], held[key], unsettled[key])
            assert balance == right, f"{key[1]}: {balance} is not {right}"
        self._unbalanced.clear()

    def check_filed(self) -> None:
        """Filed items equal the log, up to the last filed chapter."""
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
        balances = self.balances()
        for key, balance in balances.items():
            if key not in self._unlimited:
                continue
            account = self.accounts[key]
            if account.is_hard and key not in self._given_late:
                assert balance.used <= account.limit_usd_picos, f"{key[1]} is overspent: {balance}"
        self._unlimited.clear()

    def check_records(self) -> None:
        """Each captured authorization has one record, and no other authorization has one."""
        self._read_log()
        for shown_id in self._unrecorded:
            counted = self._counted[shown_id]
            for one in self._shown.get(shown_id, ()):
                state = self._authorizations[one].state
                assert counted == (state is State.CAPTURED), f"{state}: {counted}"
        self._unrecorded.clear()

    def _read(self) -> None:
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
        """Sum the sheets written since."""
        self._read()
        if self._log is None or self._new_sheets:
            self._sum()
        assert self._log is not None
        return self._log

    def _take_page(self, key: Key, item: Item | None) -> None:
        """Note a page of the journal: usage, a sheet, or filed outcomes."""
        assert item is not None, f"{key} was deleted"
        sort_key = str(key.sk)
        if sort_key.startswith(OUTCOMES):
            self._unchecked[key] = item
            return
        self._take_records(key, list(records_on(item)))
        if not sort_key.startswith(SHEET):
            return
        if key in self._sheets:  # no sheet is written twice
            self._log = None
        org_id = key.pk.split("#")[1]
        sheet = Written(sort_key[1:10], number_of(item), sheet_from(org_id, item))
        self._sheets[key] = sheet
        self._new_sheets.append(sheet)
        for one in authorizations_on(item):
            if one.id in self._granted:
                self._shown[self._granted[one.id].shown_id].pop(one.id, None)
            self._granted[one.id] = one
            self._shown[one.shown_id][one.id] = None
            self._note(one)

    def _note(self, one: Authorization) -> None:
        """What has become of an authorization."""
        before = self._authorizations.get(one.id)
        if before is not None:
            self._add_due(before, -before.grant.held_usd_picos)
        self._authorizations[one.id] = one
        self._add_due(one, one.grant.held_usd_picos)
        self._unrecorded[one.shown_id] = None
        if one.state is State.UNSETTLED:
            self.unsettled.add(one.id)
        else:
            self.unsettled.discard(one.id)

    def _add_due(self, one: Authorization, picos: int) -> None:
        sums = self._due.get(one.state)
        if sums is not None:
            for hold in one.grant.terms.accounts:
                sums[hold.key, hold.id] += picos
                self._unbalanced.add((hold.key, hold.id))

    def _take_records(self, key: Key, records: list[Record]) -> None:
        before = self._records.get(key, [])
        if not before and not records:
            return
        self._records[key] = records
        if records[: len(before)] == before:  # some were added, if anything has changed
            self._count(records[len(before) :], 1)
        else:
            self._count(before, -1)
            self._count(records, 1)

    def _count(self, records: list[Record], times: int) -> None:
        for record in records:
            self._counted[record.request_id] += times
            self._unrecorded[record.request_id] = None
            for key, account in self.accounts.items():
                for cost in _spent_from(account, (record,)):
                    self._spent[key] += times * cost
                    self._unbalanced.add(key)

    def _sum(self) -> None:
        """Add the sheets that are new; all of them, if they are not the last ones."""
        new, places = self._new_sheets, [one[:2] for one in self._new_sheets]
        is_next = sorted(places) == places and (not places or places[0] > self._last_summed)
        if self._log is None or not is_next:
            self._log = LogSums()
            for one in self._granted.values():
                self._note(one)
            self._unbalanced |= self.accounts.keys()
            self._unlimited |= self.accounts.keys()
            new = sorted(self._sheets.values(), key=lambda one: one[:2])
        log, self._log = self._log, None  # unless all goes well
        for written in new:
            for key in log.add(written):
                self._unbalanced.add(key)
                self._unlimited.add(key)
            for authorization_id, outcome in written.sheet.outcomes.items():
                self._note(with_outcome(self._granted[authorization_id], outcome))
        self._log, self._new_sheets = log, []
        if new:
            self._last_summed = new[-1][:2]


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
