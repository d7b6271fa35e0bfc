"""Adjusts buckets to what was really used: takes more than was estimated, or gives back.

This is the fourth write path, `adjust`. The tokens are already used, so it is not denied. It takes
as much as is asked for, or as much as every bucket can bear without owing more than a bucket may.
The caller learns how much that was and holds no more, so that a release never gives back what was
not taken.

The store refuses the write if a bucket has other terms by now, has expired, or stores too little.
The refusal returns the bucket, and the write is planned from that and sent again.

None of this is idempotent, and nothing here sends again what may have been applied. `accounts`
and `records` decide how often it may be done.
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

RecordUpdate: TypeAlias = Callable[[Mapping[str, int]], Update]
"""The write to a lease's record for the same transaction, given what is being taken."""


class RecordConflict(msgspec.Struct, frozen=True):
    """The write to the record was refused and nothing was applied; ``item`` is the record."""

    item: Mapping[str, Any] | None


class _Part(msgspec.Struct, frozen=True):
    """The debit of one bucket; ``absent`` if the bucket was not there when it was read."""

    debit: Debit
    absent: bool = False

    def write(self, taken: Mapping[str, int], now_ms: int) -> Update | Put | None:
        """The write that takes at most ``taken`` of it; ``None`` if that is nothing."""
        asked = self.debit
        tokens = {name: min(count, taken[name]) for name, count in asked.tokens.items()}
        tokens = {name: count for name, count in tokens.items() if count}
        debit = Debit(asked.entity, asked.resource, asked.limits, tokens)
        if not tokens:
            return None
        return create(debit, Create(full_since(debit, now_ms))) if self.absent else adjust(debit)


async def adjust_buckets(
    cache: BucketCache, debits: Sequence[Debit], record_update: RecordUpdate | None = None
) -> dict[str, int] | RecordConflict:
    """Take these tokens as far as the buckets can bear; those below zero are given back.

    Returns how much was taken of each limit, from every bucket that has it. ``record_update`` is
    written in the same transaction, on a condition of its own.
    """
    asked = {name: count for debit in debits for name, count in debit.tokens.items()}
    taken = dict(asked)
    parts = [_Part(debit) for debit in debits if debit.tokens]
    for attempt in range(ATTEMPTS_MAX):
        await cache.pause(attempt)
        now_ms = cache.clock.now_ms()
        changes = [(one, write) for one in parts if (write := one.write(taken, now_ms))]
        reasons = await _send(cache, changes, record_update and record_update(taken))
        if reasons is None:
            cache.meter.debts_cut += taken != asked
            return taken
        if record_update is not None and reasons[-1].code is ReasonCode.CONDITION_FAILED:
            return RecordConflict(reasons[-1].item)
        cache.meter.lost_races += 1
        parts = [
            await _replan(cache, part, reason, taken)
            for (part, _), reason in zip(changes, reasons, strict=False)
        ]
    raise cache.contended(debits[0])


async def _send(
    cache: BucketCache, changes: Sequence[tuple[_Part, Update | Put]], record_update: Update | None
) -> Sequence[CancellationReason] | None:
    """Write all of it. If a condition failed: the reasons, ``record_update``'s last."""
    writes = [write for _, write in changes]
    if record_update is not None:
        writes.append(record_update)
    if not writes:
        return None
    try:
        if len(writes) > 1:
            await cache.store.transact(writes)
        elif isinstance(only := writes[0], Put):
            await cache.store.put(only)
        else:
            after = await cache.store.update(only)
            if record_update is None:
                cache.remember(changes[0][0].debit, bucket_of(after))
    except ConditionFailedError as refusal:
        return [CancellationReason(ReasonCode.CONDITION_FAILED, refusal.item)]
    except TransactionCancelledError as cancelled:
        if all(reason.code is not ReasonCode.CONDITION_FAILED for reason in cancelled.reasons):
            raise
        return cancelled.reasons
    return None


async def _replan(
    cache: BucketCache, part: _Part, reason: CancellationReason, taken: dict[str, int]
) -> _Part:
    """Plan the part from the bucket as it is; lowers ``taken`` to what that bucket can bear."""
    if reason.code is not ReasonCode.CONDITION_FAILED:
        return part
    bucket = bucket_of(reason.item)
    cache.remember(part.debit, bucket)
    now_ms = cache.read_clock_ms(part.debit, bucket)
    fresh = _in_terms_of(bucket, part.debit)
    for name, most in bearable(bucket, fresh.debit, now_ms).items():
        taken[name] = min(taken[name], most)
    if bucket is not None and _stores_too_little(bucket, fresh.debit, taken):
        with contextlib.suppress(ConditionFailedError):  # then another writer has changed it
            after = await cache.store.update(normal(fresh.debit, settle(bucket, now_ms)))
            cache.remember(fresh.debit, bucket_of(after))
    return fresh


def _in_terms_of(bucket: Bucket | None, debit: Debit) -> _Part:
    """The same tokens on the terms of the bucket as it is.

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
