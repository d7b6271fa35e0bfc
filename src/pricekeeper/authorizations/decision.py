"""The decision about calls and their settlements, on books that are in memory. No I/O, no clock.

`Books` are the accounts and buckets as they were last seen, and what the commands that are decided
together change about them. Settlements come first, so that what they give back is there for others.
An authorization walks its candidates and takes the first that every account and every bucket has
room for, all or nothing. If none has, the denial names what denies one candidate: one that needs
nothing but time, if there is such a one, and of these the one with the fewest obstacles. Raising
exactly these admits the call, and raising fewer admits no other candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.authorizations.authorization import (
    Authorization,
    Considered,
    Grant,
    HeldAccount,
    HeldTokens,
    State,
)
from pricekeeper.budgets import Balance, BudgetAccount, Kind
from pricekeeper.budgets.items import balance_of, hold
from pricekeeper.errors import DeniedBy, Obstacle
from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    LimitStatus,
    Normal,
    Retry,
    effective,
    expected,
    plan,
    scarcest,
)
from pricekeeper.limiter.limits import Limit
from pricekeeper.pricing import WorstCase
from pricekeeper.storage import Key

RETRY_AFTER_HELD_MS: Final = 1_000
"""When to ask again if what others hold is in the way: they settle when their calls end."""
REQUESTS, TOKENS = "rpm", "tpm"
"""The limits that a call takes from if it does not say otherwise."""


class BucketLimits(msgspec.Struct, frozen=True):
    """The limits of one bucket that a call is held against."""

    entity: str
    scope: str
    limits: dict[str, Limit]


class Candidate(msgspec.Struct, frozen=True):
    """A label that a call could be made with, and what it would be held against."""

    label: str
    reason: str
    worst: WorstCase
    accounts: tuple[BudgetAccount, ...]
    buckets: tuple[BucketLimits, ...]
    barred_by: DeniedBy | None = None
    """What denies it whatever the books say; it is a candidate so that all the rest is named."""


class Wanted(msgspec.Struct, frozen=True):
    """A call that wants to be authorized."""

    client_id: str
    app_id: str | None
    fingerprint: bytes
    candidates: tuple[Candidate, ...]
    input_tokens: int
    max_output_tokens: int
    min_output_tokens: int | None
    """Down to how long an answer it may be fitted into what is left; ``None`` is not at all."""
    consume: dict[str, int] | None
    hold_ms: int
    tags: dict[str, str]
    at_ms: int
    """When it was asked for: its windows are those of this moment."""
    passed_over: tuple[Considered, ...] = ()
    asked_as: str = ""

    def debits(self, candidate: Candidate, max_output_tokens: int) -> tuple[Debit, ...]:
        """What the call takes from the buckets of a candidate."""
        consume = self.consume
        if consume is None:
            consume = {REQUESTS: 1, TOKENS: self.input_tokens + max_output_tokens}
        debits = []
        for bucket in candidate.buckets:
            tokens = {name: count for name, count in consume.items() if name in bucket.limits}
            if tokens:
                debits.append(Debit(bucket.entity, candidate.label, bucket.limits, tokens))
        return tuple(debits)


class Granted(NamedTuple):
    """A grant, and the books right after it."""

    authorization: Authorization
    candidate: Candidate
    balances: dict[BudgetAccount, Balance]
    limits: Mapping[str, LimitStatus]


class Denied(NamedTuple):
    """What is in the way of a call."""

    denied_by: tuple[DeniedBy, ...]
    considered: tuple[Considered, ...]


BucketKey = tuple[str, str]
Step = Create | Retry | Normal


class Books:
    """Accounts and buckets as they were last seen, and what is to be changed about them."""

    def __init__(
        self,
        items: Mapping[Key, Mapping[str, Any] | None],
        buckets: Mapping[BucketKey, Bucket | None],
        now_ms: int,
    ) -> None:
        self._items = items
        self._buckets = buckets
        self.owed: Mapping[BucketKey, Debit] = {}
        """What is owed to buckets, and can be given back with what is taken from them."""
        self.now_ms = now_ms
        self.changes: dict[Key, dict[str, Balance]] = {}
        self.limits: dict[Key, dict[str, int]] = {}
        self._taken: dict[BucketKey, dict[str, int]] = {}
        self.debits: dict[BucketKey, Debit] = {}
        """What is taken, less what is given back with it."""
        self.steps: dict[BucketKey, Step] = {}
        self.given_back: dict[BucketKey, dict[str, int]] = {}
        """What of it the steps give back: tokens below zero."""

    def balance(self, account: BudgetAccount) -> Balance | None:
        """What the account has, with all that was decided; ``None`` if it is not open."""
        seen = balance_of(self._items.get(account.key), account.id)
        if seen is None:
            return None
        return seen + self.changes.get(account.key, {}).get(account.id, Balance())

    def add(self, accounts: Iterable[HeldAccount], change: Balance) -> None:
        """Add a change to each of these accounts, whatever their limits."""
        for account in accounts:
            some = self.changes.setdefault(Key(account.pk, account.sk), {})
            some[account.id] = some.get(account.id, Balance()) + change

    def hold(self, accounts: Iterable[BudgetAccount], usd_picos: int) -> None:
        """Hold so much against each of these accounts; a hard one must have room for it."""
        for account in accounts:
            some = self.changes.setdefault(account.key, {})
            some[account.id] = some.get(account.id, Balance()) + hold(usd_picos)
            if account.is_hard:
                limits, limit = self.limits.setdefault(account.key, {}), account.limit_usd_picos
                limits[account.id] = min(limits.get(account.id, limit), limit)

    def take(self, debits: Iterable[Debit]) -> None:
        """Take tokens, for which there is room, and give back what is owed to the same buckets."""
        for debit in debits:
            key = (debit.entity, debit.resource)
            total, due = _plus(debit, self._taken.get(key, {})), self._due(debit)
            net = _plus(total, due)
            step = plan(self._buckets.get(key), net, self.reading_ms(key))
            if isinstance(step, Denial):
                raise LookupError("nobody looked whether they are there")  # noqa: TRY004
            self._taken[key], self.given_back[key] = total.tokens, due
            self.debits[key], self.steps[key] = net, step

    def bucket_after(self, debit: Debit) -> Bucket | None:
        """The bucket with all that was decided."""
        key = (debit.entity, debit.resource)
        step = self.steps.get(key)
        bucket = self._buckets.get(key)
        return bucket if step is None else expected(step, bucket, self.debits[key])

    def find_violations(self, debit: Debit) -> Denial | None:
        """Whether the bucket has too little for the debit, beside all that was decided."""
        key = (debit.entity, debit.resource)
        beside = _plus(debit, self._beside(debit))
        step = plan(self._buckets.get(key), beside, self.reading_ms(key))
        return step if isinstance(step, Denial) else None

    def taken(self, debit: Debit, limit: str) -> int:
        """What others that are decided with it take of a limit; less than zero is given back."""
        return self._beside(debit).get(limit, 0)

    def reading_ms(self, key: BucketKey) -> int:
        """The time that counts for a bucket: never before it was last refilled."""
        bucket = self._buckets.get(key)
        return self.now_ms if bucket is None else max(self.now_ms, bucket.refilled_at_ms)

    def _beside(self, debit: Debit) -> dict[str, int]:
        """What is taken by others, less what is given back.

        That comes first, and counts as far as the bucket has room for it. It is of no use for a
        debit that is larger than the bucket.
        """
        key = (debit.entity, debit.resource)
        beside, bucket = dict(self._taken.get(key, {})), self._buckets.get(key)
        for name, count in self._due(debit).items():
            limit, wanted = debit.limits[name], debit.tokens.get(name, 0)
            if bucket is not None and wanted <= limit.capacity:
                here = effective(bucket, bucket.holdings[name], self.reading_ms(key))
                room = max(0, limit.capacity_units - here) // limit.units_per_token
                beside[name] = beside.get(name, 0) - min(-count, room)
        return beside

    def _due(self, debit: Debit) -> dict[str, int]:
        """What is owed to the bucket and can be given back with the debit: tokens below zero.

        It must count in the same unit, then and now.
        """
        key = (debit.entity, debit.resource)
        owed, bucket = self.owed.get(key), self._buckets.get(key)
        if owed is None or bucket is None:
            return {}
        due: dict[str, int] = {}
        for name, count in owed.tokens.items():
            limit, holding = debit.limits.get(name), bucket.holdings.get(name)
            if count < 0 and holding is not None and holding.limit == limit == owed.limits[name]:
                due[name] = count
        return due


def _plus(debit: Debit, tokens: Mapping[str, int]) -> Debit:
    """The debit, and that many tokens more."""
    both = dict(tokens)
    for name, count in debit.tokens.items():
        both[name] = both.get(name, 0) + count
    return Debit(debit.entity, debit.resource, debit.limits, both)


def decide(books: Books, wanted: Wanted, authorization_id: str, nonce: bytes) -> Granted | Denied:
    """Take the first candidate that there is room for, or say what is in the way."""
    considered = list(wanted.passed_over)
    named: list[DeniedBy] | None = None
    for candidate in wanted.candidates:
        output_tokens = _fit(books, wanted, candidate)
        denied_by = _find_obstacles(books, wanted, candidate, output_tokens)
        if not denied_by:
            considered.append(Considered(candidate.label))
            return _grant(
                books, wanted, candidate, output_tokens, authorization_id, nonce, considered
            )
        considered.append(Considered(candidate.label, "; ".join(one.text for one in denied_by)))
        if named is None or _farness(denied_by) < _farness(named):
            named = denied_by
    return Denied(tuple(named or ()), tuple(considered))


def _farness(denied_by: Sequence[DeniedBy]) -> tuple[bool, int]:
    """How far a candidate is from being admitted: whether waiting is not enough, then by how many.

    What a capture of another call would lift must not be hidden behind a label that is spent.
    """
    return any(one.retry_after_ms is None for one in denied_by), len(denied_by)


def _fit(books: Books, wanted: Wanted, candidate: Candidate) -> int:
    """The longest answer that fits into what is left, if the call may be fitted."""
    output_tokens, least = wanted.max_output_tokens, wanted.min_output_tokens
    if least is None:
        return output_tokens
    for account in candidate.accounts:
        balance = books.balance(account)
        if account.is_hard and balance is not None:
            room = account.limit_usd_picos - balance.used
            output_tokens = min(output_tokens, candidate.worst.output_tokens_within(room))
    if wanted.consume is None:
        for debit in wanted.debits(candidate, max(least, output_tokens)):
            denial = books.find_violations(debit)
            for violation in () if denial is None else denial.violations:
                if violation.limit == TOKENS:
                    left = violation.available - books.taken(debit, TOKENS)
                    output_tokens = min(output_tokens, left - wanted.input_tokens)
    return max(least, output_tokens)


def _find_obstacles(
    books: Books, wanted: Wanted, candidate: Candidate, output_tokens: int
) -> list[DeniedBy]:
    """Everything that denies the candidate."""
    needed = candidate.worst.cost_usd_picos(output_tokens)
    found = [
        obstacle
        for account in candidate.accounts
        if account.is_hard and (obstacle := _account_obstacle(books, account, needed)) is not None
    ]
    barred_by = candidate.barred_by
    if barred_by is not None and barred_by.name not in {one.name for one in found}:
        found.append(barred_by)
    scopes = {bucket.entity: bucket.scope for bucket in candidate.buckets}
    for debit in wanted.debits(candidate, output_tokens):
        denial = books.find_violations(debit)
        for violation in () if denial is None else denial.violations:
            taken = books.taken(debit, violation.limit)
            found.append(
                DeniedBy(
                    Obstacle.LIMIT,
                    violation.limit,
                    scopes[debit.entity],
                    candidate.label,
                    debit.tokens[violation.limit],
                    violation.available - taken,
                    retry_after_ms=violation.retry_after_ms,
                )
            )
    return found


def _account_obstacle(books: Books, account: BudgetAccount, needed: int) -> DeniedBy | None:
    balance = books.balance(account)
    limit = account.limit_usd_picos
    used = limit + 1 if balance is None else balance.used  # what is not open has room for nothing
    if used + needed <= limit:
        return None
    held = 0 if balance is None else balance.held
    resets_at_ms: int | None = account.span.ends_at_ms
    retry_after_ms = None
    if balance is None or (held > 0 and used - held + needed <= limit):
        resets_at_ms, retry_after_ms = None, RETRY_AFTER_HELD_MS
    elif needed > limit:
        resets_at_ms = None
    return DeniedBy(
        Obstacle.QUOTA if account.kind is Kind.QUOTA else Obstacle.BUDGET,
        account.name,
        account.scope.value,
        account.label,
        needed,
        limit - used,
        resets_at_ms,
        retry_after_ms,
    )


def _grant(
    books: Books,
    wanted: Wanted,
    candidate: Candidate,
    output_tokens: int,
    authorization_id: str,
    nonce: bytes,
    considered: Sequence[Considered],
) -> Granted:
    held = candidate.worst.cost_usd_picos(output_tokens)
    debits = wanted.debits(candidate, output_tokens)
    books.hold(candidate.accounts, held)
    books.take(debits)
    grant = Grant(
        fingerprint=wanted.fingerprint,
        client_id=wanted.client_id,
        app_id=wanted.app_id,
        label=candidate.label,
        reason=candidate.reason,
        held_usd_picos=held,
        accounts=tuple(
            HeldAccount(account.key.pk, account.key.sk or "", account.id)
            for account in candidate.accounts
        ),
        buckets=tuple(
            HeldTokens(
                debit.entity,
                debit.tokens,
                {name: debit.limits[name].terms for name in debit.tokens},
            )
            for debit in debits
        ),
        input_tokens=wanted.input_tokens,
        max_output_tokens=output_tokens,
        authorized_at_ms=wanted.at_ms,
        considered=tuple(considered),
        tags=wanted.tags,
        asked_as=wanted.asked_as,
    )
    authorization = Authorization(
        authorization_id, grant, State.OPEN, books.now_ms + wanted.hold_ms, nonce
    )
    balances = {account: books.balance(account) or Balance() for account in candidate.accounts}
    limits = scarcest(debits, [books.bucket_after(debit) for debit in debits], books.now_ms)
    return Granted(authorization, candidate, balances, limits)
