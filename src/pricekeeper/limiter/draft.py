"""One bucket's part of a write: adjustments first, then what acquires take. Pure.

All commands that wait for a bucket go into one write, which has to mean the same as one write for
each of them. So the adjustments are applied to the bucket as it was seen, and the acquires are
planned on what that leaves. The conditions of the plan are then moved back by the adjustments,
because the store compares them with the balance before both.

That is still one of the four operations of `writes`: an adjustment if nobody acquires, else what is
planned. An adjustment that stored balances can't bear without refill that nobody has settled goes
into a `Refill`, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    HoldingChange,
    Plan,
    Refill,
    TakeOnly,
    bearable,
    effective,
    expected,
    new_bucket,
    plan,
    settle,
)
from pricekeeper.limiter.limits import Limit
from pricekeeper.limiter.writes import adjust_update, create_put, refill_update, take_update
from pricekeeper.storage import Put, Update


class BucketDraft:
    """What one write is to do to one bucket."""

    def __init__(
        self, target: Debit, bucket: Bucket | None, *, seen: bool, is_fresh: bool, reading_ms: int
    ) -> None:
        """Draft for the bucket of ``target``, as it is or was.

        ``seen`` says whether anything is known of it; if so, ``None`` is an absent bucket.
        ``is_fresh`` says whether this batch has read it: only then may an adjustment
        be cut to what the bucket can bear.
        """
        self._target = target
        self._bucket = bucket
        self._seen = seen
        self._is_fresh = is_fresh
        self._now_ms = reading_ms
        self._limits: dict[str, Limit] = {}
        """Of the adjustments: the bucket's own terms, if they are known."""
        self._adjusted: dict[str, int] = {}
        self._debit: Debit | None = None
        if bucket is not None:
            self._limits = {name: held.limit for name, held in bucket.holdings.items()}

    def can_adjust(self, debit: Debit) -> bool:
        """Whether it counts in the terms of the adjustments that are here already."""
        return self._bucket is not None or all(
            self._limits.get(name, limit) == limit for name, limit in debit.limits.items()
        )

    def bearable(self, debit: Debit) -> dict[str, int]:
        """How much more of this can be taken before a debt is as deep as it may be."""
        if not self._is_fresh:
            return dict(debit.tokens)
        here = self._in_own_terms(debit)
        return bearable(self._after_adjustments(), here, self._now_ms)

    def adjust(self, debit: Debit, taken: Mapping[str, int]) -> None:
        """Add an adjustment, of which at most ``taken`` is taken."""
        here = self._in_own_terms(debit)
        self._limits = here.limits | self._limits
        for name, count in here.tokens.items():
            self._adjusted[name] = self._adjusted.get(name, 0) + min(count, taken[name])

    def plan(self, debit: Debit) -> Plan:
        """The plan for what acquires take after the adjustments that are here."""
        return plan(self._after_adjustments(), debit, self._now_ms)

    def take(self, debit: Debit) -> None:
        """Add what acquires take, which `plan` has not denied."""
        self._debit = debit

    def operation(self) -> tuple[Put | Update, Bucket | None] | None:
        """What to write, and the bucket after it; ``None`` if there is nothing to write."""
        adjusted = {name: count for name, count in self._adjusted.items() if count}
        adjustment = Debit(self._target.entity, self._target.resource, self._limits, adjusted)
        if self._debit is None:
            return self._adjustment_operation(adjustment) if adjusted else None
        base = self._after_adjustments()
        step = plan(base, self._debit, self._now_ms)
        if isinstance(step, Denial):
            raise TypeError("what is written was planned before")
        if isinstance(step, TakeOnly) and base and _needs_refill(base, adjustment, self._now_ms):
            step = settle(base, self._now_ms, self._debit)
        after = expected(step, base, self._debit)
        if self._bucket is None:
            if after is None:
                raise TypeError("a bucket that was never seen is not planned for")
            return create_put(self._debit, Create(after)), after
        if isinstance(step, Refill):
            return refill_update(self._debit, moved_back(step, self._bucket, adjustment)), after
        if isinstance(step, Create):
            raise TypeError("a bucket that exists is not made")
        return take_update(self._debit, step, adjustment if adjusted else None), after

    def _adjustment_operation(self, adjustment: Debit) -> tuple[Put | Update, Bucket | None]:
        base = self._after_adjustments()
        if base is None:
            return adjust_update(adjustment), None
        if self._bucket is None:
            return create_put(adjustment, Create(base)), base
        if _needs_refill(base, adjustment, self._now_ms):
            step = settle(base, self._now_ms)
            return refill_update(adjustment, moved_back(step, self._bucket, adjustment)), step.after
        return adjust_update(adjustment), base

    def _after_adjustments(self) -> Bucket | None:
        """The bucket after the adjustments; ``None`` if it is absent, or was never seen."""
        bucket = self._bucket
        if bucket is None:
            if not self._seen or not self._adjusted:
                return None
            target = self._target
            debit = Debit(target.entity, target.resource, self._limits, self._adjusted)
            return new_bucket(debit, self._now_ms)
        return bucket.less(self._adjusted) if self._adjusted else bucket

    def _in_own_terms(self, debit: Debit) -> Debit:
        """The same tokens on the terms of the bucket as it is.

        An absent bucket is a full one: nothing can be given back to it, but it can be taken from.
        A limit that the bucket no longer has limits nobody.
        """
        limits, tokens = debit.limits, debit.tokens
        if self._bucket is not None:
            limits = self._limits
            tokens = {name: count for name, count in tokens.items() if name in limits}
        elif self._seen:
            tokens = {name: count for name, count in tokens.items() if count > 0}
        return Debit(debit.entity, debit.resource, limits, tokens)


def total_of(debits: Sequence[Debit]) -> Debit:
    """What several acquires take from one bucket, together."""
    first = debits[0]
    if len(debits) == 1:
        return first
    tokens: dict[str, int] = {}
    for debit in debits:
        for name, count in debit.tokens.items():
            tokens[name] = tokens.get(name, 0) + count
    return first.with_tokens(tokens)


def _needs_refill(base: Bucket, adjustment: Debit, now_ms: int) -> bool:
    """Whether a debt is within its bound only together with refill that nobody has settled."""
    some = False
    for name, count in adjustment.tokens.items():
        held, bound = base.holdings[name], -adjustment.limits[name].debt_units_max
        if count > 0 and held.units < bound:
            if effective(base, held, now_ms) < bound:
                return False
            some = True
    return some


def moved_back(step: Refill, bucket: Bucket, adjustment: Debit) -> Refill:
    """A plan for the bucket after an adjustment, as one for the bucket before it.

    A limit that is only adjusted has to stay within the bound of a debt.
    """
    changes = {}
    for name, change in step.changes.items():
        before, after, least = bucket.holdings.get(name), change.after, change.stored_min
        if before is not None and (count := adjustment.tokens.get(name)):
            if least is not None:
                least += count * before.limit.units_per_token
            elif after is not None and count > 0:
                least = before.units - after.units - after.limit.debt_units_max
        changes[name] = HoldingChange(before, after, least)
    return Refill(bucket, step.after, changes)
