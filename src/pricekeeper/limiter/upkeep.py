"""The upkeep of one entity's buckets by operators: list them, reset them, repair them.

All buckets of an entity are one partition, so none of this needs a scan of the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from pricekeeper.errors import ConditionFailedError, UnreadableItemError
from pricekeeper.limiter.bucket import Bucket, Debit, brought_back, is_ahead
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.limiter.writes import normal
from pricekeeper.storage import ITEM_EXISTS, Delete, Item, Query, query_items
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import SORT_KEY


class Repaired(msgspec.Struct, frozen=True):
    """A bucket that was refilled in the future, ``ahead_ms`` after this clock's time."""

    entity: str
    resource: str
    ahead_ms: int


async def reset(cache: BucketCache, entity: str, resource: str | None) -> list[str]:
    """Remove the buckets of the entity, or one; returns the resources that had a bucket."""
    resources = [resource] if resource else [item[SORT_KEY] async for item in _items(cache, entity)]
    reset = []
    for one in resources:
        operation = Delete(RATE_BUCKETS, bucket_key(entity, one), ITEM_EXISTS)
        try:
            await cache.store.delete(operation)
        except ConditionFailedError:
            pass  # there is none, and an absent bucket is a full one
        else:
            reset.append(one)
        cache.remember(Debit(entity, one, {}, {}), None)
    return reset


async def repair(cache: BucketCache, entity: str, *, dry_run: bool) -> list[Repaired]:
    """Bring buckets that were refilled in the future back to now; returns those buckets."""
    found = []
    async for resource, bucket in _buckets(cache, entity):
        ahead_ms = bucket.refilled_at_ms - cache.clock.now_ms()
        if is_ahead(bucket, cache.clock.now_ms()):
            found.append(Repaired(entity, resource, ahead_ms))
            if not dry_run:
                await _bring_back(cache, Debit(entity, resource, {}, {}), bucket)
    return found


async def _bring_back(cache: BucketCache, debit: Debit, bucket: Bucket | None) -> None:
    for attempt in range(ATTEMPTS_MAX):
        await cache.pause(attempt)
        now_ms = cache.clock.now_ms()
        if bucket is None or not is_ahead(bucket, now_ms):
            return  # another writer has brought it back, or removed it
        try:
            after = await cache.store.update(normal(debit, brought_back(bucket, now_ms)))
        except ConditionFailedError as refusal:
            bucket = bucket_of(refusal.item)
        else:
            cache.remember(debit, bucket_of(after))
            return
    raise cache.contended(debit)


async def _buckets(cache: BucketCache, entity: str) -> AsyncIterator[tuple[str, Bucket]]:
    """Every bucket of the entity that can be read, by resource."""
    async for item in _items(cache, entity):
        with contextlib.suppress(UnreadableItemError):  # it has been reported; a reset removes it
            bucket = bucket_of(item)
            if bucket is not None:
                yield item[SORT_KEY], bucket


def _items(cache: BucketCache, entity: str) -> AsyncIterator[Item]:
    """Every item of the entity."""
    return query_items(cache.store, Query(RATE_BUCKETS, entity))
