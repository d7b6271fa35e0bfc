"""Takes the tokens of calls from buckets, and gives back what calls did not use.

A call takes its tokens before it is decided whether there is money for it. Whatever waits for the
buckets of one organisation is taken together: one plain write for each bucket, all at once. If one
of them has too little, what others have given goes back. Tokens are no money: what a crash leaves
taken refills by time, so nothing has to be recovered.

Where other processes take from the same bucket, they refuse each other's writes. So whoever meets
others there takes a **block**: what it needs, and as much again a few times, which the next calls
are served from without a write. A block is spent within `BLOCK_MS`; what is left then goes back.

What calls give back goes along with what is taken next from the same bucket, or is written by
itself after `GIVE_BACK_MS`. An amount is forgotten as soon as it may have been written, so it is
never given back twice. What the store could not take, as one that throttles, is owed until it does
or the process ends. A debit whose reply was lost is taken again, so no call goes without having
taken its tokens.

Nobody is denied by what may be old: the bucket is read first.

Bounds: `WAITING_MAX` calls of an organisation, `ATTEMPTS_MAX` attempts, `BUCKETS_MAX` buckets that
are remembered, and as many that something is owed to; one block of a bucket, of `BLOCK_TIMES` what
was needed and half of what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Final, NamedTuple

from pricekeeper.authorizations.authorization import TOKENS
from pricekeeper.authorizations.bucket_lines import Block, BucketKey, BucketLine, BucketStep
from pricekeeper.authorizations.decision import Candidate, Lacking, Room, Taken, Wanted
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff, BoundedCache, error_copy, gather_in_groups
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    DeniedBy,
    Obstacle,
    OutcomeUnknownError,
    OverloadedError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.limiter.bucket import Bucket, Create, Debit, Denial, LimitStatus, Refill
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.limiter.writes import adjust_update, create_put, refill_update, take_update
from pricekeeper.storage import Store
from pricekeeper.storage.tables import RATE_BUCKETS

WAITING_MAX: Final = 2_000
ATTEMPTS_MAX: Final = 32
BUCKETS_MAX: Final = 20_000
GIVE_BACK_MS: Final = 100
DOUBLINGS_MAX: Final = 6
"""How often that is doubled while the store can't take what is given back."""
BLOCK_MS: Final = 100
BLOCK_TIMES: Final = 8
MET_MS: Final = 1_000
"""For how long whoever has met others at a bucket takes blocks from it."""
BACKOFF: Final = Backoff(4, 64)
WRITES_AT_ONCE_MAX: Final = 16
_AT_ONCE: Final = 2
"""Attempts without a pause before them."""


class _Request:
    """A call that waits for its tokens."""

    __slots__ = ("attempts", "debits", "future", "keys", "missing")

    def __init__(self, debits: tuple[Debit, ...]) -> None:
        self.debits = debits
        self.missing = {_key(debit): debit for debit in debits}
        """Those that were not taken yet, by bucket."""
        self.keys = tuple(self.missing)
        self.attempts = 0
        self.future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

    @property
    def given(self) -> list[Debit]:
        """Those that were taken."""
        return [debit for debit in self.debits if _key(debit) not in self.missing]


class _Denied(NamedTuple):
    """A bucket that has too little."""

    debit: Debit
    line: BucketLine
    denial: Denial

    def remaining(self, limit: str, available: int) -> int:
        """What it has for this call, beside what others take with it."""
        return available - self.line.beside(limit, self.debit.tokens[limit])


class _Planned(NamedTuple):
    """What is to be written to a bucket."""

    key: BucketKey
    line: BucketLine
    step: BucketStep
    ahead: dict[str, int]
    """What of it is for a block."""
    now_ms: int
    """By the monotonic clock."""


class _Answer:
    """The buckets that have too little, and the lines of all after what was taken."""

    __slots__ = ("_now_ms", "_statuses", "denied", "lines")

    def __init__(
        self, denied: tuple[_Denied, ...], lines: tuple[BucketLine, ...], now_ms: int
    ) -> None:
        self.denied = denied
        self.lines = lines
        self._now_ms = now_ms
        self._statuses: dict[str, LimitStatus] = {}
        """Made once for all calls that have the same answer."""

    @property
    def statuses(self) -> Mapping[str, LimitStatus]:
        """Each limit after all that was taken; of several buckets that have it, the lowest."""
        statuses = self._statuses
        if not statuses:
            for line in self.lines:
                for name in line.limits:
                    one = line.status(name, self._now_ms)
                    if name not in statuses or one.remaining < statuses[name].remaining:
                        statuses[name] = one
        return statuses


class TokenTaker:
    """Takes and gives back tokens, for all organisations of this process."""

    def __init__(
        self, store: Store, clock: Clock, random: Random, meter: AuthorizationMeter
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._meter = meter
        self._buckets: BoundedCache[BucketKey, Bucket] = BoundedCache(BUCKETS_MAX)
        self._met: BoundedCache[BucketKey, int] = BoundedCache(BUCKETS_MAX)
        """When others were last met at a bucket."""
        self._waiting: dict[str, deque[_Request]] = {}
        self._blocks: dict[BucketKey, Block] = {}
        self._owed: dict[BucketKey, Debit] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._returning: asyncio.Task[None] | None = None
        self._refusals = 0
        """Times in a row that the store could not take what was given back."""

    async def take(self, wanted: Wanted, candidate: Candidate) -> Taken | Lacking:
        """Take the tokens of a candidate; if the call may be fitted, for as long an answer as fits.

        Nothing is taken if one bucket has too little.
        """
        output_tokens = candidate.max_output_tokens
        while True:  # ends: each answer is shorter than the one before
            debits = wanted.debits(candidate, output_tokens)
            if not debits:
                return Taken(output_tokens, (), {})
            answer = await self._submit(wanted.org_id, debits)
            if not answer.denied:
                return Taken(output_tokens, debits, answer.statuses)
            shorter = _fitting(wanted, candidate, answer)
            if shorter is None or shorter >= output_tokens:
                return _lacking(candidate, answer)
            output_tokens = shorter

    async def look(self, wanted: Wanted, candidate: Candidate) -> Room | Lacking:
        """What would be in the way of a candidate, from its buckets as they are; takes nothing."""
        debits = wanted.debits(candidate, candidate.max_output_tokens)
        keys = dict.fromkeys(map(_key, debits))
        await self._return(keys)
        await self._read(keys)
        now_ms = self._clock.now_ms()
        lines = [self._line(debit, now_ms) for debit in debits]
        answer = _Answer(_denied(debits, lines), tuple(lines), now_ms)
        if not answer.denied:
            return Room(candidate.max_output_tokens, answer.statuses)
        shorter = _fitting(wanted, candidate, answer)
        if shorter is not None:
            denied = _denied(wanted.debits(candidate, shorter), lines)
            if not denied:
                return Room(shorter, answer.statuses)
            answer = _Answer(denied, answer.lines, now_ms)  # by more than its length
        return _lacking(candidate, answer)

    def give_back(self, debits: Iterable[Debit]) -> None:
        """Give tokens back, or take more without asking: those above zero were used beyond."""
        for debit in debits:
            if any(debit.tokens.values()):
                self._owe(_key(debit), debit)
        if self._owed:
            self._return_soon()

    async def give_back_now(self, debits: Iterable[Debit]) -> None:
        """Have what is owed to the buckets of these written before this returns."""
        await self._return({_key(debit) for debit in debits})

    async def close(self) -> None:
        """Take what was asked for, and give back what is owed."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        await self._stop_returning()
        await self._return({**self._blocks, **self._owed})
        await self._stop_returning()

    async def _submit(self, org_id: str, debits: tuple[Debit, ...]) -> _Answer:
        waiting = self._waiting.get(org_id)
        if waiting is None:
            waiting = self._waiting[org_id] = deque()
        if len(waiting) >= WAITING_MAX:
            raise OverloadedError("too many authorizations of this organisation are waiting")
        request = _Request(debits)
        waiting.append(request)
        if org_id not in self._tasks:
            task = asyncio.create_task(self._run(org_id, waiting), name="pricekeeper-tokens")
            self._tasks[org_id] = task
        try:
            return await request.future
        except asyncio.CancelledError:
            if _has_taken(request):
                self.give_back(negated(debits))
            raise

    async def _run(self, org_id: str, waiting: deque[_Request]) -> None:
        error: BaseException = StoreError("the tokens were not taken")
        left: list[_Request] = []
        try:
            while left or waiting:
                await asyncio.sleep(0)  # what comes in this turn of the loop is taken with it
                left += waiting
                waiting.clear()
                try:
                    await self._take_once(left)
                except StoreError as failure:
                    for request in left:
                        self._fail(request, failure)
                left = [request for request in left if not request.future.done()]
                if left:
                    await self._pause(min(request.attempts for request in left))
        except BaseException as failure:
            error = failure
            raise
        finally:
            del self._tasks[org_id]
            self._waiting.pop(org_id, None)
            for request in (*left, *waiting):
                self._fail(request, error)

    async def _take_once(self, left: Sequence[_Request]) -> None:
        """Take what can be taken; whoever is denied by what is not old is told so."""
        fresh: set[BucketKey] = set()
        keys = dict.fromkeys(chain.from_iterable(one.missing for one in left))
        unseen = [key for key in keys if self._buckets.get(key) is None]
        if unseen:
            await self._read(unseen)
            fresh.update(unseen)
        now_ms, lines = self._clock.now_ms(), dict[BucketKey, BucketLine]()
        admitted = [one for one in left if self._admit(one, lines, now_ms)]
        if admitted:
            fresh |= await self._write_all(admitted, lines, now_ms)
        lacking = [one for one in left if one not in admitted and not one.future.done()]
        if lacking:
            await self._deny_lacking(lacking, fresh)
        for request in left:
            request.attempts += 1
            if request.attempts > ATTEMPTS_MAX:
                self._fail(request, ContendedError("other writers kept winning"))

    async def _deny_lacking(self, lacking: Sequence[_Request], fresh: set[BucketKey]) -> None:
        """Deny those that there is too little for, by buckets that are not old."""
        keys = dict.fromkeys(key for one in lacking for key in one.missing)
        returned = await self._return(keys)
        await self._read([key for key in keys if key not in fresh or key in returned])
        now_ms, lines = self._clock.now_ms(), dict[BucketKey, BucketLine]()
        denied = [one for one in lacking if not self._has_room(one, lines, now_ms)]
        await self._deny_all(denied, now_ms)

    def _admit(self, request: _Request, lines: dict[BucketKey, BucketLine], now_ms: int) -> bool:
        """Take its tokens from blocks and on the lines, if all of them have room."""
        spent: list[tuple[BucketKey, Block, Debit]] = []
        taken: list[tuple[BucketLine, Debit]] = []
        for key, debit in request.missing.items():
            block = self._blocks.get(key)
            if block is not None and block.has(debit, self._clock.monotonic_ms()):
                spent.append((key, block, debit))
                continue
            line = lines.get(key)
            if line is None:
                line = lines[key] = self._line(debit, now_ms)
            if line.limits is not debit.limits and line.limits != debit.limits:
                return False  # settings have changed in between: it comes next
            if not line.has_room(debit.tokens):
                return False
            taken.append((line, debit))
        for key, block, debit in spent:
            block.spend(debit)
            del request.missing[key]
        for line, debit in taken:
            line.take(debit.tokens)
        return True

    def _has_room(self, request: _Request, lines: dict[BucketKey, BucketLine], now_ms: int) -> bool:
        """Whether the buckets have what it still needs, beside those who are before it."""
        mine = [
            (lines.setdefault(key, self._line(debit, now_ms)), debit)
            for key, debit in request.missing.items()
        ]
        if not all(line.has_room(debit.tokens) for line, debit in mine):
            return False
        for line, debit in mine:
            line.take(debit.tokens)
        return True

    def _line(self, debit: Debit, now_ms: int) -> BucketLine:
        key = _key(debit)
        return BucketLine(self._buckets.peek(key), debit.limits, now_ms, self._owed.get(key))

    async def _write_all(
        self, admitted: Sequence[_Request], lines: Mapping[BucketKey, BucketLine], now_ms: int
    ) -> set[BucketKey]:
        """Write what was admitted, and answer those whose buckets have all given; which those are.

        Those of whom one has refused keep what the others have given.
        """
        keys = [key for key, line in lines.items() if line.taken]
        planned = [self._plan(key, lines[key]) for key in keys]
        done = await asyncio.gather(*map(self._write, planned))
        outcomes = dict(zip(keys, done, strict=True))
        answers: dict[tuple[BucketKey, ...], _Answer] = {}
        for request in admitted:
            failure: StoreError | None = None
            for key in tuple(request.missing):
                outcome = outcomes[key]
                if outcome is True:
                    del request.missing[key]
                elif isinstance(outcome, StoreError):
                    failure = outcome
            if failure is not None:
                self._fail(request, failure)
            if request.future.cancelled():
                self.give_back(negated(request.given))
            elif not request.missing and not request.future.done():
                answer = answers.get(request.keys)
                if answer is None:
                    mine = (
                        lines.get(_key(one)) or self._line(one, now_ms) for one in request.debits
                    )
                    answer = answers[request.keys] = _Answer((), tuple(mine), now_ms)
                request.future.set_result(answer)
        return {key for key, outcome in outcomes.items() if outcome is True}

    def _plan(self, key: BucketKey, line: BucketLine) -> _Planned:
        """The write that takes from one bucket; what it gives back is on its way from now on."""
        ahead: dict[str, int] = {}
        met_ms, now_ms = self._met.peek(key), self._clock.monotonic_ms()
        if met_ms is not None and now_ms - met_ms < MET_MS:
            ahead = line.ahead(BLOCK_TIMES)
            line.take(ahead)
        one = line.plan(key)
        owed = self._owed.get(key)
        if owed is not None:
            for name in one.given_back:
                del owed.tokens[name]
            if not owed.tokens:
                del self._owed[key]
        return _Planned(key, line, one, ahead, now_ms)

    async def _write(self, planned: _Planned) -> bool | StoreError:
        """Take from one bucket; whether it has given, or why nobody could."""
        key, line, one, ahead, now_ms = planned
        try:
            self._note(key, await self._apply(one))
        except ConditionFailedError as refused:
            self._note(key, bucket_of(refused.item))
            self._met.put(key, now_ms)
            self._owe_again(planned)
            return False
        except OutcomeUnknownError:
            self._meter.debits_lost += 1
            self._buckets.pop(key)
            return False
        except StoreUnavailableError as failure:
            self._owe_again(planned)
            if not isinstance(failure, ContendedError):
                return failure
            self._buckets.pop(key)
            return False
        except StoreError as failure:
            return failure
        if any(ahead.values()):
            before = self._blocks.get(key)
            self._blocks[key] = Block(key, line.limits, ahead, now_ms + BLOCK_MS)
            self.give_back([] if before is None else [before.rest])
            self._return_soon()
        return True

    async def _apply(self, one: BucketStep) -> Bucket | None:
        step, debit = one.step, one.debit
        if isinstance(step, Create):
            await self._store.put(create_put(debit, step))
            return step.after
        made = refill_update(debit, step) if isinstance(step, Refill) else take_update(debit, step)
        return bucket_of(await self._store.update(made))

    def _owe(self, key: BucketKey, debit: Debit) -> None:
        """Give that back to a bucket, some day."""
        owed = self._owed.get(key)
        if owed is None:
            if len(self._owed) >= BUCKETS_MAX:
                self._meter.refunds_lost += 1
                return
            owed = self._owed[key] = Debit(*key, dict(debit.limits), {})
        for name, count in debit.tokens.items():
            owed.limits[name] = debit.limits[name]
            owed.tokens[name] = owed.tokens.get(name, 0) + count

    def _owe_again(self, planned: _Planned) -> None:
        """What was not written is still owed."""
        one = planned.step
        if one.given_back:
            self._owe(planned.key, Debit(*planned.key, one.debit.limits, dict(one.given_back)))
            self._return_soon()

    async def _deny_all(self, left: Sequence[_Request], now_ms: int) -> None:
        for request in left:
            mine = [self._line(debit, now_ms) for debit in request.debits]
            denied = tuple(
                one for one in _denied(request.debits, mine) if _key(one.debit) in request.missing
            )
            if not denied:
                continue  # what those before it take is in its way, and may not be taken
            await self._settle_terms(denied)
            self.give_back(negated(request.given))
            if not request.future.done():
                request.future.set_result(_Answer(denied, tuple(mine), now_ms))

    async def _settle_terms(self, denied: Iterable[_Denied]) -> None:
        """Let limits that have changed reach the buckets that have denied a call."""
        for debit, _, denial in denied:
            if denial.settle is not None:
                with contextlib.suppress(StoreError):  # the next denial tries again
                    item = await self._store.update(refill_update(debit, denial.settle))
                    self._note(_key(debit), bucket_of(item))

    async def _read(self, keys: Collection[BucketKey]) -> None:
        if keys:
            listed = list(keys)
            items = [(RATE_BUCKETS, bucket_key(*key)) for key in listed]
            for key, item in zip(listed, await self._store.batch_get(items), strict=True):
                self._note(key, bucket_of(item))

    def _note(self, key: BucketKey, bucket: Bucket | None) -> None:
        if bucket is None:
            self._buckets.pop(key)
        else:
            self._buckets.put(key, bucket)

    async def _stop_returning(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])

    def _return_soon(self) -> None:
        if self._returning is None:
            self._returning = asyncio.create_task(self._return_later(), name="pricekeeper-refunds")

    async def _return_later(self) -> None:
        """Write what nothing has taken along after a while."""
        try:
            while self._owed or self._blocks:
                await self._clock.sleep_ms(GIVE_BACK_MS << min(self._refusals, DOUBLINGS_MAX))
                now_ms = self._clock.monotonic_ms()
                spent = [key for key, one in self._blocks.items() if now_ms >= one.expires_ms]
                owed = [key for key in self._owed if key not in self._blocks]
                await self._return(spent + owed)
        finally:
            self._returning = None

    async def _return(self, keys: Collection[BucketKey]) -> set[BucketKey]:
        """Write what is owed to these buckets, and what is left of their blocks; which had any."""
        debits: list[Debit] = []
        for key in keys:
            block = self._blocks.pop(key, None)
            if block is not None:
                self._owe(key, block.rest)
            owed = self._owed.pop(key, None)
            if owed is not None and any(owed.tokens.values()):
                debits.append(owed)
        await gather_in_groups(self._return_one, debits, WRITES_AT_ONCE_MAX)
        return {_key(debit) for debit in debits}

    async def _return_one(self, debit: Debit) -> None:
        try:
            item = await self._store.update(adjust_update(debit))
        except ConditionFailedError as refused:
            self._meter.refunds_lost += 1
            self._note(_key(debit), bucket_of(refused.item))
        except StoreUnavailableError:
            self._refusals += 1
            self._owe(_key(debit), debit)
            self._return_soon()
        except StoreError:
            self._meter.refunds_lost += 1
            self._buckets.pop(_key(debit))
        else:
            self._refusals = 0
            self._note(_key(debit), bucket_of(item))

    async def _pause(self, attempts: int) -> None:
        """Let others come first, if whoever waits has been refused repeatedly."""
        if attempts <= _AT_ONCE:
            return
        pause_ms = BACKOFF.pause_ms(attempts - _AT_ONCE, self._random.randrange)
        await self._clock.sleep_ms(pause_ms)

    def _fail(self, request: _Request, error: BaseException) -> None:
        if request.future.done():
            return
        self.give_back(negated(request.given))
        if isinstance(error, asyncio.CancelledError):
            request.future.cancel()
        else:
            request.future.set_exception(error_copy(error))


def negated(debits: Iterable[Debit]) -> list[Debit]:
    """What gives these back."""
    return [
        Debit(one.entity, one.resource, one.limits, {name: -n for name, n in one.tokens.items()})
        for one in debits
    ]


def _key(debit: Debit) -> BucketKey:
    return debit.entity, debit.resource


def _denied(debits: Sequence[Debit], lines: Sequence[BucketLine]) -> tuple[_Denied, ...]:
    return tuple(
        _Denied(debit, line, line.deny(debit))
        for debit, line in zip(debits, lines, strict=True)
        if not line.has_room(debit.tokens)
    )


def _fitting(wanted: Wanted, candidate: Candidate, answer: _Answer) -> int | None:
    """The longest answer that its tokens suffice for; ``None`` if the call can't be fitted."""
    least = candidate.min_output_tokens
    if least is None or wanted.consume is not None:
        return None
    longest = candidate.max_output_tokens
    for one in answer.denied:
        for violation in one.denial.violations:
            if violation.limit == TOKENS:
                left = one.remaining(TOKENS, violation.available)
                longest = min(longest, left - candidate.input_tokens)
    return max(least, longest)


def _lacking(candidate: Candidate, answer: _Answer) -> Lacking:
    scopes = {bucket.entity: bucket.scope for bucket in candidate.chain.buckets}
    return Lacking(
        tuple(
            DeniedBy(
                Obstacle.LIMIT,
                violation.limit,
                scopes[one.debit.entity],
                candidate.label,
                one.debit.tokens[violation.limit],
                one.remaining(violation.limit, violation.available),
                retry_after_ms=violation.retry_after_ms,
            )
            for one in answer.denied
            for violation in one.denial.violations
        )
    )


def _has_taken(request: _Request) -> bool:
    future = request.future
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    return not future.result().denied
