"""The upkeep of one entity's buckets by operators: list them, reset them, repair them.

All buckets of an entity are one partition, so none of this needs a scan of the table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from pricekeeper.errors import ConditionFailedError, UnreadableItemError
from pricekeeper.limiter.bucket import Bucket, Debit, Holding, HoldingChange, Refill, expiry_epoch
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.writes import refill_update
from pricekeeper.storage import Delete, Item, Key, Query, Write, query_items
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import SORT_KEY

CLOCKS_APART_MS_MAX: Final = 60_000
"""A bucket refilled further in the future was refilled by a clock that had leapt."""


RESET_AT_ONCE: Final = 90
"""Buckets in one transaction, which has room for more writes."""


Commit: TypeAlias = Callable[[list[str], Sequence[Write]], Awaitable[None]]


class Repaired(msgspec.Struct, frozen=True):
    """A bucket that was refilled in the future, ``ahead_ms`` after this clock's time."""

    entity: str
    resource: str
    ahead_ms: int


async def reset(
    cache: BucketCache, entity: str, resource: str | None, commit: Commit | None
) -> list[str]:
    """Remove the buckets of the entity, or one, in whole transactions; returns their resources."""
    found = [item[SORT_KEY] async for item in _items(cache, entity)]
    if resource is not None:
        found = [one for one in found if one == resource]
    if commit is None:
        commit = partial(_transact, cache)
    for start in range(0, max(1, len(found)), RESET_AT_ONCE):
        some = found[start : start + RESET_AT_ONCE]
        keys = [Key(entity, one) for one in some]
        try:
            await commit(some, [Delete(RATE_BUCKETS, key) for key in keys])
        finally:  # also if it is not known whether they are gone
            for key in keys:
                cache.remember(key, None)
    return found


async def _transact(cache: BucketCache, _: list[str], operations: Sequence[Write]) -> None:
    if operations:
        await cache.store.transact(operations)


async def repair(cache: BucketCache, entity: str, *, dry_run: bool) -> list[Repaired]:
    """Bring buckets that were refilled in the future back to now; returns those buckets."""
    found = []
    async for item in _items(cache, entity):
        try:
            bucket = bucket_of(item)
        except UnreadableItemError:
            continue  # it has been reported; a reset removes it
        now_ms = cache.clock.now_ms()
        if bucket is not None and is_ahead(bucket, now_ms):
            found.append(Repaired(entity, item[SORT_KEY], bucket.refilled_at_ms - now_ms))
            if not dry_run:
                await _bring_back(cache, Debit(Key(entity, item[SORT_KEY]), {}, {}), bucket)
    return found


async def _bring_back(cache: BucketCache, debit: Debit, bucket: Bucket | None) -> None:
    for attempt in range(ATTEMPTS_MAX):
        await cache.pause(attempt)
        now_ms = cache.clock.now_ms()
        if bucket is None or not is_ahead(bucket, now_ms):
            return  # another writer has brought it back, or removed it
        try:
            after = await cache.store.update(refill_update(debit, brought_back(bucket, now_ms)))
        except ConditionFailedError as refusal:
            bucket = bucket_of(refusal.item)
        else:
            cache.remember(debit.key, bucket_of(after))
            return
    raise cache.contended(debit.key)


def _items(cache: BucketCache, entity: str) -> AsyncIterator[Item]:
    return query_items(cache.store, Query(RATE_BUCKETS, entity))


def is_ahead(bucket: Bucket, now_ms: int) -> bool:
    """Whether the bucket was refilled further in the future than clocks may differ."""
    return bucket.refilled_at_ms - now_ms > CLOCKS_APART_MS_MAX


def brought_back(bucket: Bucket, now_ms: int) -> Refill:
    """The write that lets a bucket which was refilled in the future refill from now on.

    It adds no refill. A balance below zero becomes zero: it may be a debt, or refill by the clock
    that had leapt, not settled yet.
    """
    holdings = {
        name: Holding(held.limit, min(max(0, held.units), held.limit.capacity_units), held.consumed)
        for name, held in bucket.holdings.items()
    }
    after = Bucket(now_ms, expiry_epoch(now_ms, holdings), holdings)
    changes = {name: HoldingChange(bucket.holdings[name], held) for name, held in holdings.items()}
    return Refill(bucket, after, changes)
