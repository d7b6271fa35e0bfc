"""Leases with a name: recorded beside the buckets, so that every step happens exactly once.

A caller who names a lease can repeat each step, to any instance, until it gets an answer: the
record is written, marked or closed in the same transaction that moves the tokens, on the
condition that this has not happened yet. A record that nobody closes expires and keeps what it
holds: nothing is given back for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.errors import NotFoundError
from pricekeeper.limiter.accounts import (
    ADJUSTMENTS_MAX,
    check_delta,
    check_held,
    draws_of,
    lacking,
    released_already,
    too_many_adjustments,
)
from pricekeeper.limiter.giving import Refused, give
from pricekeeper.limiter.items import ADJUSTMENTS, HELD, RELEASED, LeaseRecord, lease_key, lease_of
from pricekeeper.limiter.till import ATTEMPTS_MAX, Till
from pricekeeper.storage import ITEM_EXISTS, Action, Add, Condition, Set, Update, attr
from pricekeeper.storage.tables import RATE_BUCKETS

LEASE_TTL_SECS: Final = 24 * 3600
"""How long a lease can be adjusted and released, and its name not be granted again."""


async def find(till: Till, entity: str, lease_id: str) -> LeaseRecord:
    """The lease of that name."""
    item = await till.store.get(RATE_BUCKETS, lease_key(entity, lease_id))
    return _existing(entity, lease_id, item)


class RecordedAccount:
    """The account of a lease with a name; it knows the record as it was last seen."""

    def __init__(self, till: Till, record: LeaseRecord) -> None:
        self._till = till
        self._record = record
        self._one_at_a_time = asyncio.Lock()

    @property
    def held(self) -> Mapping[str, int]:
        return {} if self._record.released else dict(self._record.held)

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, or give some back; applied once for the same id, whoever sends it."""
        async with self._one_at_a_time:
            await self._change(delta, adjustment_id or str(uuid.uuid4()))

    async def release(self) -> None:
        """Give everything back; applied once, whoever sends it."""
        async with self._one_at_a_time:
            await self._release()

    async def _change(self, delta: Mapping[str, int], change_id: str) -> None:
        for attempt in range(ATTEMPTS_MAX):
            record = self._record
            if change_id in record.adjustments:
                return
            if record.released:
                raise released_already()
            limits = {name for terms in record.terms.values() for name in terms}
            check_delta(delta, limits)
            if attempt == 0 and lacking(delta, record.held):
                self._record = await find(self._till, record.entity, record.lease_id)
                continue  # others may have added to it
            check_held(delta, record.held)
            if len(record.adjustments) >= ADJUSTMENTS_MAX:
                raise too_many_adjustments()
            if await self._write(delta, _adjusted(record, delta, change_id)):
                held = {name: record.held.get(name, 0) + n for name, n in delta.items()}
                self._record = msgspec.structs.replace(
                    record,
                    held=record.held | held,
                    adjustments=record.adjustments | {change_id},
                )
                return
        raise self._till.contended(record.draws({})[0])

    async def _release(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            record = self._record
            if record.released:
                return
            back = {name: -tokens for name, tokens in record.held.items()}
            if await self._write(back, _released(record)):
                self._record = msgspec.structs.replace(record, released=True)
                return
        raise self._till.contended(record.draws({})[0])

    async def _write(self, delta: Mapping[str, int], beside: Update) -> bool:
        """Move the tokens and mark the record; if that is refused, we know the record better."""
        record = self._record
        refused = await give(self._till, draws_of(record.draws({}), delta), beside)
        if not isinstance(refused, Refused):
            return True
        self._record = _existing(record.entity, record.lease_id, refused.item)
        return False


def _adjusted(record: LeaseRecord, delta: Mapping[str, int], adjustment_id: str) -> Update:
    actions: list[Action] = [Add(ADJUSTMENTS, frozenset({adjustment_id}))]
    condition = _open() & ~attr(ADJUSTMENTS).contains(adjustment_id)
    condition &= attr(ADJUSTMENTS).absent() | attr(ADJUSTMENTS).size("<", ADJUSTMENTS_MAX)
    for name, tokens in delta.items():
        actions.append(Add(HELD + name, tokens))
        if tokens < 0:
            condition &= attr(HELD + name).ge(-tokens)
    return Update(RATE_BUCKETS, record.key, tuple(actions), condition)


def _released(record: LeaseRecord) -> Update:
    seen = attr(ADJUSTMENTS)
    unchanged = seen.eq(record.adjustments) if record.adjustments else seen.absent()
    return Update(RATE_BUCKETS, record.key, (Set(RELEASED, value=True),), _open() & unchanged)


def _open() -> Condition:
    return ITEM_EXISTS & attr(RELEASED).absent()


def _existing(entity: str, lease_id: str, item: Mapping[str, Any] | None) -> LeaseRecord:
    record = lease_of(entity, lease_id, item)
    if record is None:
        raise NotFoundError("lease")
    return record
