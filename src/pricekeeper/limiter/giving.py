"""Changing what was taken: using more than was estimated, or giving back.

The fourth path, `adjust`: what it is about was used already, so it is not denied. It takes as much
as is asked for, or as much as every bucket can bear without owing more than a bucket may. The
caller learns how much that was and holds no more, so that a release never gives back what was not
taken.

The write is refused if a bucket counts in another unit by now, has expired, or stores too little.
The refusal brings the bucket along, and the write is sent again in terms of what is there.

None of this is idempotent, and nothing here sends again what may have been applied. Who may
do it how often is what `accounts` and `records` are about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.limiter.bucket import Bucket, Create, Debit, bearable, full_since, settle
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.writes import adjust, create, normal
from pricekeeper.storage import Put, Update

Beside: TypeAlias = Callable[[Mapping[str, int]], Update]
"""A write to go into the same transaction, given what is being taken."""


class Refused(msgspec.Struct, frozen=True):
    """The write beside was refused and nothing was applied; ``item`` is what was there."""

    item: Mapping[str, Any] | None


class _Part(msgspec.Struct, frozen=True):
    """What one bucket is to be charged; ``absent`` if it was not there when we looked."""

    debit: Debit
    absent: bool = False

    def write(self, taken: Mapping[str, int], now_ms: int) -> Update | Put | None:
        """The write that takes this much of it; ``None`` if that is nothing."""
        asked = self.debit
        tokens = {name: min(count, taken[name]) for name, count in asked.tokens.items()}
        tokens = {name: count for name, count in tokens.items() if count}
        debit = Debit(asked.entity, asked.resource, asked.limits, tokens)
        if not tokens:
            return None
        return create(debit, Create(full_since(debit, now_ms))) if self.absent else adjust(debit)


async def give(
    cache: BucketCache, debits: Sequence[Debit], beside: Beside | None = None
) -> dict[str, int] | Refused:
    """Take these tokens as far as the buckets can bear; those below zero are given back.

    The answer says how much was taken of each limit, from every bucket that has it. ``beside``
    is written in the same transaction, on a condition of its own.
    """
    asked = {name: count for debit in debits for name, count in debit.tokens.items()}
    taken = dict(asked)
    parts = [_Part(debit) for debit in debits if debit.tokens]
    for attempt in range(ATTEMPTS_MAX):
        await cache.pause(attempt)
        now_ms = cache.clock.now_ms()
        changes = [(one, write) for one in parts if (write := one.write(taken, now_ms))]
        reasons = await _send(cache, changes, beside and beside(taken))
        if reasons is None:
            cache.meter.debts_cut += taken != asked
            return taken
        if beside is not None and reasons[-1].code is ReasonCode.CONDITION_FAILED:
            return Refused(reasons[-1].item)
        cache.meter.lost_races += 1
        parts = [
            await _replanned(cache, part, reason, taken)
            for (part, _), reason in zip(changes, reasons, strict=False)
        ]
    raise cache.contended(debits[0])


async def _send(
    cache: BucketCache, changes: Sequence[tuple[_Part, Update | Put]], beside: Update | None
) -> Sequence[CancellationReason] | None:
    """Write all of it; why not, in order and ``beside`` last, if a condition was in the way."""
    writes = [write for _, write in changes]
    if beside is not None:
        writes.append(beside)
    if not writes:
        return None
    try:
        if len(writes) > 1:
            await cache.store.transact(writes)
        elif isinstance(only := writes[0], Put):
            await cache.store.put(only)
        else:
            after = await cache.store.update(only)
            if beside is None:
                cache.remember(changes[0][0].debit, bucket_of(after))
    except ConditionFailedError as refusal:
        return [CancellationReason(ReasonCode.CONDITION_FAILED, refusal.item)]
    except TransactionCancelledError as cancelled:
        if all(reason.code is not ReasonCode.CONDITION_FAILED for reason in cancelled.reasons):
            raise
        return cancelled.reasons
    return None


async def _replanned(
    cache: BucketCache, part: _Part, reason: CancellationReason, taken: dict[str, int]
) -> _Part:
    """The part in terms of what is there; ``taken`` is lowered to what that bucket can bear."""
    if reason.code is not ReasonCode.CONDITION_FAILED:
        return part
    bucket = bucket_of(reason.item)
    cache.remember(part.debit, bucket)
    now_ms = cache.read_clock_ms(part.debit, bucket)
    fresh = _in_terms_of(bucket, part.debit)
    for name, most in bearable(bucket, fresh.debit, now_ms).items():
        taken[name] = min(taken[name], most)
    if bucket is not None and _stores_too_little(bucket, fresh.debit, taken):
        with contextlib.suppress(ConditionFailedError):  # then somebody else has changed it
            after = await cache.store.update(normal(fresh.debit, settle(bucket, now_ms)))
            cache.remember(fresh.debit, bucket_of(after))
    return fresh


def _in_terms_of(bucket: Bucket | None, debit: Debit) -> _Part:
    """The same tokens for the bucket as it is, as far as it has to do with them.

    An absent bucket is a full one: nothing can be given back to it, but it can be taken from.
    A limit that the bucket no longer has limits nobody.
    """
    if bucket is None:
        used = {name: tokens for name, tokens in debit.tokens.items() if tokens > 0}
        return _Part(Debit(debit.entity, debit.resource, debit.limits, used), absent=True)
    limits = {name: holding.limit for name, holding in bucket.holdings.items()}
    tokens = {name: count for name, count in debit.tokens.items() if name in limits}
    return _Part(Debit(debit.entity, debit.resource, limits, tokens))


def _stores_too_little(bucket: Bucket, debit: Debit, taken: Mapping[str, int]) -> bool:
    """Whether the bucket can bear it only together with refill that nobody has settled."""
    return any(
        bucket.holdings[name].units - taken[name] * limit.units_per_token < -limit.debt_units_max
        for name, limit in ((name, debit.limits[name]) for name in debit.tokens)
        if taken[name] > 0
    )
