"""A first, naive version of ADR-115, with its twelve losses.

Each check of `test_losses` also runs on this limiter and must fail there. A number in a comment is
the number of the loss.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pricekeeper.clock import Clock
from pricekeeper.errors import ConditionFailedError, OutcomeUnknownError
from pricekeeper.limiter import Limit
from pricekeeper.limiter.limits import limit_of
from pricekeeper.storage import ITEM_ABSENT, Add, Item, Key, Put, Set, Store, Update, attr
from pricekeeper.storage.tables import RATE_BUCKETS

_T = TypeVar("_T")
MILLI = 1_000


@dataclass
class NaiveDenial:
    """The bucket has too few tokens."""

    retry_after_ms: int | None
    granted: bool = False


@dataclass
class NaiveLease:
    """Tokens that were taken."""

    limiter: "NaiveLimiter"
    key: Key
    held: dict[str, int]
    granted: bool = True

    async def adjust(
        self, delta: Mapping[str, int], *, adjustment_id: uuid.UUID | None = None
    ) -> None:
        del adjustment_id  # 6: the same adjustment again is another one
        await self.limiter.add(self.key, delta)
        self.held = {name: n + delta.get(name, 0) for name, n in self.held.items()}

    async def release(self) -> None:
        await self.limiter.add(self.key, {name: -n for name, n in self.held.items()})


class NaiveLimiter:
    """Read, then Normal, then Retry if that was refused; balances in thousandths."""

    def __init__(self, store: Store, *, clock: Clock, limits: Sequence[Limit]) -> None:
        self._store = store
        self._clock = clock
        self._limits = {limit.name: limit for limit in limits}

    async def try_acquire(
        self, entity: str, resource: str, consume: Mapping[str, int]
    ) -> NaiveLease | NaiveDenial:
        key = Key(f"naive-{entity}", resource)
        now_ms = self._clock.now_ms()
        item = await self._store.get(RATE_BUCKETS, key)
        if item is None:
            return await self._create(key, consume, now_ms)
        elapsed_ms = now_ms - item["rf"]
        refills = {}
        for name, tokens in consume.items():
            limit = limit_of(name, item.get(f"lm.{name}", "1/1/1"))  # 7: the old terms
            refill = elapsed_ms * limit.refill_amount * MILLI // limit.refill_period_ms  # 2
            stored = item.get(f"tk.{name}", -(10**9))  # 8: a limit it lacks has nothing
            there = min(stored + max(0, refill), limit.capacity * MILLI)
            if there < tokens * MILLI:
                missing = tokens * MILLI - there  # 9: ignores the capacity
                seconds = missing * limit.refill_period_ms // (limit.refill_amount * MILLI * 1_000)
                return NaiveDenial(seconds * 1_000)  # 10: in whole seconds
            refills[name] = max(0, refill)  # 12: beyond the capacity
        for name in self._limits.keys() - consume.keys():
            if f"lm.{name}" in item:
                limit = limit_of(name, item[f"lm.{name}"])
                refill = elapsed_ms * limit.refill_amount * MILLI // limit.refill_period_ms
                refills[name] = max(0, refill)
        try:
            await self._normal(key, consume, refills, item["rf"])
        except ConditionFailedError:
            return await self._retry(key, consume)
        return NaiveLease(self, key, dict(consume))

    @asynccontextmanager
    async def acquire(
        self, entity: str, resource: str, consume: Mapping[str, int]
    ) -> AsyncIterator[NaiveLease]:
        lease = await self.try_acquire(entity, resource, consume)
        assert isinstance(lease, NaiveLease)
        try:
            yield lease
        except Exception:  # 5: a cancellation is none
            await lease.release()
            raise

    async def add(self, key: Key, delta: Mapping[str, int]) -> None:
        """Adjust without looking at the balance."""
        actions = tuple(Add(f"tk.{name}", -n * MILLI) for name, n in delta.items())  # 4
        await self._persistently(lambda: self._store.update(Update(RATE_BUCKETS, key, actions)))

    async def close(self) -> None:
        """Do nothing."""
        await asyncio.sleep(0)

    async def _create(
        self, key: Key, consume: Mapping[str, int], now_ms: int
    ) -> NaiveLease | NaiveDenial:
        item: Item = {"PK": key.pk, "SK": key.sk, "rf": now_ms}
        for name, limit in self._limits.items():
            item[f"lm.{name}"] = limit.terms
            item[f"tk.{name}"] = (limit.capacity - consume.get(name, 0)) * MILLI
        try:
            await self._store.put(Put(RATE_BUCKETS, item, ITEM_ABSENT))
        except ConditionFailedError:
            return NaiveDenial(0)  # 11: another instance was quicker
        return NaiveLease(self, key, dict(consume))

    async def _normal(
        self, key: Key, consume: Mapping[str, int], refills: Mapping[str, int], expected_ms: int
    ) -> None:
        stamp = Set("rf", self._clock.now_ms())  # 1: a later reading; 3: or an earlier one
        adds = [
            Add(f"tk.{name}", refill - consume.get(name, 0) * MILLI)
            for name, refill in refills.items()
        ]
        update = Update(RATE_BUCKETS, key, (stamp, *adds), attr("rf").eq(expected_ms))
        await self._persistently(lambda: self._store.update(update))

    async def _retry(self, key: Key, consume: Mapping[str, int]) -> NaiveLease | NaiveDenial:
        actions = tuple(Add(f"tk.{name}", -n * MILLI) for name, n in consume.items())
        condition = attr("rf").exists()
        for name, tokens in consume.items():
            condition &= attr(f"tk.{name}").ge(tokens * MILLI)
        try:
            await self._store.update(Update(RATE_BUCKETS, key, actions, condition))
        except ConditionFailedError:
            return NaiveDenial(0)  # 11: refilled by another, but not enough as stored
        return NaiveLease(self, key, dict(consume))

    async def _persistently(self, send: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await send()
        except OutcomeUnknownError:
            return await send()  # 6: it may have been applied
