"""Decides a call, given the balances of its accounts and the tokens that were taken. No I/O.

A call gets its first candidate that fits every account and whose tokens every bucket has given, all
or nothing; tokens are taken once its accounts fit. Otherwise the denial names the obstacles of one
candidate: one that only needs time, if there is one, then the one with the fewest. Removing these
obstacles admits the call.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from pricekeeper.authorizations.authorization import (
    REQUESTS,
    TOKENS,
    Authorization,
    Considered,
    Grant,
    GrantTerms,
    HeldBucket,
    usual_tokens,
)
from pricekeeper.authorizations.items import encode_grant_terms
from pricekeeper.budgets import Balance, BudgetAccount, Kind
from pricekeeper.errors import DeniedBy, Obstacle
from pricekeeper.limiter import Debit, Limit, LimitStatus
from pricekeeper.metering.journal import StoredTerms
from pricekeeper.pricing import WorstCase
from pricekeeper.storage import Key
from pricekeeper.tenants import Policy

RETRY_AFTER_HELD_MS: Final = 1_000
"""If other calls hold the rest: they settle when they end."""


class BucketLimits(msgspec.Struct, frozen=True):
    """The limits of one bucket that a call takes from."""

    key: Key
    scope: str
    limits: dict[str, Limit]


class CallChain(NamedTuple):
    """What calls of one policy and label are held against."""

    policy: Policy
    accounts: tuple[BudgetAccount, ...]
    buckets: tuple[BucketLimits, ...]
    terms: GrantTerms
    stored_terms: StoredTerms
    alone: tuple[Considered, ...]


class Candidate(msgspec.Struct, frozen=True):
    """A label that a call could use, and what it would be held against."""

    label: str
    reason: str
    input_tokens: int
    max_output_tokens: int
    min_output_tokens: int | None
    """``None`` if its answer may not be shortened."""
    worst: WorstCase
    chain: CallChain
    passed_over: tuple[Considered, ...] = ()
    barred_by: DeniedBy | None = None
    """What denies it in any case. It is a candidate only so that the denial is complete."""

    def takes_tokens(self, consume: Container[str] | None) -> bool:
        names = (REQUESTS, TOKENS) if consume is None else consume
        return any(name in names for bucket in self.chain.buckets for name in bucket.limits)


class Wanted(msgspec.Struct, frozen=True):
    """A request with its candidates."""

    org_id: str
    fingerprint: bytes
    candidates: tuple[Candidate, ...]
    consume: dict[str, int] | None
    hold_ms: int
    tags: dict[str, str]
    at_ms: int
    passed_over: tuple[Considered, ...] = ()
    asked_as: str = ""

    def tokens(self, candidate: Candidate, max_output_tokens: int) -> dict[str, int]:
        if self.consume is not None:
            return self.consume
        return usual_tokens(candidate.input_tokens, max_output_tokens)

    def debits(self, candidate: Candidate, max_output_tokens: int) -> tuple[Debit, ...]:
        consume = self.tokens(candidate, max_output_tokens)
        debits = []
        for bucket in candidate.chain.buckets:
            tokens, limits = consume, bucket.limits
            if not limits.keys() >= consume.keys():
                tokens = {name: count for name, count in consume.items() if name in limits}
            if tokens:
                debits.append(Debit(bucket.key, limits, tokens))
        return tuple(debits)


class Taken(msgspec.Struct, frozen=True):
    """Tokens taken for a candidate and an answer of this length."""

    output_tokens: int
    debits: tuple[Debit, ...]
    limits: Mapping[str, LimitStatus]


class Room(msgspec.Struct, frozen=True):
    """The buckets have enough for such an answer; nothing was taken."""

    output_tokens: int
    limits: Mapping[str, LimitStatus]


class Lacking(msgspec.Struct, frozen=True):
    """The buckets have too little."""

    denied_by: tuple[DeniedBy, ...]


class Granted(msgspec.Struct, frozen=True):
    """A grant, with the accounts and limits right after it."""

    authorization: Authorization
    rank: int
    balances: tuple[tuple[BudgetAccount, Balance], ...]
    limits: Mapping[str, LimitStatus]


class Denied(msgspec.Struct, frozen=True):
    """What denies a call."""

    denied_by: tuple[DeniedBy, ...]
    considered: tuple[Considered, ...]


class Wants(msgspec.Struct, frozen=True):
    """What must be known before the call can be decided."""

    take: int | None
    look: tuple[int, ...] = ()


class Balances(Protocol):
    """The balances of accounts after all earlier decisions."""

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """``None`` if the account is not open."""
        ...


Speed: TypeAlias = Taken | Room | Lacking
Speeds: TypeAlias = Mapping[int, Speed]


class ChosenCandidate(msgspec.Struct, frozen=True):
    """The candidate that a call gets, and the length of its answer."""

    rank: int
    output_tokens: int
    held_usd_picos: int
    considered: tuple[Considered, ...]


def find_first_with_room(balances: Balances, wanted: Wanted) -> int | None:
    """The first candidate that fits the accounts, without looking at limits."""
    for rank, candidate in enumerate(wanted.candidates):
        least = candidate.min_output_tokens
        output_tokens = candidate.max_output_tokens if least is None else least
        needed = candidate.worst.cost_usd_picos(output_tokens)
        if candidate.barred_by is None and _has_room(balances, candidate, needed):
            return rank
    return None


def choose(balances: Balances, wanted: Wanted, speeds: Speeds) -> ChosenCandidate | Denied | Wants:
    """Choose the first candidate that fits, or say what denies the call."""
    first, speed = wanted.candidates[0], speeds.get(0)
    if isinstance(speed, Taken) and not first.passed_over and first.barred_by is None:
        needed = first.worst.cost_usd_picos(speed.output_tokens)
        if _has_room(balances, first, needed):  # nearly always
            return ChosenCandidate(0, speed.output_tokens, needed, first.chain.alone)
    return _walk(balances, wanted, speeds)


def _walk(balances: Balances, wanted: Wanted, speeds: Speeds) -> ChosenCandidate | Denied | Wants:
    considered: list[Considered] = []
    named: list[DeniedBy] | None = None
    unknown: list[int] = []
    for rank, candidate in enumerate(wanted.candidates):
        considered += candidate.passed_over
        speed = speeds.get(rank)
        longest = speed.output_tokens if isinstance(speed, Taken) else candidate.max_output_tokens
        output_tokens = _fit(balances, candidate, longest)
        needed = candidate.worst.cost_usd_picos(output_tokens)
        denied_by = _find_obstacles(balances, candidate, needed)
        if isinstance(speed, Lacking):
            denied_by += speed.denied_by
        elif not isinstance(speed, Taken) and candidate.takes_tokens(wanted.consume):
            if not denied_by:
                return Wants(rank)
            if speed is None:
                unknown.append(rank)
        if not denied_by:
            considered.append(Considered(candidate.label))
            return ChosenCandidate(rank, output_tokens, needed, tuple(considered))
        considered.append(Considered(candidate.label, "; ".join(one.text for one in denied_by)))
        if named is None or _farness(denied_by) < _farness(named):
            named = denied_by
    if unknown:
        return Wants(None, tuple(unknown))
    return Denied(tuple(named or ()), (*considered, *wanted.passed_over))


def _farness(denied_by: Sequence[DeniedBy]) -> tuple[bool, int]:
    """How far a candidate is from being admitted: whether time helps, then the obstacles.

    A denial that another capture may lift must not be hidden behind a spent label.
    """
    return any(one.retry_after_ms is None for one in denied_by), len(denied_by)


def _has_room(balances: Balances, candidate: Candidate, needed: int) -> bool:
    for account in candidate.chain.accounts:
        if account.is_hard:
            balance = balances.balance(account.key, account.id)
            if balance is None or balance.used + needed > account.limit_usd_picos:
                return False
    return True


def _fit(balances: Balances, candidate: Candidate, longest: int) -> int:
    least = candidate.min_output_tokens
    if least is None:
        return longest
    for account in candidate.chain.accounts:
        balance = balances.balance(account.key, account.id)
        if account.is_hard and balance is not None:
            room = account.limit_usd_picos - balance.used
            longest = min(longest, candidate.worst.output_tokens_within(room))
    return max(least, longest)


def _find_obstacles(balances: Balances, candidate: Candidate, needed: int) -> list[DeniedBy]:
    found = [
        obstacle
        for account in candidate.chain.accounts
        if account.is_hard
        and (obstacle := _account_obstacle(balances, account, needed)) is not None
    ]
    barred_by = candidate.barred_by
    if barred_by is not None and barred_by.name not in {one.name for one in found}:
        found.append(barred_by)
    return found


def _account_obstacle(balances: Balances, account: BudgetAccount, needed: int) -> DeniedBy | None:
    balance = balances.balance(account.key, account.id)
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


def make_grant(wanted: Wanted, choice: ChosenCandidate) -> tuple[Grant, StoredTerms]:
    """The grant of the chosen candidate, and its terms as a sheet stores them."""
    candidate, output_tokens = wanted.candidates[choice.rank], choice.output_tokens
    chain = candidate.chain
    terms, stored_terms = chain.terms, chain.stored_terms
    if wanted.consume is not None:
        terms = terms_of(terms, chain.buckets, wanted.consume)
        stored_terms = encode_grant_terms(wanted.org_id, terms)
    grant = Grant(
        terms,
        wanted.fingerprint,
        candidate.reason,
        choice.held_usd_picos,
        candidate.input_tokens,
        output_tokens,
        wanted.at_ms,
        wanted.tokens(candidate, output_tokens) if terms.buckets else {},
        choice.considered,
        wanted.tags,
        wanted.asked_as,
    )
    return grant, stored_terms


def terms_of(
    terms: GrantTerms, buckets: Sequence[BucketLimits], consume: Container[str]
) -> GrantTerms:
    """The terms of grants that take these limits from the buckets that have them."""
    held = (
        HeldBucket(
            bucket.key.pk,
            {name: limit.terms for name, limit in bucket.limits.items() if name in consume},
        )
        for bucket in buckets
    )
    return msgspec.structs.replace(terms, buckets=tuple(one for one in held if one.terms))
