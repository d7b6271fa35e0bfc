"""What a bucket holds, and which write would take tokens from it. Pure: no store, no clock.

A bucket stores a balance per limit as of one moment, ``refilled_at_ms``. The *effective* balance
later is ``min(stored + elapsed * rate, capacity)``.

While no limit is full, tokens are taken by adding to the stored balance (`TakeOnly`), any number
side by side. Once a limit has overflowed, the overflow must be cut off, or it could be taken later.
Then ``refilled_at_ms`` moves and settles the refill of every limit (`Refill`).

The bound (promise 3): over any window of length t, with clocks at most ``skew`` wrong either way,
at most ``capacity + rate * (t + 2 * skew)`` is granted.

An adjustment may take a balance below zero, down to ``Limit.debt_units_max`` (`bearable`). A deeper
debt, of an older limit, counts as one at that bound and is cut to it by the next `Refill`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from pricekeeper.errors import Violation, longest_wait_ms
from pricekeeper.limiter.limits import Limit
from pricekeeper.storage import Key

IDLE_SECS: Final = 36 * 3600
"""How long a bucket is kept after it is surely full: longer than a lease lives."""
UNSETTLED_MS_MAX: Final = 12 * 3600 * 1000
"""For how long tokens are taken without settling the bucket's refill and extending its expiry."""


class Holding(msgspec.Struct, frozen=True):
    """One limit's part of a bucket. ``units`` below zero are a debt from an adjustment."""

    limit: Limit
    units: int
    consumed: int = 0
    """Tokens taken and not given back, over the life of the bucket."""

    def less(self, tokens: int) -> Holding:
        units = self.units - tokens * self.limit.units_per_token
        return Holding(self.limit, units, self.consumed + tokens)


class Bucket(msgspec.Struct, frozen=True):
    """Every limit of one entity and resource, as of ``refilled_at_ms``."""

    refilled_at_ms: int
    expires_at_epoch: int
    holdings: dict[str, Holding]


class Debit(msgspec.Struct, frozen=True):
    """The tokens to take from one bucket, by limit, and the limits that it should have."""

    key: Key
    limits: dict[str, Limit]
    tokens: dict[str, int]
    """0 takes nothing but is denied if there is a debt."""

    @property
    def entity(self) -> str:
        return self.key.pk

    @property
    def resource(self) -> str:
        return self.key.sk or ""

    def with_tokens(self, tokens: dict[str, int]) -> Debit:
        return Debit(self.key, self.limits, tokens)


class Create(msgspec.Struct, frozen=True):
    """Make an absent bucket, which is a full one, less the debit."""

    after: Bucket


class TakeOnly(msgspec.Struct, frozen=True):
    """Take from the stored balances, of a bucket refilled at ``refilled_ms``.

    Correct at ``as_of_ms`` if a balance with the refill since then is enough, and has not
    overflowed. If both are the same, the bucket may have been refilled later.
    """

    refilled_ms: int
    as_of_ms: int


class HoldingChange(msgspec.Struct, frozen=True):
    """What a `Refill` makes of one limit; ``stored_min`` is the least it must find there."""

    before: Holding | None
    after: Holding | None
    stored_min: int | None = None


class Refill(msgspec.Struct, frozen=True):
    """Settle the refill of every limit at ``after.refilled_at_ms``, and take from that."""

    before: Bucket
    after: Bucket
    changes: dict[str, HoldingChange]


class Denial(msgspec.Struct, frozen=True):
    """Too little is there. Nothing was taken."""

    violations: tuple[Violation, ...]
    settle: Refill | None = None
    """To be written first if the bucket's limits have changed, or its debt is too deep."""

    @property
    def granted(self) -> bool:
        return False

    @property
    def retry_after_ms(self) -> int | None:
        """When all of it will be there if no other request takes any; ``None`` is never."""
        return longest_wait_ms(self.violations)

    def after_waiting(self, waited_ms: int) -> Denial:
        return Denial(
            tuple(
                one
                if one.retry_after_ms is None
                else replace(one, retry_after_ms=max(0, one.retry_after_ms - waited_ms))
                for one in self.violations
            )
        )


Plan: TypeAlias = Create | TakeOnly | Refill | Denial


class LimitStatus(msgspec.Struct, frozen=True):
    """The state of one limit at a moment."""

    limit: Limit
    remaining: int
    """Whole tokens that could be taken; below zero in debt."""
    full_at_ms: int
    """If no request takes any; the time of reading if it is full."""
    consumed: int


def plan(bucket: Bucket | None, debit: Debit, now_ms: int) -> Plan:
    """The write that applies the debit to the bucket, or the denial of it."""
    if bucket is None:
        return _plan_create(debit, now_ms)
    if _covered(bucket, debit, now_ms):
        return probe(bucket, now_ms)
    step = plan_refill(bucket, debit, now_ms)
    violations = _violations(step, debit, now_ms)
    if not violations:
        return step
    if _up_to_date(bucket, debit.limits) and not _owes_too_much(bucket, now_ms):
        return Denial(violations)
    return Denial(violations, settle=plan_refill(bucket, debit.with_tokens({}), now_ms))


def bearable(bucket: Bucket | None, debit: Debit, now_ms: int) -> dict[str, int]:
    """How many tokens of each limit can be taken within the bound of its debt."""
    borne: dict[str, int] = {}
    for name in debit.tokens:
        limit = debit.limits[name]
        units = limit.capacity_units
        if bucket is not None:
            units = effective(bucket, bucket.holdings[name], now_ms)
        borne[name] = max(0, (units + limit.debt_units_max) // limit.units_per_token)
    return borne


def probe(bucket: Bucket, as_of_ms: int) -> TakeOnly:
    """A `TakeOnly` for a bucket refilled when we saw it was, or at any time from ``as_of_ms`` on.

    In the second case no refill counts, so a later refill by another does not make it fail.
    """
    return TakeOnly(min(bucket.refilled_at_ms, as_of_ms), as_of_ms)


def overdue(bucket: Bucket, as_of_ms: int) -> bool:
    """Whether the refill must be settled, and the expiry extended, before tokens are taken."""
    return as_of_ms - bucket.refilled_at_ms > UNSETTLED_MS_MAX


def stored_range(limit: Limit, tokens: int, take: TakeOnly) -> tuple[int, int]:
    """The least that must be stored to be enough, and the most that has not overflowed."""
    refill = (take.as_of_ms - take.refilled_ms) * limit.units_per_ms
    return tokens * limit.units_per_token - refill, limit.capacity_units - refill


def effective(bucket: Bucket, holding: Holding, now_ms: int) -> int:
    """What a limit holds at that moment: ``min(stored + elapsed * rate, capacity)``.

    A clock behind the one that refilled last sees no time passed, and never a negative one.
    """
    elapsed_ms = max(0, now_ms - bucket.refilled_at_ms)
    return min(
        holding.units + elapsed_ms * holding.limit.units_per_ms, holding.limit.capacity_units
    )


def available_units(bucket: Bucket | None, limit: Limit, now_ms: int) -> int:
    """What can be taken under that limit at that moment; below zero in debt."""
    holding = None if bucket is None else bucket.holdings.get(limit.name)
    if bucket is None or holding is None:
        return limit.capacity_units
    here = rescaled(effective(bucket, holding, now_ms), holding.limit, limit)
    return max(here, -limit.debt_units_max)


def rescaled(units: int, old: Limit, new: Limit) -> int:
    """A balance under new terms: credit keeps its share of the capacity, debt its tokens.

    Rounded down: going back and forth between two limits never gains anything.
    """
    if old is new or old == new:
        return units
    if units >= 0:
        return units * new.capacity_units // old.capacity_units
    return units * new.units_per_token // old.units_per_token


def new_bucket(debit: Debit, now_ms: int) -> Bucket:
    """A new bucket at that moment, less the debit, which may leave a debt."""
    holdings = {
        name: Holding(limit, limit.capacity_units).less(debit.tokens.get(name, 0))
        for name, limit in debit.limits.items()
    }
    return Bucket(now_ms, expiry_epoch(now_ms, holdings), holdings)


def _plan_create(debit: Debit, now_ms: int) -> Create | Denial:
    violations = tuple(
        Violation(debit.entity, debit.resource, name, tokens, debit.limits[name].capacity, None)
        for name, tokens in debit.tokens.items()
        if tokens > debit.limits[name].capacity
    )
    return Denial(violations) if violations else Create(new_bucket(debit, now_ms))


def _covered(bucket: Bucket, debit: Debit, as_of_ms: int) -> bool:
    if overdue(bucket, as_of_ms):
        return False
    if not _up_to_date(bucket, debit.limits):
        return False
    take = probe(bucket, as_of_ms)
    for name, tokens in debit.tokens.items():
        least, most = stored_range(debit.limits[name], tokens, take)
        if not least <= bucket.holdings[name].units <= most:
            return False
    return True


def _up_to_date(bucket: Bucket, limits: Mapping[str, Limit]) -> bool:
    for name, limit in limits.items():
        held = bucket.holdings.get(name)
        if held is None or (held.limit is not limit and held.limit != limit):
            return False
    return True


def _owes_too_much(bucket: Bucket, now_ms: int) -> bool:
    return any(
        effective(bucket, holding, now_ms) < -holding.limit.debt_units_max
        for holding in bucket.holdings.values()
    )


def plan_refill(bucket: Bucket, debit: Debit, now_ms: int) -> Refill:
    """The write that settles the refill and takes the debit, which has to be there."""
    settled_ms = max(now_ms, bucket.refilled_at_ms)
    elapsed_ms = settled_ms - bucket.refilled_at_ms
    changes: dict[str, HoldingChange] = {}
    for name, held in bucket.holdings.items():
        here = effective(bucket, held, now_ms)
        limit, tokens = debit.limits.get(name), debit.tokens.get(name)
        if limit is None and here == held.limit.capacity_units:
            # It is no longer limited, and an absent limit is a full one.
            changes[name] = HoldingChange(held, None)
            continue
        under = limit or held.limit
        balance = max(rescaled(here, held.limit, under), -under.debt_units_max)
        was_cut = balance != held.units + elapsed_ms * held.limit.units_per_ms
        units = balance - (tokens or 0) * under.units_per_token
        least = None if tokens is None else held.units - units
        changes[name] = HoldingChange(
            held,
            Holding(under, units, held.consumed + (tokens or 0)),
            stored_min=held.units if was_cut else least,
        )
    for name in debit.limits.keys() - bucket.holdings.keys():
        limit = debit.limits[name]
        full = Holding(limit, limit.capacity_units)
        changes[name] = HoldingChange(None, full.less(debit.tokens.get(name, 0)))
    holdings = {name: change.after for name, change in changes.items() if change.after}
    after = Bucket(settled_ms, expiry_epoch(settled_ms, holdings), holdings)
    return Refill(bucket, after, changes)


def _violations(step: Refill, debit: Debit, now_ms: int) -> tuple[Violation, ...]:
    lead_ms = step.after.refilled_at_ms - now_ms  # no refill before our clock shows that time
    violations: list[Violation] = []
    for name, tokens in debit.tokens.items():
        held = step.after.holdings[name]
        if held.units >= 0:
            continue
        limit = held.limit
        wait_ms = lead_ms + limit.filling_ms(-held.units) if tokens <= limit.capacity else None
        available = held.units // limit.units_per_token + tokens
        violations.append(Violation(debit.entity, debit.resource, name, tokens, available, wait_ms))
    return tuple(violations)


def expiry_epoch(now_ms: int, holdings: Mapping[str, Holding]) -> int:
    """When it is surely full again, if it is emptied now, plus `IDLE_SECS`."""
    longest_ms = max(
        (
            held.limit.filling_ms(held.limit.capacity_units - min(0, held.units))
            for held in holdings.values()
        ),
        default=0,
    )
    return -(-(now_ms + longest_ms) // 1000) + IDLE_SECS
