"""Leases with a name: recorded beside the buckets, so that every step happens exactly once.

A caller that names a lease can repeat each step, at any instance, until it gets an answer. The
record is written, marked or closed in the same transaction that moves the tokens, on the
condition that this has not happened yet. A record that nobody closes expires and keeps what it
holds: nothing is given back for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.errors import InvalidValueError, NotFoundError
from pricekeeper.limiter.accounts import (
    ADJUSTMENTS_MAX,
    another_adjustment,
    capacities_of,
    check_delta,
    check_held,
    debits_of,
    released_already,
    too_many_adjustments,
)
from pricekeeper.limiter.adjusting import RecordConflict, RecordUpdate, adjust_buckets
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.items import ADJUSTMENTS, HELD, RELEASED, LeaseRecord, lease_key, lease_of
from pricekeeper.storage import ITEM_EXISTS, Action, Add, Condition, Set, Update, attr
from pricekeeper.storage.tables import RATE_BUCKETS

LEASE_TTL_SECS: Final = 24 * 3600
"""How long a lease can be adjusted and released, and its name can't be granted again."""


async def find_lease(cache: BucketCache, entity: str, lease_id: str) -> LeaseRecord:
    """Read the lease of that name; raises `NotFoundError` if there is none."""
    item = await cache.store.get(RATE_BUCKETS, lease_key(entity, lease_id))
    return _existing(entity, lease_id, item)


class RecordedAccount:
    """The account of a lease with a name; it knows the record as it was last seen."""

    def __init__(self, cache: BucketCache, record: LeaseRecord) -> None:
        self._cache = cache
        self._record = record
        self._one_at_a_time = asyncio.Lock()

    @property
    def held(self) -> Mapping[str, int]:
        return {} if self._record.released else dict(self._record.held)

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, or give some back; applied once for the same id, from any instance."""
        async with self._one_at_a_time:
            await self._change(delta, adjustment_id or str(uuid.uuid4()))

    async def release(self) -> None:
        """Give everything back; applied once, from any instance."""
        async with self._one_at_a_time:
            await self._release()

    async def _change(self, delta: Mapping[str, int], change_id: str) -> None:
        mark = _mark(change_id, delta)
        for attempt in range(ATTEMPTS_MAX):
            record = self._record
            if _is_known(record, mark, change_id):
                return
            if record.released:
                raise released_already()
            capacities = capacities_of(record.debits({}))
            check_delta(delta, capacities)
            try:
                check_held(delta, record.held, capacities)
            except InvalidValueError:
                if attempt > 0:
                    raise
                self._record = await find_lease(self._cache, record.entity, record.lease_id)
                continue  # others may have changed what it holds
            if len(record.adjustments) >= ADJUSTMENTS_MAX:
                raise too_many_adjustments()
            taken = await self._write(
                delta, lambda some: _adjustment_update(self._record, some, mark)
            )
            if taken is not None:
                held = {name: record.held.get(name, 0) + n for name, n in taken.items()}
                self._record = msgspec.structs.replace(
                    record, held=record.held | held, adjustments=record.adjustments | {mark}
                )
                return
        raise self._cache.contended(record.debits({})[0])

    async def _release(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            record = self._record
            if record.released:
                return
            back = {name: -tokens for name, tokens in record.held.items()}
            if await self._write(back, lambda _: _release_update(self._record)) is not None:
                self._record = msgspec.structs.replace(record, released=True)
                return
        raise self._cache.contended(record.debits({})[0])

    async def _write(
        self, delta: Mapping[str, int], record_update: RecordUpdate
    ) -> Mapping[str, int] | None:
        """Move the tokens and mark the record; returns how many were taken of each limit.

        ``None`` if another has changed the record; then ``_record`` is what it is now.
        """
        record = self._record
        taken = await adjust_buckets(
            self._cache, debits_of(record.debits({}), delta), record_update
        )
        if not isinstance(taken, RecordConflict):
            return {name: taken.get(name, tokens) for name, tokens in delta.items()}
        self._record = _existing(record.entity, record.lease_id, taken.item)
        return None


def _mark(change_id: str, delta: Mapping[str, int]) -> str:
    """An adjustment as the record keeps it: its id, and a digest of its delta."""
    encoded = msgspec.json.encode(sorted(delta.items()))
    return f"{change_id}/{hashlib.sha256(encoded).hexdigest()[:16]}"


def _is_known(record: LeaseRecord, mark: str, change_id: str) -> bool:
    """Whether this adjustment was applied; raises if another one was, under the same id."""
    if mark in record.adjustments:
        return True
    if any(known.startswith(change_id) for known in record.adjustments):
        raise another_adjustment()
    return False


def _adjustment_update(record: LeaseRecord, taken: Mapping[str, int], mark: str) -> Update:
    actions: list[Action] = [Add(ADJUSTMENTS, frozenset({mark}))]
    actions += [Add(HELD + name, tokens) for name, tokens in taken.items()]
    return Update(RATE_BUCKETS, record.key, tuple(actions), _unchanged(record))


def _release_update(record: LeaseRecord) -> Update:
    return Update(RATE_BUCKETS, record.key, (Set(RELEASED, value=True),), _unchanged(record))


def _unchanged(record: LeaseRecord) -> Condition:
    """The condition that the lease is open and was not adjusted since it was read."""
    seen = attr(ADJUSTMENTS)
    same = seen.eq(record.adjustments) if record.adjustments else seen.absent()
    return ITEM_EXISTS & attr(RELEASED).absent() & same


def _existing(entity: str, lease_id: str, item: Mapping[str, Any] | None) -> LeaseRecord:
    record = lease_of(entity, lease_id, item)
    if record is None:
        raise NotFoundError("lease")
    return record
