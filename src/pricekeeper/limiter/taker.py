"""Takes tokens from buckets: the one engine of acquires, authorizations and the API's own limits.

Requests that wait for the same last bucket of their chain share one plain write per bucket. If one
bucket refuses, the tokens taken from the others are given back; after a crash in between they
refill. Plain writes cost half of a transaction's on DynamoDB and do not cancel each other.

A write is planned from the cached bucket, and the store refuses it if that was wrong. A denial is
never based on the cache: the bucket is read first. A debit whose reply was lost is taken again, so
no request goes without having taken its tokens.

If another process also writes to a bucket, a batch takes a **block**: up to `BLOCK_TIMES` as many
tokens more, at most half of those left. It serves the next requests for ``hold_ms``; the rest goes
back.

Bounds: `WAITING_MAX` requests wait for a bucket, and as many are served, each with `ATTEMPTS_MAX`
attempts; one block of a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from pricekeeper.concurrency import BoundedCache, error_copy
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    OverloadedError,
    StoreError,
    StoreUnavailableError,
    UnreadableItemError,
    Violation,
)
from pricekeeper.limiter.bucket import Create, Debit, Denial, LimitStatus, Refill
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, SEEN_MAX, BucketCache
from pricekeeper.limiter.bucket_lines import Block, BucketLine, BucketStep, scarcest
from pricekeeper.limiter.returns import Returns, negated
from pricekeeper.limiter.writes import create_put, refill_update, take_update
from pricekeeper.storage import Key

WAITING_MAX: Final = 2_000
HOLD_MS: Final = 100
BLOCK_TIMES: Final = 8
WAITS_MAX: Final = 3
"""Attempts until a request is denied for the tokens that requests before it take."""
BUSY_MS: Final = 1_000
"""For how long after another process was met, or a block was asked for, blocks are taken."""


class _Request:
    __slots__ = ("ahead", "attempts", "debits", "future", "keys", "missing")

    def __init__(self, debits: tuple[Debit, ...], ahead: int) -> None:
        self.debits = debits
        self.ahead = ahead
        self.missing = {debit.key: debit for debit in debits}
        self.keys = tuple(self.missing)
        self.attempts = 0
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def undo(self) -> list[Debit]:
        """The debits that give back the tokens taken so far. A second call gives back none."""
        given = [debit for debit in self.debits if debit.key not in self.missing]
        self.missing.update({debit.key: debit for debit in given})
        return negated(given)


class DeniedDebit(NamedTuple):
    """A debit that its bucket has too little for."""

    debit: Debit
    line: BucketLine
    denial: Denial

    def remaining(self, limit: str, available: int) -> int:
        return available - self.line.beside(limit, self.debit.tokens[limit])

    @property
    def violations(self) -> list[Violation]:
        entity, resource, tokens = self.debit.entity, self.debit.resource, self.debit.tokens
        return [
            Violation(
                entity,
                resource,
                one.limit,
                tokens[one.limit],
                self.remaining(one.limit, one.available),
                self._wait_ms(one),
            )
            for one in self.denial.violations
            if one.limit in tokens
        ]

    def _wait_ms(self, violation: Violation) -> int | None:
        limit, tokens = self.line.limits[violation.limit], self.debit.tokens[violation.limit]
        if violation.retry_after_ms is None and tokens <= limit.capacity:
            return limit.filling_ms(limit.capacity_units)  # it fits after those before it
        return violation.retry_after_ms


class Answer:
    """The debits that were denied, none if all were taken, and the state of the limits."""

    __slots__ = ("_statuses", "denied", "lines", "now_ms")

    def __init__(
        self, denied: tuple[DeniedDebit, ...], lines: Sequence[BucketLine], now_ms: int
    ) -> None:
        self.denied = denied
        self.lines = lines
        self.now_ms = now_ms
        self._statuses: Mapping[str, LimitStatus] = {}

    @property
    def statuses(self) -> Mapping[str, LimitStatus]:
        """Of each limit; where buckets share one, the scarcest."""
        if not self._statuses:
            self._statuses = scarcest(self.lines, self.now_ms)
        return self._statuses


class _Planned(NamedTuple):
    key: Key
    line: BucketLine
    step: BucketStep
    ahead: dict[str, int]
    now_ms: int
    """On the monotonic clock."""


class Taker:
    """Takes tokens from buckets, for all callers of this process."""

    def __init__(self, cache: BucketCache, *, hold_ms: int = HOLD_MS) -> None:
        self.cache = cache
        self.returns = Returns(cache)
        self._hold_ms = hold_ms
        self._busy: BoundedCache[Key, int] = BoundedCache(SEEN_MAX)
        """When another process was last met at a bucket, or a block was last asked for."""
        self._waiting: dict[Key, deque[_Request]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    async def take(self, debits: tuple[Debit, ...], *, ahead: int = 0) -> Answer:
        """Take all of these tokens, or none.

        ``ahead``: if the bucket is busy, a block of so many times.
        """
        last = debits[-1].key
        waiting = self._waiting.get(last)
        if waiting is None:
            waiting = self._waiting[last] = deque()
        if len(waiting) >= WAITING_MAX:
            raise OverloadedError(f"{last.pk} {last.sk}: {WAITING_MAX} requests wait already")
        request = _Request(debits, ahead)
        waiting.append(request)
        if last not in self._tasks:
            task = asyncio.create_task(self._run(last, waiting), name="pricekeeper-tokens")
            self._tasks[last] = task
        try:
            return await request.future
        except asyncio.CancelledError:
            if _has_taken(request):
                self.returns.give_back(negated(debits))
            raise

    def take_at_once(self, debit: Debit) -> bool:
        block = self.returns.blocks.get(debit.key)
        if block is None or not block.has(debit, self.cache.clock.monotonic_ms()):
            return False
        block.spend(debit)
        self.cache.meter.prefetched += 1
        return True

    def recall(self, debits: Sequence[Debit]) -> Answer:
        """Whether there is room, by the cache; nothing is taken."""
        now_ms = self.cache.clock.now_ms()
        lines = [self._line(debit, now_ms) for debit in debits]
        return Answer(denied_debits(debits, lines), lines, now_ms)

    async def look(self, debits: Sequence[Debit]) -> Answer:
        """As `recall`, by the store."""
        keys = list(dict.fromkeys(debit.key for debit in debits))
        await self.returns.flush(keys, blocks=True)
        for error in (await self.cache.read(keys)).values():
            raise error
        return self.recall(debits)

    def give_back(self, debits: Iterable[Debit]) -> None:
        self.returns.give_back(debits)

    async def give_back_now(self, debits: Iterable[Debit]) -> None:
        """Flush the tokens owed to the buckets of these debits before returning."""
        await self.returns.flush(dict.fromkeys(debit.key for debit in debits))

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        await self.returns.close()

    async def _run(self, last: Key, waiting: deque[_Request]) -> None:
        error: BaseException = StoreError("the tokens were not taken")
        left: list[_Request] = []
        refused: set[Key] = set()
        races = 0
        try:
            while left or waiting:
                await asyncio.sleep(0)  # requests of this turn of the loop are in the same batch
                while waiting and len(left) < WAITING_MAX:
                    left.append(waiting.popleft())
                try:
                    refused = await self._take_once(left, refused)
                except StoreError as failure:
                    refused = set()
                    self._fail_all(left, failure)
                races = races + 1 if refused else 0
                left = self._unanswered(left)
                attempts = min((request.attempts for request in left), default=0)
                if left and await self.cache.pause(max(races, attempts)):
                    refused.clear()
        except BaseException as failure:
            error = failure
            raise
        finally:
            del self._tasks[last]
            self._waiting.pop(last, None)
            self._fail_all([*left, *waiting], error)

    async def _take_once(self, left: Sequence[_Request], fresh: set[Key]) -> set[Key]:
        """Take what can be taken. A request is denied only by buckets that were just read.

        ``fresh`` are the buckets that a refused write has just returned. Returns those of this
        call.
        """
        refused: set[Key] = set()
        keys = dict.fromkeys(chain.from_iterable(one.missing for one in left))
        unseen = [key for key in keys if self.cache.seen.peek(key) is None]
        if unseen:
            left = self._without(left, await self.cache.read(unseen))
            fresh.update(unseen)
        now_ms, lines = self.cache.clock.now_ms(), dict[Key, BucketLine]()
        admitted, others = list[_Request](), list[_Request]()
        for one in left:
            (admitted if self._admit(one, lines, now_ms) else others).append(one)
        if admitted:
            written, refused = await self._write_all(admitted, lines, now_ms)
            fresh = fresh | written | refused
        lacking = [one for one in others if not one.future.done()]
        if lacking:
            await self._deny_lacking(lacking, fresh)
        for request in left:
            request.attempts += 1
            if request.attempts == ATTEMPTS_MAX:
                self._fail_all([request], self.cache.contended(request.keys[-1]))
        return refused

    def _unanswered(self, left: Iterable[_Request]) -> list[_Request]:
        """The requests that still wait; a caller that has left gets its tokens given back."""
        waiting = []
        for request in left:
            if not request.future.done():
                waiting.append(request)
            elif request.future.cancelled():
                self.returns.give_back(request.undo())
        return waiting

    def _without(
        self, left: Sequence[_Request], errors: Mapping[Key, UnreadableItemError]
    ) -> Sequence[_Request]:
        if not errors:
            return left
        others = []
        for request in left:
            error = next((errors[key] for key in request.missing if key in errors), None)
            if error is None:
                others.append(request)
            else:
                self._fail_all([request], error)
        return others

    async def _deny_lacking(self, lacking: Sequence[_Request], fresh: set[Key]) -> None:
        keys = dict.fromkeys(key for one in lacking for key in one.missing)
        returned = await self.returns.flush(keys, blocks=True)
        errors = await self.cache.read([key for key in keys if key not in fresh or key in returned])
        now_ms, lines = self.cache.clock.now_ms(), dict[Key, BucketLine]()
        for request in self._without(lacking, errors):
            mine = self._lines_of(request, lines, now_ms)
            if not self._has_room(request, mine):
                await self._deny(request, now_ms, mine)

    def _lines_of(
        self, request: _Request, lines: dict[Key, BucketLine], now_ms: int
    ) -> dict[Key, BucketLine]:
        """The lines that requests before it have taken from, where they are under its limits."""
        mine = {}
        for key, debit in request.missing.items():
            line = lines.get(key)
            if line is None:
                line = lines[key] = self._line(debit, now_ms)
            mine[key] = line if line.is_under(debit.limits) else self._line(debit, now_ms)
        return mine

    def _admit(self, request: _Request, lines: dict[Key, BucketLine], now_ms: int) -> bool:
        spent: list[tuple[Key, Block, Debit]] = []
        taken: list[tuple[BucketLine, Debit]] = []
        for key, debit in request.missing.items():
            block = self.returns.blocks.get(key)
            if block is not None and block.has(debit, self.cache.clock.monotonic_ms()):
                spent.append((key, block, debit))
                continue
            line = lines.get(key)
            if line is None:
                line = lines[key] = self._line(debit, now_ms)
            elif not line.is_under(debit.limits):
                return False  # settings have changed in between: it comes next
            if not line.has_room(debit.tokens):
                return False
            taken.append((line, debit))
        for key, block, debit in spent:
            block.spend(debit)
            del request.missing[key]
        self.cache.meter.prefetched += not taken
        for line, debit in taken:
            line.take(debit.tokens)
        return True

    def _has_room(self, request: _Request, lines: Mapping[Key, BucketLine]) -> bool:
        missing = request.missing
        if not all(lines[key].has_room(debit.tokens) for key, debit in missing.items()):
            return False
        for key, debit in missing.items():
            lines[key].take(debit.tokens)
        return True

    def _line(self, debit: Debit, now_ms: int) -> BucketLine:
        bucket, reading_ms = self.cache.read_now(debit.key, now_ms)
        return BucketLine(bucket, debit.limits, reading_ms, self.returns.owed.get(debit.key))

    async def _write_all(
        self, admitted: Sequence[_Request], lines: Mapping[Key, BucketLine], now_ms: int
    ) -> tuple[set[Key], set[Key]]:
        """Write the admitted debits and answer the requests that have all their tokens.

        Returns the written buckets, and those that a refusal has returned. A request that one
        bucket has refused keeps the tokens of the others for its next attempt.
        """
        ahead = {key: one.ahead for one in admitted if one.ahead for key in one.missing}
        keys = [key for key, line in lines.items() if line.taken]
        began_ms = self.cache.clock.monotonic_ms()
        planned = [self._plan(key, lines[key], ahead.get(key, 0), began_ms) for key in keys]
        done = await asyncio.gather(*map(self._write, planned))
        outcomes = dict(zip(keys, done, strict=True))
        answers: dict[tuple[Key, ...], Answer] = {}
        for request in admitted:
            failures = [
                outcome
                for key in request.missing
                if isinstance(outcome := outcomes[key], StoreError)
            ]
            for key in [key for key in request.missing if outcomes[key] is True]:
                del request.missing[key]
            if failures:
                self._fail_all([request], failures[0])
            if not request.missing and not request.future.done():
                answer = answers.get(request.keys)
                if answer is None:
                    mine = [lines.get(one.key) or self._line(one, now_ms) for one in request.debits]
                    answer = answers[request.keys] = Answer((), mine, now_ms)
                request.future.set_result(answer)
        written = {key for key, outcome in outcomes.items() if outcome is True}
        refused = {key for key in keys if outcomes[key] is False and self.cache.seen.peek(key)}
        return written, refused

    def _plan(self, key: Key, line: BucketLine, ahead: int, now_ms: int) -> _Planned:
        """Tokens that the write gives back are no longer owed."""
        extra: dict[str, int] = {}
        busy_ms = self._busy.peek(key)
        if busy_ms is not None and now_ms - busy_ms < BUSY_MS:
            extra = line.ahead(ahead or BLOCK_TIMES)
            line.take(extra)
        if ahead:
            self._busy.put(key, now_ms)
        one = line.plan(key)
        if one.given_back:
            self.returns.take_along(key, one.given_back)
        return _Planned(key, line, one, extra, now_ms)

    async def _write(self, planned: _Planned) -> bool | StoreError:
        key, line, one, ahead, now_ms = planned
        try:
            await self._apply(key, one)
        except ConditionFailedError as refused:
            self._busy.put(key, now_ms)
            self.cache.meter.lost_races += 1
            self._owe_again(one)
            try:
                self.cache.note(key, refused.item)
            except UnreadableItemError as error:
                return error
            return False
        except OutcomeUnknownError:
            self.cache.meter.debits_lost += 1
            self.cache.remember(key, None)
            return False
        except StoreUnavailableError as failure:
            self._owe_again(one)
            if not isinstance(failure, ContendedError):
                return failure
            self.cache.remember(key, None)
            return False
        except StoreError as failure:
            return failure
        if any(ahead.values()):
            self.returns.hold(Block(key, line.limits, ahead, now_ms + self._hold_ms))
        return True

    async def _apply(self, key: Key, one: BucketStep) -> None:
        step, debit, store = one.step, one.debit, self.cache.store
        if isinstance(step, Create):
            await store.put(create_put(key, step.after))
            self.cache.remember(key, step.after)
            return
        made = refill_update(debit, step) if isinstance(step, Refill) else take_update(debit, step)
        self.cache.note(key, await store.update(made))

    def _owe_again(self, one: BucketStep) -> None:
        """Tokens whose return was not written are still owed."""
        if one.given_back:
            self.returns.give_back([one.debit.with_tokens(dict(one.given_back))])

    async def _deny(self, request: _Request, now_ms: int, others: Mapping[Key, BucketLine]) -> None:
        """Deny a request, but not at first if only the requests before it are in its way."""
        lines = [self._line(debit, now_ms) for debit in request.debits]
        if request.attempts >= WAITS_MAX:
            lines = [
                others.get(debit.key) or line
                for debit, line in zip(request.debits, lines, strict=True)
            ]
        denied = tuple(
            one for one in denied_debits(request.debits, lines) if one.debit.key in request.missing
        )
        if not denied:
            return
        for debit, _, denial in denied:
            if denial.settle is not None:  # limits that have changed are written to the bucket
                with contextlib.suppress(StoreError):  # the next denial tries again
                    item = await self.cache.store.update(refill_update(debit, denial.settle))
                    self.cache.note(debit.key, item)
        self.returns.give_back(request.undo())
        if not request.future.done():
            request.future.set_result(Answer(denied, lines, now_ms))

    def _fail_all(self, requests: Iterable[_Request], error: BaseException) -> None:
        for request in requests:
            if request.future.done():
                continue
            self.returns.give_back(request.undo())
            if isinstance(error, asyncio.CancelledError):
                request.future.cancel()
            else:
                request.future.set_exception(error_copy(error))


def denied_debits(debits: Sequence[Debit], lines: Sequence[BucketLine]) -> tuple[DeniedDebit, ...]:
    """The debits that their buckets have too little for."""
    return tuple(
        DeniedDebit(debit, line, line.deny(debit))
        for debit, line in zip(debits, lines, strict=True)
        if not line.has_room(debit.tokens)
    )


def _has_taken(request: _Request) -> bool:
    future = request.future
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    return not future.result().denied
