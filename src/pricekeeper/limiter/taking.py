"""Taking tokens: from one bucket by a plain write, from several by a transaction.

`take` sends first and asks later: the write planned from memory, or a guess. A refusal brings
the bucket with it, and the next write, or the denial, is planned from that. An acquire is
decided by one reading of the clock, made when it came: whoever loses a race to somebody who
refilled the bucket after that finds it freshly refilled, and does not have to fight on.

`take_together` takes from all buckets or none, and writes the record of a lease beside them.
A refused transaction costs double and need not tell of every bucket, so here what was never
seen is read first, and nothing is denied without having read.

Either loses only to others who got on: after `ATTEMPTS_MAX` times it raises `ContendedError`,
which says neither yes nor no. When a reply is lost, `OutcomeUnknownError` goes to the caller:
tokens may be gone that nobody got, which refill; they are never taken twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, overload

import msgspec

from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Denial,
    Draw,
    Normal,
    Retry,
    expected,
    guess,
    plan,
    probe,
)
from pricekeeper.limiter.items import LeaseRecord, bucket_key, bucket_of, lease_item, lease_of
from pricekeeper.limiter.till import ATTEMPTS_MAX, Till
from pricekeeper.limiter.writes import create, normal, retry
from pricekeeper.storage import ITEM_ABSENT, Put, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS

_Step: TypeAlias = Create | Retry | Normal


class Taken(msgspec.Struct, frozen=True):
    """Tokens that were taken, as of that moment, and the buckets afterwards."""

    as_of_ms: int
    buckets: tuple[Bucket | None, ...]


async def take(till: Till, draw: Draw) -> Taken | Denial:
    """Take from one bucket: one write as a rule, two if it is absent or not as last seen."""
    now_ms = till.clock.now_ms()
    bucket, told = till.recall(draw), False
    for attempt in range(ATTEMPTS_MAX):
        await till.pause(attempt)
        unseen = bucket is None and not told
        planned = guess(draw, now_ms) if unseen else plan(bucket, draw, now_ms)
        step, takes = planned, True
        if isinstance(step, Denial):
            if step.settle is not None:
                step, takes = step.settle, False
            elif told or bucket is None:
                return step.told_after(till.clock.now_ms() - now_ms)
            else:  # what was seen may be long gone: the store decides
                step = probe(bucket, now_ms)
        try:
            bucket = await _write(till, draw, step)
        except ConditionFailedError as refusal:
            bucket, takes = bucket_of(refusal.item), False
            till.meter.lost_races += told
        told = True
        till.remember(draw, bucket)
        if takes:
            return Taken(_decided_ms(till, bucket, now_ms), (bucket,))
    raise till.contended(draw)


@overload
async def take_together(till: Till, draws: Sequence[Draw]) -> Taken | Denial: ...
@overload
async def take_together(
    till: Till, draws: Sequence[Draw], record: LeaseRecord
) -> Taken | Denial | LeaseRecord: ...
async def take_together(
    till: Till, draws: Sequence[Draw], record: LeaseRecord | None = None
) -> Taken | Denial | LeaseRecord:
    """Take from all of these or none, in one transaction.

    If the lease was granted before, nothing is taken: the answer is its record as it is now.
    """
    chain = _Chain(till, draws, record)
    if not chain.all_seen and (granted := await chain.read()):
        return granted
    for attempt in range(ATTEMPTS_MAX):
        await till.pause(attempt)
        chain.plan()
        denials = [step for step in chain.steps if isinstance(step, Denial)]
        if not denials:
            outcome = await chain.transact()
            if outcome is not None:
                return outcome
        elif chain.has_read and all(denial.settle is None for denial in denials):
            return chain.denial(denials)
        else:
            await chain.settle()
            if granted := await chain.read():
                return granted
    raise till.contended(draws[0])


async def take_loose(till: Till, draws: Sequence[Draw]) -> Taken | Denial:
    """Take from all of these or none, for a lease of which there is no record."""
    if len(draws) == 1:
        return await take(till, draws[0])
    return await take_together(till, draws)


class _Chain:
    """The buckets of one transaction, what is known of each, and what is planned for it."""

    def __init__(self, till: Till, draws: Sequence[Draw], record: LeaseRecord | None) -> None:
        self._till = till
        self._draws = tuple(draws)
        self._record = record
        self._buckets = [till.recall(draw) for draw in draws]
        self._now_ms = till.clock.now_ms()
        self.steps: list[_Step | Denial] = []
        self.has_read = False

    @property
    def all_seen(self) -> bool:
        return None not in self._buckets

    async def read(self) -> LeaseRecord | None:
        """Read all of it at once; the answer is the lease, if it was granted before."""
        places = [(RATE_BUCKETS, bucket_key(draw.entity, draw.resource)) for draw in self._draws]
        if self._record is not None:
            places.append((RATE_BUCKETS, self._record.key))
        items = await self._till.store.batch_get(places)
        self._buckets = [bucket_of(item) for item in items[: len(self._draws)]]
        for draw, bucket in zip(self._draws, self._buckets, strict=True):
            self._till.remember(draw, bucket)
        self.has_read = True
        return None if self._record is None else _known(self._record, items[-1])

    def plan(self) -> None:
        """Decide what to write to each bucket."""
        self.steps = [
            plan(bucket, draw, self._now_ms)
            for bucket, draw in zip(self._buckets, self._draws, strict=True)
        ]

    def denial(self, denials: Sequence[Denial]) -> Denial:
        """All of them as one."""
        violations = tuple(one for denial in denials for one in denial.violations)
        return Denial(violations).told_after(self._till.clock.now_ms() - self._now_ms)

    async def settle(self) -> None:
        """Bring buckets whose limits have changed up to date, each by itself; taking nothing."""
        for draw, step in zip(self._draws, self.steps, strict=True):
            if isinstance(step, Denial) and step.settle is not None:
                try:
                    await _write(self._till, draw, step.settle)
                except ConditionFailedError:
                    self._till.meter.lost_races += 1  # all of it is read again anyway

    async def transact(self) -> Taken | LeaseRecord | None:
        """Write everything; ``None`` if others came first, and then we know better."""
        steps = [step for step in self.steps if not isinstance(step, Denial)]
        writes: list[Write] = [
            _operation(draw, step) for draw, step in zip(self._draws, steps, strict=True)
        ]
        if self._record is not None:
            writes.append(Put(RATE_BUCKETS, lease_item(self._record), ITEM_ABSENT))
        try:
            await self._till.store.transact(writes)
        except TransactionCancelledError as cancelled:
            return self._learn(cancelled)
        for place, (draw, step) in enumerate(zip(self._draws, steps, strict=True)):
            self._buckets[place] = expected(step, self._buckets[place], draw)
            self._till.remember(draw, self._buckets[place])
        decided_ms = (_decided_ms(self._till, one, self._now_ms) for one in self._buckets)
        return Taken(max(decided_ms), tuple(self._buckets))

    def _learn(self, cancelled: TransactionCancelledError) -> LeaseRecord | None:
        reasons: Sequence[CancellationReason] = cancelled.reasons
        if all(reason.code is not ReasonCode.CONDITION_FAILED for reason in reasons):
            raise cancelled
        self._till.meter.lost_races += 1
        for place, (draw, reason) in enumerate(zip(self._draws, reasons, strict=False)):
            if reason.code is ReasonCode.CONDITION_FAILED:
                self._buckets[place] = bucket_of(reason.item)
                self._till.remember(draw, self._buckets[place])
        return None if self._record is None else _known(self._record, reasons[-1].item)


async def _write(till: Till, draw: Draw, step: _Step) -> Bucket | None:
    """Send one of the three paths that take; the answer is the bucket as it is afterwards."""
    operation = _operation(draw, step)
    if isinstance(operation, Put):
        await till.store.put(operation)
        return step.after if isinstance(step, Create) else None
    return bucket_of(await till.store.update(operation))


def _operation(draw: Draw, step: _Step) -> Put | Update:
    if isinstance(step, Create):
        return create(draw, step)
    if isinstance(step, Normal):
        return normal(draw, step)
    return retry(draw, step)


def _decided_ms(till: Till, bucket: Bucket | None, now_ms: int) -> int:
    """The moment that a grant counts for: when it was asked, or when the bucket was refilled."""
    refilled_ms = now_ms if bucket is None else bucket.refilled_at_ms
    return max(now_ms, min(refilled_ms, till.clock.now_ms()))


def _known(record: LeaseRecord, item: Mapping[str, Any] | None) -> LeaseRecord | None:
    return lease_of(record.entity, record.lease_id, item)
