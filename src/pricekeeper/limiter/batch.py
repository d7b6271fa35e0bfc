"""A batch of requests that take tokens from one bucket, or from one chain of buckets.

A batch is decided by one reading of the clock. It writes before it reads: the first write is
planned from the cached bucket, or is a guess. A refused write returns the bucket, and the next
write, or the denial, is planned from that. One write serves as many requests of the batch as
there are tokens for, in the order of their arrival.

One bucket takes a plain write. A chain, or a lease to be recorded, takes a transaction: all of
it or nothing. A refused transaction costs double and need not return every bucket. So a chain
that was never seen is read first, and nothing is denied without a read.

A batch loses a race only if another writer succeeds. After `ATTEMPTS_MAX` losses its requests fail
with `ContendedError`, which is neither a grant nor a denial. When a reply is lost, they fail with
`OutcomeUnknownError`: tokens may be gone that nobody got, which refill; none is taken twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pricekeeper.errors import ConditionFailedError, ReasonCode, TransactionCancelledError
from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    Normal,
    Retry,
    expected,
    guess,
    overdue,
    plan,
    probe,
)
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.items import LeaseRecord, bucket_key, bucket_of, lease_item, lease_of
from pricekeeper.limiter.writes import create, normal, retry
from pricekeeper.storage import ITEM_ABSENT, Key, Put, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS

_Step: TypeAlias = Create | Retry | Normal


class Taken(msgspec.Struct, frozen=True):
    """Tokens that were taken, as of that moment, and the buckets afterwards."""

    as_of_ms: int
    buckets: tuple[Bucket | None, ...]


AcquireOutcome: TypeAlias = Taken | Denial | LeaseRecord
"""A record means that the lease was granted before, and nothing was taken now."""


class AcquireRequest:
    """One acquire in a batch: what it takes from each bucket, its lease's record, its outcome."""

    __slots__ = ("debits", "outcome", "record")

    def __init__(self, debits: Sequence[Debit], record: LeaseRecord | None = None) -> None:
        self.debits = tuple(debits)
        self.record = record
        self.outcome: AcquireOutcome | None = None

    def can_share_write_with(self, other: AcquireRequest) -> bool:
        """Whether one write may serve both: the same buckets, limits and kind of write."""
        return (self.record is None) == (other.record is None) and all(
            mine.limits == theirs.limits
            for mine, theirs in zip(self.debits, other.debits, strict=True)
        )


class AcquireBatch:
    """Requests that can share a write, until each has its outcome."""

    def __init__(self, cache: BucketCache, requests: Sequence[AcquireRequest]) -> None:
        first = requests[0]
        self._cache = cache
        self._pending = list(requests)
        self._debits = first.debits
        self._plain = len(first.debits) == 1 and first.record is None
        self._buckets = [cache.recall(debit) for debit in first.debits]
        self._is_fresh = False
        """Whether the buckets were read from the store in this batch; else they are cached."""
        self._now_ms = cache.clock.now_ms()
        self._monotonic_ms = cache.clock.monotonic_ms()

    async def run(self) -> None:
        """Give every request its outcome, or raise for all that have none yet."""
        fruitless = 0
        while self._pending:
            await self._cache.pause(fruitless)
            before = len(self._pending)
            await self._advance()
            fruitless = 0 if len(self._pending) < before else fruitless + 1
            if fruitless == ATTEMPTS_MAX:
                raise self._cache.contended(self._debits[0])

    async def _advance(self) -> None:
        """Do the next step: one write, one read, or the denials."""
        unseen = None in self._buckets and not self._is_fresh
        if unseen and not self._plain:
            await self._read()
        elif unseen:
            await self._write(self._pending, [guess(self._total(0, self._pending), self._now_ms)])
        else:
            served, steps = self._affordable()
            if served:
                await self._write(served, steps)
            elif not self._is_fresh:  # the cached bucket may be out of date: the store decides
                await self._ask_store()
            elif not await self._settle_terms():
                self._deny()

    def _affordable(self) -> tuple[list[AcquireRequest], list[_Step]]:
        """The requests that there are tokens for, in order of arrival, and the writes for them."""
        requests = self._without_duplicates()
        steps = self._plan_all(requests)
        if steps is not None:
            return requests, steps
        served: list[AcquireRequest] = []
        steps = []
        for request in requests:
            planned = self._plan_all([*served, request])
            if planned is not None:
                served.append(request)
                steps = planned
        return served, steps

    def _without_duplicates(self) -> list[AcquireRequest]:
        """The pending requests, but only the first of several for the same lease."""
        firsts: dict[Key, AcquireRequest] = {}
        return [
            request
            for request in self._pending
            if request.record is None or firsts.setdefault(request.record.key, request) is request
        ]

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> list[_Step] | None:
        """The writes that take all of it from every bucket; ``None`` if one bucket denies it."""
        steps = []
        for index, bucket in enumerate(self._buckets):
            step = plan(bucket, self._total(index, requests), self._reading_ms(index))
            if isinstance(step, Denial):
                return None
            steps.append(step)
        return steps

    async def _write(self, served: Sequence[AcquireRequest], steps: Sequence[_Step]) -> None:
        debits = [self._total(index, served) for index in range(len(self._debits))]
        operations = [_operation(debit, step) for debit, step in zip(debits, steps, strict=True)]
        if self._plain:
            if not await self._write_one(0, operations[0]):
                return
        else:
            if not await self._transact(operations, served):
                return
            for index, step in enumerate(steps):
                self._note_bucket(index, expected(step, self._buckets[index], debits[index]))
        taken = Taken(self._decided_ms(), tuple(self._buckets))
        for request in served:
            request.outcome = taken
        self._answer_duplicates(served)
        self._drop_answered()

    async def _write_one(self, index: int, operation: Put | Update) -> bool:
        """Send one write; whether it was applied. Either way the store returns the bucket."""
        try:
            if isinstance(operation, Put):
                await self._cache.store.put(operation)
                self._note_bucket(index, bucket_of(operation.item))
            else:
                self._note_bucket(index, bucket_of(await self._cache.store.update(operation)))
        except ConditionFailedError as refusal:
            self._note_bucket(index, bucket_of(refusal.item))
            self._cache.meter.lost_races += self._is_fresh
            return False
        else:
            return True
        finally:
            self._is_fresh = self._is_fresh or self._plain

    async def _transact(
        self, operations: Sequence[Write], served: Sequence[AcquireRequest]
    ) -> bool:
        """Send all of it; whether it was applied. If not, the buckets that refused are noted."""
        puts = [
            Put(RATE_BUCKETS, lease_item(one.record), ITEM_ABSENT) for one in served if one.record
        ]
        try:
            await self._cache.store.transact([*operations, *puts])
        except TransactionCancelledError as cancelled:
            failed = [one.code is ReasonCode.CONDITION_FAILED for one in cancelled.reasons]
            if not any(failed):
                raise
            self._cache.meter.lost_races += 1
            items = [one.item for one in cancelled.reasons]
            for index in range(len(operations)):
                if failed[index]:
                    self._note_bucket(index, bucket_of(items[index]))
            self._answer_granted(served, items[len(operations) :])
            return False
        return True

    async def _ask_store(self) -> None:
        bucket, reading_ms = self._buckets[0], self._reading_ms(0)
        if self._plain and bucket is not None and not overdue(bucket, reading_ms):
            await self._write(self._pending[:1], [probe(bucket, reading_ms)])
        else:
            await self._read()

    async def _read(self) -> None:
        """Read the buckets, and the leases that were granted before, in one call."""
        keys = [bucket_key(debit.entity, debit.resource) for debit in self._debits]
        keys += [request.record.key for request in self._pending if request.record]
        items = await self._cache.store.batch_get([(RATE_BUCKETS, key) for key in keys])
        for index in range(len(self._debits)):
            self._note_bucket(index, bucket_of(items[index]))
        self._is_fresh = True
        self._answer_granted(self._pending, items[len(self._debits) :])

    def _answer_granted(
        self, requests: Sequence[AcquireRequest], items: Sequence[Mapping[str, Any] | None]
    ) -> None:
        """Give the requests whose lease exists its present record as their outcome."""
        named = [request for request in requests if request.record]
        for request, item in zip(named, items, strict=True):
            if request.record and item is not None:
                request.outcome = lease_of(request.record.entity, request.record.lease_id, item)
        self._drop_answered()

    def _answer_duplicates(self, served: Sequence[AcquireRequest]) -> None:
        """Give the other requests for a lease that was just granted its record as outcome."""
        granted = {request.record.key: request.record for request in served if request.record}
        for request in self._pending:
            if request.outcome is None and request.record:
                request.outcome = granted.get(request.record.key)

    async def _settle_terms(self) -> bool:
        """Write the new terms to buckets whose limits have changed; whether there was one."""
        request = self._pending[0]
        some = False
        for index, debit in enumerate(request.debits):
            step = plan(self._buckets[index], debit, self._reading_ms(index))
            if isinstance(step, Denial) and step.settle is not None:
                await self._write_one(index, normal(debit, step.settle))
                some = True
        return some

    def _deny(self) -> None:
        waited_ms = self._cache.clock.now_ms() - self._now_ms
        for request in self._pending:
            steps = [
                plan(self._buckets[index], debit, self._reading_ms(index))
                for index, debit in enumerate(request.debits)
            ]
            denials = [step for step in steps if isinstance(step, Denial)]
            violations = tuple(one for denial in denials for one in denial.violations)
            if violations:  # else it is a duplicate of a request that is denied just now
                request.outcome = Denial(violations).after_waiting(waited_ms)
        self._drop_answered()

    def _drop_answered(self) -> None:
        self._pending = [request for request in self._pending if request.outcome is None]

    def _note_bucket(self, index: int, bucket: Bucket | None) -> None:
        self._buckets[index] = bucket
        self._cache.remember(self._debits[index], bucket)

    def _total(self, index: int, requests: Sequence[AcquireRequest]) -> Debit:
        """What these requests take from one bucket, together."""
        debit = requests[0].debits[index]
        if len(requests) == 1:
            return debit
        tokens: dict[str, int] = {}
        for request in requests:
            for name, count in request.debits[index].tokens.items():
                tokens[name] = tokens.get(name, 0) + count
        return Debit(debit.entity, debit.resource, debit.limits, tokens)

    def _reading_ms(self, index: int) -> int:
        """The batch's one reading of the clocks, as it counts for that bucket."""
        return self._cache.reading_ms(
            self._debits[index], self._buckets[index], self._now_ms, self._monotonic_ms
        )

    def _decided_ms(self) -> int:
        """The moment a grant counts for: our reading, or a refill by another after it."""
        latest_ms = max(one.refilled_at_ms if one else 0 for one in self._buckets)
        return max(self._now_ms, min(latest_ms, self._cache.clock.now_ms()))


def _operation(debit: Debit, step: _Step) -> Put | Update:
    if isinstance(step, Create):
        return create(debit, step)
    if isinstance(step, Normal):
        return normal(debit, step)
    return retry(debit, step)
