"""One worker for each chain of buckets: every command of this process goes through its queue.

DynamoDB cancels transactions that overlap on an item, and writes that settle a bucket's refill
refuse each other. So a process sends one write at a time for a chain, and what arrives meanwhile
goes into the next one, whatever it is: the busier a bucket is, the more commands one write carries.
A command that finds no write in flight is sent at once.

Chains that end in the same bucket share a worker, as the apps of an organisation do.

Other processes have workers for the same buckets: see `pacing`.

Bounds: `QUEUE_MAX` commands wait in one queue, and one more gets `OverloadedError`; a batch has
`BATCH_MAX` commands on as many items as a transaction may have. A worker exists only while there
is something to do, so there are never more workers than callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from pricekeeper.errors import OutcomeUnknownError, OverloadedError
from pricekeeper.limiter.batch import CommandBatch, Queued
from pricekeeper.limiter.bucket import Debit, Denial
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.commands import Acquire, Command, Debited, LeaseChange, Outcome, keys_of
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.limiter.pacing import Pacer
from pricekeeper.storage import Key
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX

QUEUE_MAX: Final = 2_000
"""Commands that wait for one worker."""
BATCH_MAX: Final = 200
"""Commands in one batch."""
_Queue: TypeAlias = deque[Queued]


class Workers:
    """The workers of one limiter, by the bucket in which their chains end."""

    def __init__(self, cache: BucketCache) -> None:
        self._cache = cache
        self._pacer = Pacer(cache.jitter)
        self._queues: dict[Key, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, chain: Sequence[Debit], debits: Sequence[Debit]) -> Debited | Denial:
        """Take from all of these buckets of the chain or none, for a lease without a record."""
        outcome = await self._submit(chain, Acquire(tuple(debits)))
        if not isinstance(outcome, Debited | Denial):
            raise TypeError("a lease without a name has no record")
        return outcome

    async def take_named(
        self, chain: Sequence[Debit], debits: Sequence[Debit], record: LeaseRecord
    ) -> Debited | Denial | LeaseRecord:
        """As `take`, and record the lease; returns its record if it was granted before."""
        outcome = await self._submit(chain, Acquire(tuple(debits), record))
        if isinstance(outcome, dict):
            raise TypeError("an acquire ends with a grant or a denial")
        return outcome

    async def move(self, chain: Sequence[Debit], delta: Mapping[str, int]) -> dict[str, int]:
        """Take these tokens as far as the buckets can bear; those below zero are given back.

        Returns how much was taken of each limit, from every bucket that has it.
        """
        outcome = await self._submit(chain, LeaseChange(tuple(chain), delta))
        if not isinstance(outcome, dict):
            raise TypeError("a change without a record ends with what was taken")
        return outcome

    async def adjust(self, record: LeaseRecord, delta: Mapping[str, int], mark: str) -> LeaseRecord:
        """Adjust a lease with a name, once for the same mark; returns its record after that."""
        return await self._change(LeaseChange(record.debits({}), delta, record, mark))

    async def release(self, record: LeaseRecord) -> LeaseRecord:
        """Release a lease with a name, once; returns its record after that."""
        return await self._change(LeaseChange(record.debits({}), {}, record))

    async def _change(self, change: LeaseChange) -> LeaseRecord:
        outcome = await self._submit(change.debits, change)
        if not isinstance(outcome, LeaseRecord):
            raise TypeError("a change of a lease with a name ends with its record")
        return outcome

    async def _submit(self, debits: Sequence[Debit], command: Command) -> Outcome:
        """Let the worker of that chain carry out the command, and wait for the outcome."""
        chain = debits[-1].key
        queued = Queued(command, asyncio.get_running_loop().create_future())
        queue = self._queues.get(chain)
        if queue is None:
            queue = self._queues[chain] = deque()
            task = asyncio.create_task(self._work(chain, queue), name="pricekeeper-limiter")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif len(queue) >= QUEUE_MAX:
            raise OverloadedError(f"{chain.pk} {chain.sk}: {QUEUE_MAX} requests wait already")
        queue.append(queued)
        return await queued.answer

    async def _work(self, chain: Key, queue: _Queue) -> None:
        """Carry out batch after batch until nothing waits."""
        clock, batch = self._cache.clock, None
        try:
            while queue:
                # Leave the buckets to other processes for a moment, if there are any.
                wait_ms = self._pacer.wait_ms(chain, clock.monotonic_ms())
                if wait_ms:
                    await clock.sleep_ms(wait_ms)
                batch = CommandBatch(self._cache, _take_batch(queue))
                await batch.run()
                if batch.transaction_ms is not None:
                    self._pacer.note(chain, batch.transaction_ms, clock.monotonic_ms())
        finally:
            del self._queues[chain]
            for one in (*(batch.unanswered if batch else ()), *queue):  # the loop is being closed
                if not one.answer.done():
                    one.answer.set_exception(OutcomeUnknownError("the worker was stopped"))


def _take_batch(queue: _Queue) -> list[Queued]:
    """Remove the first commands from the queue: as many as one transaction has room for."""
    batch: list[Queued] = []
    keys: set[Key] = set()
    while queue and len(batch) < BATCH_MAX:
        more = keys.union(keys_of(queue[0].command))
        if batch and len(more) > TRANSACTION_OPERATIONS_MAX:
            break
        keys = more
        batch.append(queue.popleft())
    return batch
