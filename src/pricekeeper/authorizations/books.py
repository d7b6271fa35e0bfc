"""Accounts and buckets as they were last seen, and what some commands change about them. No I/O.

Many commands are decided together. The books keep the running state, so that each of them is held
against what is left by those before it, at the price of a comparison; what is to be written is
planned once, when all of them are decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pricekeeper.authorizations.authorization import HeldAccount
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.budgets.items import hold
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import UnreadableItemError
from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    LimitStatus,
    Normal,
    Retry,
    available_units,
    plan,
)
from pricekeeper.limiter.limits import Limit
from pricekeeper.storage import Key

BucketKey: TypeAlias = tuple[str, str]
Step: TypeAlias = Create | Retry | Normal
Balances: TypeAlias = Mapping[str, Balance | UnreadableItemError]
"""The open accounts of an item, by their names; the error, in place of one that can't be read."""


class Books:
    """Accounts and buckets as they were last seen, and what is to be changed about them."""

    def __init__(
        self,
        balances: Mapping[Key, Balances | None],
        buckets: Mapping[BucketKey, Bucket | None],
        now_ms: int,
    ) -> None:
        self._balances: dict[Key, dict[str, Balance | UnreadableItemError]] = {
            key: dict(seen) for key, seen in balances.items() if seen is not None
        }
        self._buckets = buckets
        self._lines: dict[BucketKey, _BucketLine] = {}
        self.owed: Mapping[BucketKey, Debit] = {}
        """What is owed to buckets, and can be given back with what is taken from them."""
        self.now_ms = now_ms
        self.changes: dict[Key, dict[str, Balance]] = {}
        self.limits: dict[Key, dict[str, int]] = {}
        """How much hard accounts may have used, of those that are held against."""

    def balance(self, account: BudgetAccount) -> Balance | None:
        """What the account has, with all that was decided; ``None`` if it is not open."""
        some = self._balances.get(account.key)
        balance = None if some is None else some.get(account.id)
        if isinstance(balance, UnreadableItemError):
            raise error_copy(balance)
        return balance

    def add(self, accounts: Iterable[HeldAccount], change: Balance) -> None:
        """Add a change to each of these accounts, whatever their limits."""
        for account in accounts:
            self._add(account.key, account.id, change)

    def hold(self, accounts: Iterable[BudgetAccount], usd_picos: int) -> None:
        """Hold so much against each of these accounts; a hard one must have room for it."""
        change = hold(usd_picos)
        for account in accounts:
            self._add(account.key, account.id, change)
            if account.is_hard:
                limits, limit = self.limits.setdefault(account.key, {}), account.limit_usd_picos
                limits[account.id] = min(limits.get(account.id, limit), limit)

    def _add(self, key: Key, account_id: str, change: Balance) -> None:
        changes = self.changes.get(key)
        if changes is None:
            changes = self.changes[key] = {}
        have = changes.get(account_id)
        changes[account_id] = change if have is None else have + change
        running = self._balances.get(key)
        balance = None if running is None else running.get(account_id)
        if running is not None and isinstance(balance, Balance):
            running[account_id] = balance + change

    def take(self, debits: Iterable[Debit]) -> None:
        """Take tokens, for which there is room."""
        for debit in debits:
            self._line(debit).take(debit.tokens)

    def find_violations(self, debit: Debit) -> Denial | None:
        """Whether the bucket has too little for the debit, beside all that was decided."""
        line = self._line(debit)
        return None if line.has_room(debit.tokens) else line.deny(debit)

    def taken(self, debit: Debit, limit: str) -> int:
        """What others that are decided with it take of a limit; less than zero is given back."""
        return self._line(debit).beside(limit, debit.tokens.get(limit, 0))

    def scarcest(self, debits: Iterable[Debit]) -> dict[str, LimitStatus]:
        """Each limit with all that was decided; of several buckets that have it, the lowest."""
        statuses: dict[str, LimitStatus] = {}
        for debit in debits:
            line = self._line(debit)
            for name in debit.limits:
                one = line.status(name, self.now_ms)
                if name not in statuses or one.remaining < statuses[name].remaining:
                    statuses[name] = one
        return statuses

    def plan_buckets(self) -> dict[BucketKey, BucketStep]:
        """How to write what was taken, with what is given back to the same buckets."""
        return {key: line.plan(key) for key, line in self._lines.items() if line.was_taken}

    def _line(self, debit: Debit) -> _BucketLine:
        """The line of a bucket, under the limits of this debit: they may have changed meanwhile."""
        key = (debit.entity, debit.resource)
        line = self._lines.get(key)
        if line is None or (line.limits is not debit.limits and line.limits != debit.limits):
            bucket, before = self._buckets.get(key), line
            line = _BucketLine(bucket, debit.limits, self.now_ms, self.owed.get(key))
            if before is not None and before.was_taken:
                line.take({n: c for n, c in before.taken.items() if n in debit.limits})
            self._lines[key] = line
        return line


class BucketStep:
    """The write that a bucket needs."""

    __slots__ = ("debit", "given_back", "step")

    def __init__(self, step: Step, debit: Debit, given_back: Mapping[str, int]) -> None:
        self.step = step
        self.debit = debit
        """What is taken, less what is given back with it."""
        self.given_back = given_back
        """What of it the step gives back: tokens below zero."""


class _BucketLine:
    """One bucket under some limits, and what is taken from it."""

    __slots__ = ("_available", "_bucket", "_due", "_reading_ms", "limits", "taken", "was_taken")

    def __init__(
        self, bucket: Bucket | None, limits: dict[str, Limit], now_ms: int, owed: Debit | None
    ) -> None:
        self._bucket = bucket
        # The time that counts for a bucket is never before it was last refilled.
        self._reading_ms = now_ms if bucket is None else max(now_ms, bucket.refilled_at_ms)
        self.limits = limits
        self._available = {
            name: available_units(bucket, limit, self._reading_ms) for name, limit in limits.items()
        }
        self._due = _due(bucket, limits, owed)
        self.taken: dict[str, int] = {}
        self.was_taken = False

    def take(self, tokens: Mapping[str, int]) -> None:
        self.was_taken = True
        taken = self.taken
        for name, count in tokens.items():
            taken[name] = taken.get(name, 0) + count

    def has_room(self, tokens: Mapping[str, int]) -> bool:
        """Whether so many are there, beside all that was decided."""
        for name, count in tokens.items():
            wanted = (self.beside(name, count) + count) * self.limits[name].units_per_token
            if wanted > self._available[name]:
                return False
        return True

    def beside(self, name: str, wanted: int) -> int:
        """What is taken by others, less what is given back.

        That comes first, and counts as far as the bucket has room for it. It is of no use for a
        debit that is larger than the bucket.
        """
        beside, due = self.taken.get(name, 0), self._due.get(name, 0)
        limit = self.limits[name]
        if due and wanted <= limit.capacity:
            room = max(0, limit.capacity_units - self._available[name]) // limit.units_per_token
            beside -= min(-due, room)
        return beside

    def deny(self, debit: Debit) -> Denial:
        """What the bucket has too little of."""
        tokens = {name: self.beside(name, debit.tokens.get(name, 0)) for name in self.taken}
        for name, count in debit.tokens.items():
            tokens[name] = self.beside(name, count) + count
        beside = Debit(debit.entity, debit.resource, self.limits, tokens)
        step = plan(self._bucket, beside, self._reading_ms)
        if not isinstance(step, Denial):
            raise LookupError("a bucket has room for what it has no room for")  # noqa: TRY004
        return step

    def status(self, name: str, now_ms: int) -> LimitStatus:
        """The state of a limit with all that was decided."""
        limit, net = self.limits[name], self.taken.get(name, 0) + self._due.get(name, 0)
        units = min(self._available[name] - net * limit.units_per_token, limit.capacity_units)
        holding = None if self._bucket is None else self._bucket.holdings.get(name)
        full_at_ms = now_ms + limit.filling_ms(limit.capacity_units - units)
        consumed = net + (0 if holding is None else holding.consumed)
        return LimitStatus(limit, units // limit.units_per_token, full_at_ms, consumed)

    def plan(self, key: BucketKey) -> BucketStep:
        net = dict(self.taken)
        for name, count in self._due.items():
            net[name] = net.get(name, 0) + count
        debit = Debit(*key, self.limits, net)
        step = plan(self._bucket, debit, self._reading_ms)
        if isinstance(step, Denial):
            raise LookupError("nobody looked whether they are there")  # noqa: TRY004
        return BucketStep(step, debit, self._due)


def _due(bucket: Bucket | None, limits: Mapping[str, Limit], owed: Debit | None) -> dict[str, int]:
    """What is owed to the bucket and can be given back with a debit: tokens below zero.

    It must count in the same unit, then and now.
    """
    if owed is None or bucket is None:
        return {}
    due: dict[str, int] = {}
    for name, count in owed.tokens.items():
        limit, holding = limits.get(name), bucket.holdings.get(name)
        if count < 0 and holding is not None and holding.limit == limit == owed.limits[name]:
            due[name] = count
    return due
