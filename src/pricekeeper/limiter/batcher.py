"""Batches the requests that come to a bucket while a write to it is in flight.

Writes of one process that would race each other are sent one after another, and all requests that
wait share the next write. So the busier a bucket is, the more requests one write serves: a hot
bucket takes as many writes as fit one after another, however many requests there are. No request
waits on purpose: if no write is in flight, it is sent at once. So are up to `IN_FLIGHT_MAX` writes
that only take tokens, because they do not race each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from pricekeeper.concurrency import error_copy
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.limiter.batch import AcquireBatch, AcquireOutcome, AcquireRequest, Taken
from pricekeeper.limiter.bucket import Debit, Denial, Retry, plan
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.items import LeaseRecord

BATCH_MAX: Final = 64
"""Requests in one batch: their records have to fit into one transaction."""
IN_FLIGHT_MAX: Final = 8
"""Batches of one chain that may be in flight at the same time."""

_Chain: TypeAlias = tuple[tuple[str, str], ...]


class _Waiter:
    """A request in the queue.

    Its turn is the list of waiters that it has to run in one batch with itself, or ``None`` if
    another waiter has run it.
    """

    __slots__ = ("request", "turn")

    def __init__(self, request: AcquireRequest) -> None:
        self.request = request
        self.turn: asyncio.Future[list[_Waiter] | None] = asyncio.get_running_loop().create_future()


class _Queue:
    """The requests that wait for one chain of buckets, and how many batches are in flight."""

    __slots__ = ("in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        self.waiting: list[_Waiter] = []


class Batcher:
    """One queue for each chain of buckets; it exists as long as a batch is in flight."""

    def __init__(self, cache: BucketCache) -> None:
        self._cache = cache
        self._queues: dict[_Chain, _Queue] = {}

    async def take(self, debits: Sequence[Debit]) -> Taken | Denial:
        """Take from all of these buckets or none, for a lease without a record."""
        outcome = await self._submit(AcquireRequest(debits))
        if isinstance(outcome, LeaseRecord):
            raise TypeError("a lease without a name has no record")
        return outcome

    async def take_named(self, debits: Sequence[Debit], record: LeaseRecord) -> AcquireOutcome:
        """As `take`, and record the lease; returns its record if it was granted before."""
        return await self._submit(AcquireRequest(debits, record))

    async def _submit(self, request: AcquireRequest) -> AcquireOutcome:
        chain = tuple((debit.entity, debit.resource) for debit in request.debits)
        queue = self._queues.setdefault(chain, _Queue())
        if queue.in_flight == 0 or (queue.in_flight < IN_FLIGHT_MAX and self._only_takes(request)):
            queue.in_flight += 1
            await self._run_batch(chain, request, [])
        else:
            waiter = _Waiter(request)
            queue.waiting.append(waiter)
            followers = await waiter.turn
            if followers is not None:
                await self._run_batch(chain, request, followers)
        if request.outcome is None:
            raise OutcomeUnknownError("the request that ran the batch ended without a result")
        return request.outcome

    def _only_takes(self, request: AcquireRequest) -> bool:
        """Whether its write, as far as we know, races no other write that only takes."""
        if len(request.debits) > 1 or request.record is not None:
            return False  # transactions on one item refuse each other
        debit = request.debits[0]
        bucket = self._cache.recall(debit)
        return isinstance(plan(bucket, debit, self._cache.read_clock_ms(debit, bucket)), Retry)

    async def _run_batch(
        self, chain: _Chain, request: AcquireRequest, followers: Sequence[_Waiter]
    ) -> None:
        """Run one batch, wake the followers with its result, and start the next batch."""
        failure: Exception | None = None
        try:
            await AcquireBatch(self._cache, [request, *(one.request for one in followers)]).run()
        except Exception as error:  # noqa: BLE001 - raised to every request of the batch
            failure = error
        finally:
            for one in followers:
                if one.turn.done():
                    continue
                if one.request.outcome is None and failure is not None:
                    one.turn.set_exception(error_copy(failure))
                else:
                    one.turn.set_result(None)
            self._start_next(chain)
        if failure is not None and request.outcome is None:
            raise failure

    def _start_next(self, chain: _Chain) -> None:
        queue = self._queues[chain]
        queue.waiting = [one for one in queue.waiting if not one.turn.done()]
        if queue.waiting:
            leader, *rest = queue.waiting
            together = [one for one in rest if one.request.can_share_write_with(leader.request)]
            followers = together[: BATCH_MAX - 1]
            joined = set(followers)
            queue.waiting = [one for one in rest if one not in joined]
            leader.turn.set_result(followers)
        else:
            queue.in_flight -= 1
            if queue.in_flight == 0:
                del self._queues[chain]
