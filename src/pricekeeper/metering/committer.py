"""Committing records: combined, exactly once, and through every failure the store can have.

What arrives while a commit is in flight waits and goes into the next one. Only when more waits
than `LANE_BACKLOG` is another commit begun beside it, up to `LANES_MAX`.

After a transaction:

- Applied: everybody is answered.
- Cancelled: a receipt was there already. Whoever met it is answered from it, and the rest is
  sent again without them. Should the receipt bear our own commit id, then an earlier sending
  whose reply was lost had been applied: that is no duplicate, it is us.
- Outcome unknown: the same records are sent again. Every sending has the same put-if-absent
  receipts, so one of them can be applied, whenever they arrive; that makes it safe to choose
  other shards as well.
- Contended: other shards are chosen and it is sent again after a pause.
- Invalid: one bad item, of whichever tenant, would fail everybody in the transaction. So it is
  halved until the bad record is alone with its error. What it can't be added to may be its shard,
  which another program has damaged, so it is sent again to others before it fails.
- Anything else is told to everybody in it.

A record holds a place in the queue until it is answered. Each organisation has its share of these,
which shrinks as more organisations use it (`metering.admission`), and commits take from their
queues in turns (`metering.fairness`): a neighbour of one that floods goes into one of the next.

Bounds: `PENDING_MAX` places, of which one organisation alone can have half,
`LANES_MAX` commits in flight, and `SENDINGS_MAX` sendings of one that is contended or
unknown, with up to `PAUSE_MS_MAX` between them, on top of the store's own attempts. A cancelled
transaction does not count: it gets smaller every time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, error_copy, full_jitter_ms
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.metering.combining import Counted, Plan, Settled, Submission, summed, take
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.fairness import TurnQueue
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.meter import MeteringMeter
from pricekeeper.storage import Store

PENDING_MAX: Final = 10_000
LANES_MAX: Final = 4
LANE_BACKLOG: Final = 99
"""One transaction's worth of records of one account."""
TURN_RECORDS: Final = 25
"""Records of one organisation in a row: they share counters, so that a commit holds more."""
SENDINGS_MAX: Final = 6
PAUSE_MS_FIRST: Final = 40
PAUSE_MS_MAX: Final = 500
MARKED_MAX: Final = 50_000
"""Accounts that this process has marked; a forgotten one is marked again, which costs two units."""


class _Commit:
    """Records under one commit id, and whether a sending of them may have been applied unseen."""

    __slots__ = ("doubt", "id", "left")

    def __init__(self, left: Sequence[Submission], commit_id: str, *, doubt: bool = False) -> None:
        self.left = left
        self.id = commit_id
        self.doubt = doubt

    def halves(self) -> tuple[_Commit, _Commit]:
        middle = len(self.left) // 2
        return (
            _Commit(self.left[:middle], self.id, doubt=self.doubt),
            _Commit(self.left[middle:], self.id, doubt=self.doubt),
        )


class Committer:
    """The only writer of receipts and counters in this process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        randomness: Random,
        counted: Callable[[Counted, Counters], None],
        give_back: Callable[[str, int], None],
        *,
        retention_days: int = RETENTION_DAYS,
        lanes_max: int = LANES_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = randomness
        self._tell_counted = counted
        self._give_back = give_back
        self._retention_days = retention_days
        self._lanes_max = lanes_max
        self._queue: TurnQueue[Submission] = TurnQueue(TURN_RECORDS)
        self._unanswered: dict[str, Submission] = {}
        self._pending = 0
        self._lanes: set[asyncio.Task[None]] = set()
        self._starting = False
        self._busy: set[tuple[Counted, int]] = set()
        self._marked: BoundedCache[Counted, None] = BoundedCache(MARKED_MAX)
        self._closed = False
        self.meter = MeteringMeter()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, submission: Submission) -> asyncio.Future[Settled]:
        """Have the record committed. Cancelling the future withdraws the caller, not the record.

        The record has a place in the queue, which is given back with its answer.
        """
        if self._closed:
            raise StoreClosedError("metering is closed")
        self._pending += 1
        self._idle.clear()
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        first = self._unanswered.setdefault(submission.receipt_pk, submission)
        first.waiting.append(future)
        if first is submission:
            self._queue.append(submission.org_id, submission)
            self._start_soon()
        return future

    async def close(self) -> None:
        """Commit what was accepted; nothing more is. Closing twice is fine."""
        self._closed = True
        await self._idle.wait()

    def _start_soon(self) -> None:
        """Begin a commit at the end of this turn of the loop, with all that arrives in it."""
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and (
            not self._lanes
            or (len(self._lanes) < self._lanes_max and len(self._queue) >= LANE_BACKLOG)
        ):
            commit = _Commit(take(self._queue, self._marked), secrets.token_hex(8))
            lane = asyncio.create_task(self._run(commit), name="pricekeeper-commit")
            self._lanes.add(lane)
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if self._queue:
            self._start_soon()

    async def _run(self, commit: _Commit) -> None:
        """Commit, and answer everybody, whatever happens."""
        try:
            await self._commit(commit)
        except StoreError as error:
            self._fail(commit.left, error)
        except BaseException as error:
            self._fail(commit.left, error)
            raise

    async def _commit(self, commit: _Commit) -> None:
        sendings = 0
        while commit.left:
            plan = self._plan(commit)
            try:
                await self._send(plan)
            except TransactionCancelledError as cancelled:
                if self._answer_met(commit, plan, cancelled):
                    continue
                failure: StoreError = ContendedError(f"no receipt was told of: {cancelled}")
            except InvalidOperationError as error:
                if len(commit.left) > 1:
                    await self._divide(commit)
                    return
                failure = error  # a counter may be none: another shard can take the record
            except (OutcomeUnknownError, ContendedError) as error:
                commit.doubt |= isinstance(error, OutcomeUnknownError)
                failure = error
            except StoreError as error:
                raise _told(error, commit) from error
            else:
                self._answer_applied(commit, plan)
                return
            sendings += 1
            if sendings == SENDINGS_MAX:
                raise _told(failure, commit) from failure
            await self._clock.sleep_ms(
                full_jitter_ms(
                    sendings,
                    first_ms=PAUSE_MS_FIRST,
                    longest_ms=PAUSE_MS_MAX,
                    randbelow=self._random.randrange,
                )
            )

    async def _send(self, plan: Plan) -> None:
        busy = set(plan.shards.items())
        self._busy |= busy
        try:
            await self._store.transact(plan.operations)
        finally:
            self._busy -= busy

    async def _divide(self, commit: _Commit) -> None:
        for half in commit.halves():
            await self._run(half)
        commit.left = ()

    def _plan(self, commit: _Commit) -> Plan:
        return Plan(
            commit.left,
            commit.id,
            self._shard,
            self._marked,
            self._clock.now_ms() // 1000,
            self._retention_days,
        )

    def _shard(self, place: Counted) -> int:
        """Any shard will do; one that no other commit of ours is writing to, if possible."""
        shard = self._random.randrange(place.shard_count)
        for step in range(place.shard_count):
            free = (shard + step) % place.shard_count
            if (place, free) not in self._busy:
                return free
        return shard

    def _answer_applied(self, commit: _Commit, plan: Plan) -> None:
        self.meter.commit_sizes.note(len(plan.submissions))
        for place, counters in plan.sums.items():
            self._counted(place, counters)
        for submission, item in zip(plan.submissions, plan.items, strict=True):
            self._answer(submission, Settled(item, accepted=True))
        commit.left = ()

    def _answer_met(
        self, commit: _Commit, plan: Plan, cancelled: TransactionCancelledError
    ) -> bool:
        """Answer those who met a receipt, and keep the others; whether there were any."""
        met = plan.met(cancelled.reasons)
        own = [submission for submission, item in met if item.get("commit_id") == commit.id]
        if own:
            self.meter.commit_sizes.note(len(own))
        for place, counters in summed(own).items():
            self._counted(place, counters)
        for submission, item in met:
            own_receipt = item.get("commit_id") == commit.id
            self._answer(submission, Settled(item, accepted=own_receipt))
        answered = {id(submission) for submission, _ in met}
        commit.left = [one for one in commit.left if id(one) not in answered]
        return bool(met)

    def _counted(self, place: Counted, counters: Counters) -> None:
        """Remember that the account is marked now, and tell what it has more."""
        self._marked.put(place, None)
        self._tell_counted(place, counters)

    def _answer(self, submission: Submission, settled: Settled) -> None:
        waiting = self._waiting(submission)
        self.meter.accepted += settled.accepted
        self.meter.duplicates += len(waiting) - settled.accepted
        for place, future in enumerate(waiting):
            if not future.done():  # else its caller was cancelled; the record stands
                future.set_result(settled if place == 0 else settled._replace(accepted=False))

    def _fail(self, left: Sequence[Submission], error: BaseException) -> None:
        for submission in left:
            for future in self._waiting(submission):
                self.meter.failed += 1
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error_copy(error))

    def _waiting(self, submission: Submission) -> list[asyncio.Future[Settled]]:
        """Those who wait for it; from now on the request id may be submitted anew."""
        if self._unanswered.get(submission.receipt_pk) is submission:
            del self._unanswered[submission.receipt_pk]
        waiting, submission.waiting = submission.waiting, []
        if waiting:
            self._give_back(submission.org_id, len(waiting))
        self._pending -= len(waiting)
        if not self._pending:
            self._idle.set()
        return waiting


def _told(failure: StoreError, commit: _Commit) -> StoreError:
    """What the callers are told: once in doubt, no later failure proves that nothing happened."""
    if commit.doubt and not isinstance(failure, OutcomeUnknownError):
        return OutcomeUnknownError(f"the records may or may not be counted: {failure}")
    return failure
