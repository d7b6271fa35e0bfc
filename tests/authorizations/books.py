"""What the items of a store say of budgets, whoever wrote them: the auditor of the simulation.

It reads the items themselves, at any moment, and holds the enforced value of every account against
what it must be: the records that count in it, the holds of open authorizations, and the charges of
those that nobody has settled.
"""

from collections import Counter, defaultdict

from memory_store import MemoryStore
from pricekeeper.authorizations import Authorization, State
from pricekeeper.authorizations.items import authorization_of
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.budgets.items import USED, balance_of
from pricekeeper.metering.journal import Record, records_on
from pricekeeper.storage import Key
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED


class Auditor:
    """Holds the items of a store against each other."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.accounts: dict[tuple[Key, str], BudgetAccount] = {}
        """Every account that anybody may have opened."""

    def know(self, accounts: tuple[BudgetAccount, ...]) -> None:
        self.accounts.update({(one.key, one.id): one for one in accounts})

    def authorizations(self) -> list[Authorization]:
        found: list[Authorization] = []
        for (table, pk), items in self._store.partitions.items():
            if table == USAGE_AGG_SHARDED.name and "#A#" in pk:
                found += [one for item in items.values() if (one := authorization_of(item))]
        return found

    def records(self) -> list[Record]:
        return [
            record
            for (table, pk), items in self._store.partitions.items()
            if table == USAGE_AGG_SHARDED.name and "#J#" in pk
            for item in items.values()
            for record in records_on(item)
        ]

    def balances(self) -> dict[tuple[Key, str], Balance]:
        """What each account that is open has."""
        found: dict[tuple[Key, str], Balance] = {}
        for (table, pk), items in self._store.partitions.items():
            if table != RATE_BUCKETS.name or not pk.endswith("#BUDGETS"):
                continue
            for sk, item in items.items():
                for name in item:
                    if name.startswith(USED):
                        balance = balance_of(item, name.removeprefix(USED))
                        assert balance is not None
                        found[Key(pk, sk), name.removeprefix(USED)] = balance
        return found

    def check(self) -> None:
        """Every account has exactly what the records and the authorizations say."""
        held: defaultdict[tuple[Key, str], int] = defaultdict(int)
        unsettled: defaultdict[tuple[Key, str], int] = defaultdict(int)
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
            right = Balance(spent + held[key] + unsettled[key], held[key], unsettled[key])
            assert balance == right, f"{key[1]}: {balance} is not {right}"

    def check_limits(self) -> None:
        """No account of a hard budget has used more than its limit."""
        for key, balance in self.balances().items():
            account = self.accounts[key]
            if account.is_hard:
                assert balance.used <= account.limit_usd_picos, f"{key[1]} is overspent: {balance}"

    def check_records(self) -> None:
        """Each captured authorization has one record, and no other authorization has one."""
        counted = Counter(record.request_id for record in self.records())
        for one in self.authorizations():
            expected = 1 if one.state is State.CAPTURED else 0
            assert counted[one.shown_id] == expected, f"{one.state}: {counted[one.shown_id]}"
