"""Taking tokens: one round of requests against one bucket, or one chain of buckets.

A round is decided by one reading of the clock. It sends first and asks later: a write planned
from memory, or a guess. A refusal brings the bucket with it, and the next write, or the denial,
is planned from that. Several requests of a round go into one write, as many as there are
tokens for, in the order of their arrival.

One bucket takes a plain write. A chain, or a lease to be recorded, takes a transaction: all of
it or nothing. A refused transaction costs double and need not tell of every bucket, so there
what was never seen is read first, and nothing is denied without having read.

A round loses only to others who got on: after `ATTEMPTS_MAX` times its requests are told
`ContendedError`, which says neither yes nor no. When a reply is lost, they are told
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
    Denial,
    Draw,
    Normal,
    Retry,
    expected,
    guess,
    overdue,
    plan,
    probe,
)
from pricekeeper.limiter.items import LeaseRecord, bucket_key, bucket_of, lease_item, lease_of
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, BucketCache
from pricekeeper.limiter.writes import create, normal, retry
from pricekeeper.storage import ITEM_ABSENT, Key, Put, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS

_Step: TypeAlias = Create | Retry | Normal


class Taken(msgspec.Struct, frozen=True):
    """Tokens that were taken, as of that moment, and the buckets afterwards."""

    as_of_ms: int
    buckets: tuple[Bucket | None, ...]


Outcome: TypeAlias = Taken | Denial | LeaseRecord
"""A record: the lease was granted before, and nothing was taken now."""


class Wish:
    """One request: what it takes from each bucket, the record of its lease, what came of it."""

    __slots__ = ("draws", "outcome", "record")

    def __init__(self, draws: Sequence[Draw], record: LeaseRecord | None = None) -> None:
        self.draws = tuple(draws)
        self.record = record
        self.outcome: Outcome | None = None

    def goes_with(self, other: Wish) -> bool:
        """Whether one write may serve both: the same buckets, limits and kind of write."""
        return (self.record is None) == (other.record is None) and all(
            mine.limits == theirs.limits
            for mine, theirs in zip(self.draws, other.draws, strict=True)
        )


class Round:
    """Wishes that go with each other, on their way to an outcome."""

    def __init__(self, cache: BucketCache, wishes: Sequence[Wish]) -> None:
        first = wishes[0]
        self._cache = cache
        self._pending = list(wishes)
        self._draws = first.draws
        self._plain = len(first.draws) == 1 and first.record is None
        self._buckets = [cache.recall(draw) for draw in first.draws]
        self._told = False
        """Whether the store told us of the buckets in this round; else they are from memory."""
        self._now_ms = cache.clock.now_ms()
        self._monotonic_ms = cache.clock.monotonic_ms()

    async def run(self) -> None:
        """Give every wish its outcome, or raise for all that have none yet."""
        fruitless = 0
        while self._pending:
            await self._cache.pause(fruitless)
            before = len(self._pending)
            await self._advance()
            fruitless = 0 if len(self._pending) < before else fruitless + 1
            if fruitless == ATTEMPTS_MAX:
                raise self._cache.contended(self._draws[0])

    async def _advance(self) -> None:
        """One write or one read, or the denials."""
        unseen = None in self._buckets and not self._told
        if unseen and not self._plain:
            await self._read()
        elif unseen:
            await self._write(self._pending, [guess(self._total(0, self._pending), self._now_ms)])
        else:
            going, steps = self._affordable()
            if going:
                await self._write(going, steps)
            elif not self._told:  # what we remember may be long gone: the store decides
                await self._ask()
            elif not await self._settled():
                self._deny()

    def _affordable(self) -> tuple[list[Wish], list[_Step]]:
        """The wishes that there are tokens for, first come, first served, and how to take them."""
        wishes = self._without_twins()
        steps = self._planned(wishes)
        if steps is not None:
            return wishes, steps
        going: list[Wish] = []
        steps = []
        for wish in wishes:
            planned = self._planned([*going, wish])
            if planned is not None:
                going.append(wish)
                steps = planned
        return going, steps

    def _without_twins(self) -> list[Wish]:
        """Of several wishes for one lease the first: then it is there, and the others know."""
        firsts: dict[Key, Wish] = {}
        return [
            wish
            for wish in self._pending
            if wish.record is None or firsts.setdefault(wish.record.key, wish) is wish
        ]

    def _planned(self, wishes: Sequence[Wish]) -> list[_Step] | None:
        """How to take all of it from every bucket; ``None`` if one of them denies that."""
        steps = []
        for place, bucket in enumerate(self._buckets):
            step = plan(bucket, self._total(place, wishes), self._reading_ms(place))
            if isinstance(step, Denial):
                return None
            steps.append(step)
        return steps

    async def _write(self, going: Sequence[Wish], steps: Sequence[_Step]) -> None:
        draws = [self._total(place, going) for place in range(len(self._draws))]
        operations = [_operation(draw, step) for draw, step in zip(draws, steps, strict=True)]
        if self._plain:
            if not await self._write_one(0, operations[0]):
                return
        else:
            if not await self._transact(operations, going):
                return
            for place, step in enumerate(steps):
                self._learn(place, expected(step, self._buckets[place], draws[place]))
        taken = Taken(self._decided_ms(), tuple(self._buckets))
        for wish in going:
            wish.outcome = taken
        self._recognise_twins(going)
        self._sort_out()

    async def _write_one(self, place: int, operation: Put | Update) -> bool:
        """Whether that was done; either way the store has told us of the bucket."""
        try:
            if isinstance(operation, Put):
                await self._cache.store.put(operation)
                self._learn(place, bucket_of(operation.item))
            else:
                self._learn(place, bucket_of(await self._cache.store.update(operation)))
        except ConditionFailedError as refusal:
            self._learn(place, bucket_of(refusal.item))
            self._cache.meter.lost_races += self._told
            return False
        else:
            return True
        finally:
            self._told = self._told or self._plain

    async def _transact(self, operations: Sequence[Write], going: Sequence[Wish]) -> bool:
        """Whether that was done; if not, we know better about whatever was in the way."""
        puts = [
            Put(RATE_BUCKETS, lease_item(one.record), ITEM_ABSENT) for one in going if one.record
        ]
        try:
            await self._cache.store.transact([*operations, *puts])
        except TransactionCancelledError as cancelled:
            failed = [one.code is ReasonCode.CONDITION_FAILED for one in cancelled.reasons]
            if not any(failed):
                raise
            self._cache.meter.lost_races += 1
            items = [one.item for one in cancelled.reasons]
            for place in range(len(operations)):
                if failed[place]:
                    self._learn(place, bucket_of(items[place]))
            self._recognise(going, items[len(operations) :])
            return False
        return True

    async def _ask(self) -> None:
        bucket, reading_ms = self._buckets[0], self._reading_ms(0)
        if self._plain and bucket is not None and not overdue(bucket, reading_ms):
            await self._write(self._pending[:1], [probe(bucket, reading_ms)])
        else:
            await self._read()

    async def _read(self) -> None:
        """Read everything at once: the buckets, and the leases if they were granted before."""
        keys = [bucket_key(draw.entity, draw.resource) for draw in self._draws]
        keys += [wish.record.key for wish in self._pending if wish.record]
        items = await self._cache.store.batch_get([(RATE_BUCKETS, key) for key in keys])
        for place in range(len(self._draws)):
            self._learn(place, bucket_of(items[place]))
        self._told = True
        self._recognise(self._pending, items[len(self._draws) :])

    def _recognise(self, wishes: Sequence[Wish], items: Sequence[Mapping[str, Any] | None]) -> None:
        """Answer the wishes whose lease exists with its record as it is now."""
        named = [wish for wish in wishes if wish.record]
        for wish, item in zip(named, items, strict=True):
            if wish.record and item is not None:
                wish.outcome = lease_of(wish.record.entity, wish.record.lease_id, item)
        self._sort_out()

    def _recognise_twins(self, going: Sequence[Wish]) -> None:
        """Answer whoever else asked for a lease that was granted just now with its record."""
        granted = {wish.record.key: wish.record for wish in going if wish.record}
        for wish in self._pending:
            if wish.outcome is None and wish.record:
                wish.outcome = granted.get(wish.record.key)

    async def _settled(self) -> bool:
        """Bring buckets whose limits have changed up to date, taking nothing; whether any had."""
        wish = self._pending[0]
        some = False
        for place, draw in enumerate(wish.draws):
            step = plan(self._buckets[place], draw, self._reading_ms(place))
            if isinstance(step, Denial) and step.settle is not None:
                await self._write_one(place, normal(draw, step.settle))
                some = True
        return some

    def _deny(self) -> None:
        waited_ms = self._cache.clock.now_ms() - self._now_ms
        for wish in self._pending:
            steps = [
                plan(self._buckets[place], draw, self._reading_ms(place))
                for place, draw in enumerate(wish.draws)
            ]
            denials = [step for step in steps if isinstance(step, Denial)]
            violations = tuple(one for denial in denials for one in denial.violations)
            if violations:  # else it has only waited for its twin, which is denied
                wish.outcome = Denial(violations).told_after(waited_ms)
        self._sort_out()

    def _sort_out(self) -> None:
        self._pending = [wish for wish in self._pending if wish.outcome is None]

    def _learn(self, place: int, bucket: Bucket | None) -> None:
        self._buckets[place] = bucket
        self._cache.remember(self._draws[place], bucket)

    def _total(self, place: int, wishes: Sequence[Wish]) -> Draw:
        """What these wishes take from one bucket, together."""
        draw = wishes[0].draws[place]
        if len(wishes) == 1:
            return draw
        tokens: dict[str, int] = {}
        for wish in wishes:
            for name, count in wish.draws[place].tokens.items():
                tokens[name] = tokens.get(name, 0) + count
        return Draw(draw.entity, draw.resource, draw.limits, tokens)

    def _reading_ms(self, place: int) -> int:
        """The round's one reading of the clocks, as it counts for that bucket."""
        return self._cache.reading_ms(
            self._draws[place], self._buckets[place], self._now_ms, self._monotonic_ms
        )

    def _decided_ms(self) -> int:
        """The moment a grant counts for: our reading, or that of who refilled after it."""
        latest_ms = max(one.refilled_at_ms if one else 0 for one in self._buckets)
        return max(self._now_ms, min(latest_ms, self._cache.clock.now_ms()))


def _operation(draw: Draw, step: _Step) -> Put | Update:
    if isinstance(step, Create):
        return create(draw, step)
    if isinstance(step, Normal):
        return normal(draw, step)
    return retry(draw, step)
