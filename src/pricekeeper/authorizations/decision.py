"""The decision about calls, on books that are in memory. No I/O, no clock.

Settlements are on the books before, so that what they give back is there for others.
An authorization walks its candidates and takes the first that every account and every bucket has
room for, all or nothing. If none has, the denial names what denies one candidate: one that needs
nothing but time, if there is such a one, and of these the one with the fewest obstacles. Raising
exactly these admits the call, and raising fewer admits no other candidate.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from pricekeeper.authorizations.authorization import (
    TOKENS,
    Authorization,
    Considered,
    Grant,
    GrantTerms,
    HeldBucket,
    State,
    usual_tokens,
)
from pricekeeper.authorizations.books import Books, BucketKey
from pricekeeper.authorizations.sheet import store_terms
from pricekeeper.budgets import Balance, BudgetAccount, Kind
from pricekeeper.errors import DeniedBy, Obstacle
from pricekeeper.limiter.bucket import Debit, LimitStatus
from pricekeeper.limiter.limits import Limit
from pricekeeper.metering.journal import StoredTerms
from pricekeeper.pricing import WorstCase
from pricekeeper.storage import Key

RETRY_AFTER_HELD_MS: Final = 1_000
"""When to ask again if what others hold is in the way: they settle when their calls end."""


class BucketLimits(msgspec.Struct, frozen=True):
    """The limits of one bucket that a call is held against."""

    entity: str
    scope: str
    limits: dict[str, Limit]


class Candidate(msgspec.Struct, frozen=True):
    """A label that a call could be made with, and what it would be held against."""

    label: str
    reason: str
    input_tokens: int
    """Of the prompt, at most as many as the model can read."""
    worst: WorstCase
    accounts: tuple[BudgetAccount, ...]
    buckets: tuple[BucketLimits, ...]
    terms: GrantTerms
    """What its grants have in common, if they take from the usual limits."""
    stored_terms: StoredTerms
    keys: frozenset[Key]
    """The items of the accounts."""
    bucket_keys: frozenset[BucketKey]
    barred_by: DeniedBy | None = None
    """What denies it whatever the books say; it is a candidate so that all the rest is named."""


class Wanted(msgspec.Struct, frozen=True):
    """A call that wants to be authorized."""

    org_id: str
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

    def tokens(self, candidate: Candidate, max_output_tokens: int) -> dict[str, int]:
        """What the call takes from each bucket, by limit."""
        if self.consume is not None:
            return self.consume
        return usual_tokens(candidate.input_tokens, max_output_tokens)

    def debits(self, candidate: Candidate, max_output_tokens: int) -> tuple[Debit, ...]:
        """What the call takes from the buckets of a candidate."""
        consume = self.tokens(candidate, max_output_tokens)
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
    balances: tuple[tuple[BudgetAccount, Balance], ...]
    limits: Mapping[str, LimitStatus]
    stored_terms: StoredTerms


class Denied(NamedTuple):
    """What is in the way of a call."""

    denied_by: tuple[DeniedBy, ...]
    considered: tuple[Considered, ...]


def decide(books: Books, wanted: Wanted, authorization_id: str, nonce: bytes) -> Granted | Denied:
    """Take the first candidate that there is room for, or say what is in the way."""
    considered = list(wanted.passed_over)
    named: list[DeniedBy] | None = None
    for candidate in wanted.candidates:
        output_tokens = _fit(books, wanted, candidate)
        debits = wanted.debits(candidate, output_tokens)
        denied_by = _find_obstacles(books, candidate, output_tokens, debits)
        if not denied_by:
            considered.append(Considered(candidate.label))
            call = _Call(wanted, candidate, output_tokens, debits)
            return _grant(books, call, authorization_id, nonce, considered)
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
                    output_tokens = min(output_tokens, left - candidate.input_tokens)
    return max(least, output_tokens)


def _find_obstacles(
    books: Books, candidate: Candidate, output_tokens: int, debits: Sequence[Debit]
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
    for debit in debits:
        denial = books.find_violations(debit)
        if denial is None:
            continue
        scopes = {bucket.entity: bucket.scope for bucket in candidate.buckets}
        for violation in denial.violations:
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


class _Call(NamedTuple):
    """A call with a candidate that there is room for."""

    wanted: Wanted
    candidate: Candidate
    output_tokens: int
    debits: tuple[Debit, ...]


def _grant(
    books: Books,
    call: _Call,
    authorization_id: str,
    nonce: bytes,
    considered: Sequence[Considered],
) -> Granted:
    wanted, candidate, output_tokens, debits = call
    held = candidate.worst.cost_usd_picos(output_tokens)
    books.hold(candidate.accounts, held)
    books.take(debits)
    terms, stored_terms = candidate.terms, candidate.stored_terms
    if wanted.consume is not None:
        terms = terms_of(terms, candidate.buckets, wanted.consume)
        stored_terms = store_terms(wanted.org_id, terms)
    grant = Grant(
        terms,
        wanted.fingerprint,
        candidate.reason,
        held,
        candidate.input_tokens,
        output_tokens,
        wanted.at_ms,
        wanted.tokens(candidate, output_tokens) if debits else {},
        tuple(considered),
        wanted.tags,
        wanted.asked_as,
    )
    authorization = Authorization(
        authorization_id, grant, State.OPEN, books.now_ms + wanted.hold_ms, nonce
    )
    balances = tuple(
        (account, books.balance(account) or Balance()) for account in candidate.accounts
    )
    return Granted(authorization, candidate, balances, books.scarcest(debits), stored_terms)


def terms_of(
    terms: GrantTerms, buckets: Sequence[BucketLimits], consume: Container[str]
) -> GrantTerms:
    """The terms of grants that take these limits, from those of the buckets that have them."""
    held = (
        HeldBucket(
            bucket.entity,
            {name: limit.terms for name, limit in bucket.limits.items() if name in consume},
        )
        for bucket in buckets
    )
    return msgspec.structs.replace(terms, buckets=tuple(one for one in held if one.terms))
