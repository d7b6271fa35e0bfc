"""A batch of commands on one chain of buckets: what `decide` says is sent, until all are answered.

The first write is planned from the buckets as they were last seen. A refused write returns those
that were different, and the next step is decided with them. One item takes a plain write; several
take a transaction, all of it or nothing. A refused transaction costs double and need not return
every bucket. So a chain that was never seen is read first, and nothing is denied without a read.

A batch loses a race only if another writer succeeds. After `ATTEMPTS_MAX` losses in a row its
commands fail with `ContendedError`, which is neither a grant nor a denial. When a reply is lost
they fail with `OutcomeUnknownError`: tokens may be gone that nobody got, which refill; none is
taken twice. An item that can't be read concerns only the commands that need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pricekeeper.concurrency import error_copy
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    NotFoundError,
    ReasonCode,
    TransactionCancelledError,
    UnreadableItemError,
)
from pricekeeper.limiter.bucket import Bucket
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.commands import Acquire, Command, Debited, LeaseChange, Outcome, keys_of
from pricekeeper.limiter.deciding import Answered, BatchView, CombinedWrite, Part, ReadStep, decide
from pricekeeper.limiter.items import bucket_of, lease_of
from pricekeeper.limiter.records import newer_record
from pricekeeper.storage import Item, Key, Put, Update
from pricekeeper.storage.tables import RATE_BUCKETS


class Queued(NamedTuple):
    """A command, and where its caller waits for the answer."""

    command: Command
    answer: asyncio.Future[Outcome]


class CommandBatch:
    """Commands that share writes, until each has its answer."""

    def __init__(self, cache: BucketCache, queued: Sequence[Queued]) -> None:
        self._cache = cache
        self._answers = {one.command: one.answer for one in queued if not one.answer.done()}
        self._now_ms, self._monotonic_ms = cache.clock.now_ms(), cache.clock.monotonic_ms()
        self._view = BatchView(self._reading_ms, self._waited_ms)
        self.transaction_ms: int | None = None
        """How long its slowest transaction took, if it had one."""
        for command in self._answers:
            self._recall(command)

    @property
    def unanswered(self) -> list[Queued]:
        """The commands that have no answer yet."""
        return [Queued(command, answer) for command, answer in self._answers.items()]

    async def run(self) -> None:
        """Answer every command, with its outcome or with an error."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - raised to every caller of the batch
            for command in list(self._answers):
                self._fail(command, error)

    async def _run(self) -> None:
        fruitless = 0
        while self._answers:
            await self._cache.pause(fruitless)
            before = len(self._answers)
            step = decide(self._view, list(self._answers))
            if isinstance(step, Answered):
                for command, outcome in step.answers:
                    self._answer(command, outcome)
            elif isinstance(step, ReadStep):
                await self._read(step)
            else:
                await self._write(step)
            fruitless = 0 if len(self._answers) < before else fruitless + 1
            if fruitless == ATTEMPTS_MAX:
                raise self._cache.contended(next(keys_of(next(iter(self._answers)))))

    async def _read(self, step: ReadStep) -> None:
        keys = [*step.buckets, *step.records]
        items = await self._cache.store.batch_get([(RATE_BUCKETS, key) for key in keys])
        for index, key in enumerate(keys):
            if index < len(step.buckets):
                self._note_bucket(key, items[index])
            else:
                self._note_record(key, items[index])

    async def _write(self, step: CombinedWrite) -> None:
        """Send it, and answer whom it serves; if it is refused, note what was different."""
        was_fresh = all(part.key in self._view.fresh for part in step.parts)
        reasons = await self._send(step.parts) if step.parts else None
        if reasons is not None:
            self._cache.meter.lost_races += was_fresh or len(step.parts) > 1
            for part, reason in zip(step.parts, reasons, strict=True):
                if reason.code is ReasonCode.CONDITION_FAILED:
                    note = self._note_bucket if part.record is None else self._note_record
                    note(part.key, reason.item)
            return
        self._cache.meter.debts_cut += step.cuts
        for change, outcome in step.changes:
            self._answer(change, outcome)
        for one in step.acquires:
            self._answer(one, self._taken(one))
        granted = {part.key: part.record for part in step.parts if part.record is not None}
        for command in list(self._answers):
            if command.record is None:
                continue
            record = granted.get(command.record.key)
            if record is not None and isinstance(command, Acquire):
                self._answer(command, record)  # it repeats one that was served
            elif record is not None:
                self._view.records[record.key] = record

    async def _send(self, parts: Sequence[Part]) -> Sequence[CancellationReason] | None:
        """Write all parts, and note the buckets; returns the reasons if a condition failed."""
        store, only = self._cache.store, parts[0]
        try:
            if len(parts) > 1:
                await self._transact([part.operation for part in parts])
            elif isinstance(only.operation, Put):
                await store.put(only.operation)
            else:
                item = await store.update(only.operation)
                if only.record is None:
                    self._note_bucket(only.key, item)
                return None
        except ConditionFailedError as refusal:
            return [CancellationReason(ReasonCode.CONDITION_FAILED, refusal.item)]
        except TransactionCancelledError as cancelled:
            if all(reason.code is not ReasonCode.CONDITION_FAILED for reason in cancelled.reasons):
                raise
            return cancelled.reasons
        for part in parts:
            if part.bucket is not None:
                self._view.buckets[part.key] = part.bucket
                self._cache.remember(part.key, part.bucket)
        return None

    async def _transact(self, operations: Sequence[Put | Update]) -> None:
        clock = self._cache.clock
        began_ms = clock.monotonic_ms()
        try:
            await self._cache.store.transact(operations)
        finally:
            self.transaction_ms = max(self.transaction_ms or 0, clock.monotonic_ms() - began_ms)

    def _recall(self, command: Command) -> None:
        for debit in command.debits:
            bucket = self._cache.recall(debit.key)
            if bucket is not None:
                self._view.buckets[debit.key] = bucket
        if isinstance(command, LeaseChange) and command.record is not None:
            records, record = self._view.records, command.record
            records[record.key] = newer_record(records.get(record.key, record), record)

    def _note_bucket(self, key: Key, item: Mapping[str, Any] | None) -> None:
        """Keep what the store has told of a bucket."""
        self._view.fresh.add(key)
        try:
            bucket = bucket_of(item)
        except UnreadableItemError as error:
            self._fail_all(key, error)
            return
        self._view.buckets[key] = bucket
        self._cache.remember(key, bucket)

    def _note_record(self, key: Key, item: Item | Mapping[str, Any] | None) -> None:
        """Keep what the store has told of a lease. An acquire of one that exists has its answer."""
        self._view.fresh.add(key)
        for command in [one for one in self._answers if one.record and one.record.key == key]:
            if command.record is None:
                continue
            try:
                record = lease_of(command.record.entity, command.record.lease_id, item)
            except UnreadableItemError as error:
                self._fail(command, error)
                continue
            if isinstance(command, LeaseChange):
                if record is None:
                    self._fail(command, NotFoundError("lease"))
                else:
                    self._view.records[key] = record
            elif record is not None:
                self._answer(command, record)

    def _taken(self, acquire: Acquire) -> Debited:
        """What an acquire was granted, for the moment of our reading or of a refill after it."""
        buckets = tuple(self._view.buckets.get(debit.key) for debit in acquire.debits)
        latest_ms = max(one.refilled_at_ms if one else 0 for one in buckets)
        as_of_ms = max(self._now_ms, min(latest_ms, self._cache.clock.now_ms()))
        return Debited(as_of_ms, buckets)

    def _reading_ms(self, key: Key, bucket: Bucket | None) -> int:
        """The time at which the batch is decided, as it counts for this bucket."""
        return self._cache.reading_ms(key, bucket, self._now_ms, self._monotonic_ms)

    def _waited_ms(self, key: Key, bucket: Bucket | None) -> int:
        clock = self._cache.clock
        now_ms = self._cache.reading_ms(key, bucket, clock.now_ms(), clock.monotonic_ms())
        return now_ms - self._reading_ms(key, bucket)

    def _answer(self, command: Command, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            self._fail(command, outcome)
            return
        answer = self._answers.pop(command, None)
        if answer is not None and not answer.done():
            answer.set_result(outcome)

    def _fail(self, command: Command, error: Exception) -> None:
        """Raise an error of its own to the caller of this command."""
        answer = self._answers.pop(command, None)
        if answer is not None and not answer.done():
            answer.set_exception(error_copy(error))

    def _fail_all(self, key: Key, error: Exception) -> None:
        for command in [one for one in self._answers if key in keys_of(one)]:
            self._fail(command, error)
