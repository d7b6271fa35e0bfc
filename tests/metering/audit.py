"""The bookkeeping that metering is held against: who reported what, priced and dated by hand.

Every reported record counts once in the end, because a sender without an answer reports
it again, as a client would. So there is one right result, and `check` compares it to the last
pico-dollar. `Watcher` looks at the totals all the time and notes each number that goes back.

Nothing here uses metering's own arithmetic: prices are multiplied and days are looked up here.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from metering.conftest import ECONOMY, PREMIUM, STANDARD
from metering.other_service import in_micros
from pricekeeper.metering import Outcome, Recorded, Usage
from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters
from pricekeeper.metering.facets import HOUR, app_partition
from pricekeeper.metering.items import account_from, fold_from, spent_query, total_from, total_key
from pricekeeper.storage import Item, Query, Store
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.tenants import Policy

PRICES = {
    PREMIUM: (3_000_000, 15_000_000, 300_000),
    STANDARD: (800_000, 4_000_000, None),
    ECONOMY: (35_001, 140_003, None),
}


@dataclass(frozen=True)
class Reported:
    """One record, and its client's policy."""

    policy: Policy
    usage: Usage
    happened_at_ms: int

    @property
    def id(self) -> str:
        return f"{self.policy.org_id} {self.usage.request_id}"

    @cached_property
    def cost_usd_picos(self) -> int:
        per_input, per_output, per_read = PRICES[self.usage.model_label]  # type: ignore[index]
        return (
            self.usage.input_tokens * per_input
            + self.usage.output_tokens * per_output
            + self.usage.cache_read_tokens * (per_read or 0)
        )

    @cached_property
    def account(self) -> Account:
        zone = ZoneInfo(self.policy.timezone)
        moment = datetime.fromtimestamp(self.happened_at_ms / 1000, zone)
        day = f"{moment.year:04}{moment.month:02}{moment.day:02}"
        return Account(self.policy.scope_key, self.usage.model_label, day)

    @property
    def counters(self) -> Counters:
        return Counters(
            self.cost_usd_picos,
            self.usage.input_tokens,
            self.usage.output_tokens,
            self.usage.cache_read_tokens,
            requests=1,
        )


@dataclass(slots=True)
class Audit:
    """The reported records, and their answers."""

    reported: dict[str, Reported] = field(default_factory=dict)
    _expected: dict[Account, Counters] = field(default_factory=dict)
    _adopted: dict[Account, Counters] = field(default_factory=dict)
    answers: dict[str, list[Recorded]] = field(default_factory=lambda: defaultdict(list))

    def report(self, record: Reported) -> None:
        if self.reported.setdefault(record.id, record) is not record:
            return  # by another process, a second time
        _add(self._expected, record.account, record.counters)

    def adopt(self, record: Reported) -> Counters:
        """Another service counts it, in its own precision."""
        counters = in_micros(record.counters)
        _add(self._adopted, record.account, counters)
        return counters

    def answer(self, record: Reported, answer: Recorded) -> None:
        self.answers[record.id].append(answer)

    @property
    def unanswered(self) -> list[Reported]:
        return [record for key, record in self.reported.items() if key not in self.answers]

    def expected(self) -> dict[Account, Counters]:
        """What each account should have of all that was reported so far."""
        expected = dict(self._expected)
        for account, counters in self._adopted.items():
            _add(expected, account, counters)
        return expected

    async def check(self, store: Store) -> None:
        """Everything reported counts once, on its day, to the pico-dollar; nothing else does."""
        expected = self.expected()
        assert await found_totals(store, {account.day for account in expected}) == expected
        assert self.unanswered == []
        for key, answers in self.answers.items():
            record = self.reported[key]
            given = [answer.receipt for answer in answers]
            assert all(one == given[0] for one in given), "one receipt for all answers"
            accepted = sum(answer.outcome is Outcome.ACCEPTED for answer in answers)
            assert accepted <= 1, "only one of them counted it"
            receipt = answers[0].receipt
            assert receipt.cost_usd_picos == record.cost_usd_picos
            assert receipt.org_day == record.account.day
        for record in {record.account: record for record in self.reported.values()}.values():
            assert await found_hours(store, record) == expected[record.account], "hours"


def _add(sums: dict[Account, Counters], account: Account, counters: Counters) -> None:
    sums[account] = sums.get(account, Counters()) + counters


async def found_totals(store: Store, days: Iterable[str]) -> dict[Account, Counters]:
    """Every total that is there and not empty."""
    found: dict[Account, Counters] = {}
    for day in days:
        spent = await store.query(spent_query(day))
        assert not spent.after
        for account in filter(None, (account_from(day, item) for item in spent.items)):
            (total,) = await store.batch_get([total_key(account)])
            if total_from(total).requests:
                found[account] = total_from(total).counters
    return found


async def found_hours(store: Store, record: Reported) -> Counters:
    """Sum the hours of the record's app, label and day, with adopted usage."""
    partition = app_partition(
        record.policy.org_id, record.policy.client.app_id, record.usage.model_label
    )
    page = await store.query(Query(DAILY_TOTAL, partition, prefix=f"{HOUR}{record.account.day}#"))
    (total,) = await store.batch_get([total_key(record.account)])
    return sum((fold_from(item).total for item in page.items), fold_from(total).adopted)


class Watcher:
    """Looks at the totals again and again; ``broken`` says what has gone back or is too much."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit
        self._last: dict[Account, Item] = {}
        self.broken: list[str] = []

    async def look(self, accounts: Iterable[Account]) -> None:
        known = list(accounts)
        found = await self._store.batch_get([total_key(account) for account in known])
        for account, item in zip(known, found, strict=True):
            before = self._last.get(account)
            if item is None:
                if before is not None:
                    self.broken.append(f"{account} is gone")
                continue
            if before is not None:
                self.broken += [
                    f"{account} {name} went from {before[name]} to {item[name]}"
                    for name in (*COUNTER_NAMES, "cost_usd_micros", "updated_at_epoch", "as_of_ms")
                    if item[name] < before[name]
                ]
            self._last[account] = item
