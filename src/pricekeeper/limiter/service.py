"""The limiter: what others may call.

::

    limiter = Limiter(store, clock=clock, limits=[Limit.per_minute("tpm", 100_000)])
    async with limiter.acquire("org-1/app-7", "premium", {"tpm": 1200}) as lease:
        reply = call_model()
        await lease.adjust({"tpm": reply.total_tokens - 1200})
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Self, Unpack

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConflictError,
    ContendedError,
    NotFoundError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.limiter import upkeep
from pricekeeper.limiter.bucket import Denial, LimitStatus, scarcest, status
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.commands import Debited
from pricekeeper.limiter.completion import Completion
from pricekeeper.limiter.items import (
    LeaseRecord,
    bucket_key,
    bucket_of,
    check_key_part,
    lease_key,
    lease_of,
)
from pricekeeper.limiter.lease_accounts import EmptyAccount, LeaseAccount, RecordedAccount
from pricekeeper.limiter.leases import Acquisition, Lease
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.prefetch import HOLD_MS, Pool
from pricekeeper.limiter.prepared_request import PreparedRequest
from pricekeeper.limiter.records import LEASE_TTL_SECS, released_already
from pricekeeper.limiter.requests import (
    HOLD_MS_MAX,
    AcquireOptions,
    CheckedRequest,
    Defaults,
    Limits,
    OnUnavailable,
    check_count,
    check_request,
    parse_id,
)
from pricekeeper.limiter.upkeep import Commit, Repaired
from pricekeeper.limiter.worker import Workers
from pricekeeper.storage import Store
from pricekeeper.storage.tables import RATE_BUCKETS


class Limiter:
    """Token buckets in a store, shared by any number of instances.

    ``limits`` are the same for every bucket, or a function of entity and resource; what it
    answers counts from the next acquire on. ``on_unavailable`` says what a store that does
    not answer means: ``"deny"`` raises its error, ``"allow"`` grants a lease that holds
    nothing. Contention, permissions and mistakes are never taken for that: they raise.

    ``prefetch`` is for hot buckets: how many requests to take for in one write. It loosens
    the bound by what refills in ``hold_ms``, to ``capacity + rate * (t + 2*skew + hold)``, and
    a crash loses what was held, at most two blocks per bucket and kind of request; see `prefetch`.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        limits: Limits = (),
        on_unavailable: OnUnavailable = "deny",
        prefetch: int = 1,
        hold_ms: int = HOLD_MS,
        meter: LimiterMeter | None = None,
        jitter: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.meter = meter or LimiterMeter()
        self._clock = clock
        self._defaults = Defaults(limits, on_unavailable, prefetch)
        self._cache = BucketCache(store, clock=clock, meter=self.meter, jitter=jitter)
        self._workers = Workers(self._cache)
        self._completion = Completion()
        check_count("hold_ms", hold_ms, HOLD_MS_MAX)
        self._pool = Pool(self._cache, self._workers, self._completion, hold_ms=hold_ms)

    def acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        **options: Unpack[AcquireOptions],
    ) -> Acquisition:
        """Take these tokens, or raise `RateLimitExceededError` and take none.

        ``await`` it for a lease, or use ``async with``, which gives everything back if the
        block fails.
        """
        request = check_request(self._defaults, entity, resource, consume, **options)
        return self._acquisition(request)

    def prepare(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        **options: Unpack[AcquireOptions],
    ) -> PreparedRequest:
        """Check a request now that will be made many times, so that each time is quick."""
        request = check_request(self._defaults, entity, resource, consume, **options)
        return PreparedRequest(
            request, cache=self._cache, pool=self._pool, acquisition=self._acquisition
        )

    async def try_acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, int],
        **options: Unpack[AcquireOptions],
    ) -> Lease | Denial:
        """As `acquire`, but a denial is returned and not raised: look at ``granted``."""
        return await self.acquire(entity, resource, consume, **options).try_obtain()

    async def peek(
        self, entity: str, resource: str, *, limits: Limits | None = None
    ) -> dict[str, LimitStatus]:
        """The state of a bucket's limits, without taking anything: one read."""
        return (await self.peek_many([(entity, resource)], limits=limits))[0]

    async def peek_many(
        self, buckets: Sequence[tuple[str, str]], *, limits: Limits | None = None
    ) -> list[dict[str, LimitStatus]]:
        """The state of several buckets, each an entity and a resource: one read for all."""
        pairs = [
            (check_key_part("entity", entity), check_key_part("resource", resource))
            for entity, resource in buckets
        ]
        keys = [(RATE_BUCKETS, bucket_key(*pair)) for pair in pairs]
        items = await self._cache.store.batch_get(keys)
        now_ms = self._clock.now_ms()
        return [
            status(bucket_of(item), self._defaults.limits_of(*pair, limits), now_ms)
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
        """Adjust a lease by its name, from any instance. The same adjustment applies once.

        Returns what the lease holds now. That is less than was asked for if one of its buckets
        could not bear all of it.
        """
        account = await self._find_account(entity, lease_id)
        change_id = parse_id(adjustment_id, "adjustment_id")
        await self._completion.complete(account.change(dict(delta), change_id))
        return account.held

    async def release(self, entity: str, lease_id: uuid.UUID | str) -> None:
        """Give back everything that a lease holds, by its name, from any instance. Once."""
        account = await self._find_account(entity, lease_id)
        await self._completion.complete(account.release())

    async def reset(
        self, entity: str, resource: str | None = None, *, commit: Commit | None = None
    ) -> list[str]:
        """Fill the buckets of an entity, or one; returns the resources that had one.

        They are removed in one transaction, since an absent bucket is a full one; ``commit`` may
        add something to it, and is called also if there is no bucket. A request at that moment
        takes before the reset or after it. Leases and blocks from before stay valid and can give
        back as ever, but a bucket never holds more than its capacity. So a reset admits at most
        one capacity more, beside what is given back. Resetting again does nothing.
        """
        check_key_part("entity", entity)
        if resource is not None:
            check_key_part("resource", resource)
        return await upkeep.reset(self._cache, entity, resource, commit)

    async def repair(self, entity: str, *, dry_run: bool = False) -> list[Repaired]:
        """Bring buckets that were refilled in the future back to now; returns them.

        A clock that leapt ahead leaves such buckets. Their balances stay, but debts are removed,
        since they may only be refill that was not settled. Nothing is refilled by this. Only call
        it where the clock is right; with ``dry_run`` it only reports.
        """
        return await upkeep.repair(self._cache, check_key_part("entity", entity), dry_run=dry_run)

    async def close(self) -> None:
        """Complete what was started and give back what was prefetched. The store stays open."""
        await self._pool.close()
        await self._completion.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _acquisition(self, request: CheckedRequest) -> Acquisition:
        return Acquisition(
            take_from_memory=lambda: self._take_from_memory(request),
            attempt=lambda: self._attempt(request),
            completion=self._completion,
            meter=self.meter,
            named=request.lease_id is not None,
        )

    async def _find_account(self, entity: str, lease_id: uuid.UUID | str) -> RecordedAccount:
        """Read the lease of that name; raises `NotFoundError` if there is none."""
        named = parse_id(lease_id, "lease_id")
        key = lease_key(check_key_part("entity", entity), named)
        record = lease_of(entity, named, await self._cache.store.get(RATE_BUCKETS, key))
        if record is None:
            raise NotFoundError("lease")
        return RecordedAccount(self._workers, record)

    async def _attempt(self, request: CheckedRequest) -> Lease | Denial:
        """Decide one acquire. Only this function knows what an unavailable store means."""
        try:
            outcome = await self._take_from_store(request)
        except (ContendedError, StoreClosedError):
            raise  # the store is available: others were quicker, or it was closed too early
        except (StoreUnavailableError, OutcomeUnknownError, UnreadableItemError):
            if request.on_unavailable == "deny":
                raise
            self.meter.unlimited += 1
            outcome = self._lease(request, EmptyAccount(), None)
        if isinstance(outcome, Denial):
            self.meter.denied += 1
        else:
            self.meter.granted += 1
        return outcome

    def _take_from_memory(self, request: CheckedRequest) -> Lease | None:
        """Take a lease out of memory, if there are prefetched tokens for it."""
        block = self._pool.spend(request)
        if block is None:
            return None
        return self._lease(request, self._pool.account(block, request.tokens), None)

    async def _take_from_store(self, request: CheckedRequest) -> Lease | Denial:
        if request.lease_id is not None:
            return await self._take_named(request, request.lease_id)
        fetched = await self._pool.fetch(request)
        if isinstance(fetched, Denial):
            return fetched
        self.meter.prefetched += fetched[1] is None
        return self._lease(request, *fetched)

    async def _take_named(self, request: CheckedRequest, lease_id: str) -> Lease | Denial:
        now_ms = self._clock.now_ms()
        record = LeaseRecord(
            entity=request.entity,
            lease_id=lease_id,
            resource=request.resource,
            parents=request.parents,
            consume=request.tokens,
            terms={
                debit.entity: {name: limit.terms for name, limit in debit.limits.items()}
                for debit in request.debits
            },
            granted_at_ms=now_ms,
            expires_at_epoch=-(-now_ms // 1000) + LEASE_TTL_SECS,
            held=request.tokens,
        )
        outcome = await self._workers.take_named(request.debits, request.nonempty_debits, record)
        if isinstance(outcome, Denial):
            return outcome
        if isinstance(outcome, Debited):
            return self._lease(request, RecordedAccount(self._workers, record), outcome)
        if outcome.released:
            raise released_already()
        asked = (outcome.resource, outcome.parents, outcome.consume)
        if asked != (request.resource, request.parents, request.tokens):
            raise ConflictError("lease_id", "was granted for another request")
        return self._lease(request, RecordedAccount(self._workers, outcome), None)

    def _lease(
        self, request: CheckedRequest, account: LeaseAccount, taken: Debited | None
    ) -> Lease:
        now_ms = self._clock.now_ms()
        unlimited = isinstance(account, EmptyAccount)

        def limits() -> Mapping[str, LimitStatus]:
            if unlimited:
                return {}
            if taken is None:
                return self._cache.statuses(request.nonempty_debits, now_ms)
            return scarcest(request.nonempty_debits, taken.buckets, now_ms)

        return Lease(
            account,
            self._completion,
            lease_id=request.lease_id,
            entity=request.entity,
            resource=request.resource,
            granted_at_ms=taken.as_of_ms if taken else now_ms,
            limits=limits,
            unlimited=unlimited,
        )
