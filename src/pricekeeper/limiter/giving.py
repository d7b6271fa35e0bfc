"""Changing what was taken: using more than was estimated, or giving back.

The fourth path, `adjust`: it asks for no balance, so it can't be denied. It can be refused
only because the bucket counts in another unit by now, or because the bucket has expired. The
refusal tells which, and it is sent again in terms of what is there.

None of this is idempotent, and nothing here sends again what may have been applied. Who may
do it how often is what `accounts` and `records` are about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.limiter.bucket import Bucket, Create, Draw, full_since
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.till import ATTEMPTS_MAX, Till
from pricekeeper.limiter.writes import adjust, create
from pricekeeper.storage import Put, Update

_Change: TypeAlias = tuple[Draw, Update | Put]


class Refused(msgspec.Struct, frozen=True):
    """The write beside was refused and nothing was applied; ``item`` is what was there."""

    item: Mapping[str, Any] | None


async def give(till: Till, draws: Sequence[Draw], beside: Update | None = None) -> Refused | None:
    """Take these tokens whatever is there; those below zero are given back.

    ``beside`` is written in the same transaction, on a condition of its own.
    """
    changes: list[_Change] = [(draw, adjust(draw)) for draw in draws if draw.tokens]
    for attempt in range(ATTEMPTS_MAX):
        await till.pause(attempt)
        if not changes and beside is None:
            return None
        reasons = await _send(till, changes, beside)
        if reasons is None:
            return None
        if beside is not None and reasons[-1].code is ReasonCode.CONDITION_FAILED:
            return Refused(reasons[-1].item)
        till.meter.lost_races += 1
        changes = _replanned(changes, reasons, till.clock.now_ms())
    raise till.contended(draws[0])


async def _send(
    till: Till, changes: Sequence[_Change], beside: Update | None
) -> Sequence[CancellationReason] | None:
    """Write all of it; why not, in order and ``beside`` last, if a condition was in the way."""
    writes = [write for _, write in changes]
    if beside is not None:
        writes.append(beside)
    try:
        if len(writes) > 1:
            await till.store.transact(writes)
        elif isinstance(only := writes[0], Put):
            await till.store.put(only)
        else:
            after = await till.store.update(only)
            if beside is None:
                till.remember(changes[0][0], bucket_of(after))
    except ConditionFailedError as refusal:
        return [CancellationReason(ReasonCode.CONDITION_FAILED, refusal.item)]
    except TransactionCancelledError as cancelled:
        if all(reason.code is not ReasonCode.CONDITION_FAILED for reason in cancelled.reasons):
            raise
        return cancelled.reasons
    return None


def _replanned(
    changes: Sequence[_Change], reasons: Sequence[CancellationReason], now_ms: int
) -> list[_Change]:
    fresh: list[_Change] = []
    for change, reason in zip(changes, reasons, strict=False):
        if reason.code is not ReasonCode.CONDITION_FAILED:
            fresh.append(change)
        elif replanned := _in_terms_of(bucket_of(reason.item), change[0], now_ms):
            fresh.append(replanned)
    return fresh


def _in_terms_of(bucket: Bucket | None, draw: Draw, now_ms: int) -> _Change | None:
    """The same tokens for the bucket as it is; ``None`` if it has nothing to do with them.

    An absent bucket is a full one: nothing can be given back to it, but it can be taken from.
    A limit that the bucket no longer has limits nobody.
    """
    if bucket is None:
        used = {name: tokens for name, tokens in draw.tokens.items() if tokens > 0}
        draw = Draw(draw.entity, draw.resource, draw.limits, used)
        return (draw, create(draw, Create(full_since(draw, now_ms)))) if used else None
    limits = {name: holding.limit for name, holding in bucket.holdings.items()}
    tokens = {name: count for name, count in draw.tokens.items() if name in limits}
    draw = Draw(draw.entity, draw.resource, limits, tokens)
    return (draw, adjust(draw)) if tokens else None
