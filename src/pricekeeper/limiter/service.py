"""The limiter: what others may call.

::

    limiter = Limiter(store, clock=clock, limits=[Limit.per_minute("tpm", 100_000)])
    lease = await limiter.acquire("org-1/app-7", "premium", {"tpm": 1200})
    reply = call_model()
    await lease.adjust({"tpm": reply.total_tokens - 1200})
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Self, Unpack

from pricekeeper.clock import Clock
from pricekeeper.errors import PriceKeeperError, RateLimitExceededError
from pricekeeper.limiter import upkeep
from pricekeeper.limiter.bucket import Debit, Denial, LimitStatus
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.bucket_lines import BucketLine
from pricekeeper.limiter.items import bucket_of, check_key_part
from pricekeeper.limiter.leases import Lease, Leases
from pricekeeper.limiter.limits import check_whole
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.requests import (
    AHEAD_MAX,
    HOLD_MS_MAX,
    AcquireOptions,
    CheckedRequest,
    Limits,
    check_request,
    limits_of,
    parse_id,
)
from pricekeeper.limiter.taker import HOLD_MS, Taker
from pricekeeper.limiter.upkeep import Commit, Repaired
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import RATE_BUCKETS


class PreparedRequest:
    """A request for one bucket, checked once and made many times. Its tokens are spent for good."""

    __slots__ = ("_ahead", "_debit", "_taker")

    def __init__(self, taker: Taker, debit: Debit, ahead: int) -> None:
        self._taker = taker
        self._debit = debit
        self._ahead = ahead

    def take_at_once(self) -> bool:
        return self._taker.take_at_once(self._debit)

    async def take(self) -> Mapping[str, LimitStatus] | Denial:
        answer = await self._taker.take((self._debit,), ahead=self._ahead)
        if not answer.denied:
            self._taker.cache.meter.granted += 1
            return answer.statuses
        self._taker.cache.meter.denied += 1
        return Denial(tuple(answer.denied[0].violations))

    def limits(self) -> Mapping[str, LimitStatus]:
        """The limits by this instance's cache; tokens in a block count as taken."""
        return self._taker.recall([self._debit]).statuses


class Limiter:
    """Token buckets in a store, shared by any number of instances.

    ``limits`` are the same for every bucket, or a function of entity and resource, called at every
    acquire. Instances that share a bucket serve requests from blocks for ``hold_ms``, so its bound
    is ``capacity + rate * (t + 2 * skew + hold_ms)``.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        limits: Limits = (),
        hold_ms: int = HOLD_MS,
        meter: LimiterMeter | None = None,
        jitter: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.meter = meter or LimiterMeter()
        self._limits = limits
        self._cache = BucketCache(store, clock=clock, meter=self.meter, jitter=jitter)
        check_whole("hold_ms", hold_ms, 1, HOLD_MS_MAX)
        self.taker = Taker(self._cache, hold_ms=hold_ms)
        self._leases = Leases(self.taker)
        self._undoing: set[asyncio.Task[None]] = set()

    async def acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        **options: Unpack[AcquireOptions],
    ) -> Lease:
        """Take these tokens, or raise `RateLimitExceededError` and take none."""
        outcome = await self.try_acquire(entity, resource, consume, **options)
        if isinstance(outcome, Denial):
            raise RateLimitExceededError(outcome.violations)
        return outcome

    async def try_acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        **options: Unpack[AcquireOptions],
    ) -> Lease | Denial:
        """As `acquire`, but a denial is returned: look at ``granted``."""
        request = check_request(self._limits, entity, resource, consume, **options)
        try:
            return await self._leases.grant(request)
        except asyncio.CancelledError:
            if not request.is_named:  # else the caller can ask for it again
                task = asyncio.create_task(self._undo(request), name="pricekeeper-leases")
                self._undoing.add(task)
                task.add_done_callback(self._undoing.discard)
            raise

    def prepare(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        *,
        limits: Limits | None = None,
        ahead: int = 0,
    ) -> PreparedRequest:
        """``ahead`` asks for a block of so many times its tokens whenever the bucket is busy."""
        request = check_request(self._limits, entity, resource, consume, limits=limits)
        check_whole("ahead", ahead, 0, AHEAD_MAX)
        return PreparedRequest(self.taker, request.debits[0], ahead)

    async def peek(
        self, entity: str, resource: str, *, limits: Limits | None = None
    ) -> Mapping[str, LimitStatus]:
        return (await self.peek_many([(entity, resource)], limits=limits))[0]

    async def peek_many(
        self, buckets: Sequence[tuple[str, str]], *, limits: Limits | None = None
    ) -> list[Mapping[str, LimitStatus]]:
        pairs = [
            (check_key_part("entity", entity), check_key_part("resource", resource))
            for entity, resource in buckets
        ]
        keys = [(RATE_BUCKETS, Key(*pair)) for pair in pairs]
        items = await self._cache.store.batch_get(keys)
        now_ms, source = self._cache.clock.now_ms(), self._limits if limits is None else limits
        return [
            BucketLine(bucket_of(item), limits_of(source, *pair), now_ms).statuses(now_ms)
            for item, pair in zip(items, pairs, strict=True)
        ]

    async def adjust(
        self,
        entity: str,
        lease_id: uuid.UUID | str,
        delta: Mapping[str, int],
        *,
        adjustment_id: uuid.UUID | str,
    ) -> Mapping[str, int]:
        """Adjust a lease, once for the same id; return the tokens that it holds now.

        They are fewer than asked for if one of its buckets could not bear all of them.
        """
        record = await self._leases.find(*_lease_name(entity, lease_id))
        change_id = parse_id(adjustment_id, "adjustment_id")
        after = await self._leases.adjust(record, dict(delta), change_id)
        return {} if after.released else after.held

    async def release(self, entity: str, lease_id: uuid.UUID | str) -> None:
        await self._leases.release(await self._leases.find(*_lease_name(entity, lease_id)))

    async def reset(
        self, entity: str, resource: str | None = None, *, commit: Commit | None = None
    ) -> list[str]:
        """Fill the buckets of an entity, or one; returns the resources that had one.

        They are removed in one transaction, since an absent bucket is full. ``commit`` may add
        writes to it, and is called also if there is no bucket. Leases and blocks from before stay
        valid, so a reset admits at most one capacity more, beside tokens given back. Resetting
        again does nothing.
        """
        check_key_part("entity", entity)
        if resource is not None:
            check_key_part("resource", resource)
        return await upkeep.reset(self._cache, entity, resource, commit)

    async def repair(self, entity: str, *, dry_run: bool = False) -> list[Repaired]:
        """Bring buckets that were refilled in the future back to now; returns them.

        A clock that leapt ahead leaves such buckets. Their balances stay, but debts are removed,
        since they may only be refill that was not settled. Nothing is refilled. Call it only where
        the clock is right; with ``dry_run`` it only reports.
        """
        return await upkeep.repair(self._cache, check_key_part("entity", entity), dry_run=dry_run)

    async def close(self) -> None:
        """Complete the steps in flight and give back blocks. The store stays open."""
        while self._undoing:
            await asyncio.wait(self._undoing)
        await self._leases.drain()
        await self.taker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _undo(self, request: CheckedRequest) -> None:
        with contextlib.suppress(PriceKeeperError):  # the tokens stay taken, and refill
            await self._leases.undo(request)


def _lease_name(entity: str, lease_id: uuid.UUID | str) -> tuple[str, str]:
    return check_key_part("entity", entity), parse_id(lease_id, "lease_id")
