"""The queue in front of the journal: records that are written together wait together.

Records of one page are a group, and so are the records of one organisation that need receipts. Of a
group one write is under way at a time; what arrives meanwhile goes into the next one. A group that
is new begins at the end of the turn of the event loop, or `linger_ms` later, so that whatever comes
in that time shares its first write.

Groups take turns by organisation (`concurrency.fairness`): a neighbour of one that floods is next
to be written, however much the other has waiting. A record holds a place of its organisation's
share of the queue until it is answered (`metering.admission`).

Bounds: `PENDING_MAX` places, of which one organisation alone can have half, and `WRITES_MAX` writes
under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from pricekeeper.concurrency import TurnQueue, error_copy
from pricekeeper.errors import PriceKeeperError, StoreClosedError, StoreError
from pricekeeper.metering.journal import PAGE_DIGITS, WRITE_WEIGHT_MAX
from pricekeeper.metering.meter import MeteringMeter
from pricekeeper.metering.posting import Poster
from pricekeeper.metering.submission import Posted, Submission
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX

PENDING_MAX: Final = 10_000
WRITES_MAX: Final = 32
RECEIPTS_MAX: Final = TRANSACTION_OPERATIONS_MAX - 2
"""Records with receipts in one transaction: their page is one operation more, and the sheet that
spends them from budgets another."""
GroupKey: TypeAlias = tuple[str, str]


class _Group:
    """Records that can be written together."""

    __slots__ = ("key", "waiting")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.waiting: deque[Submission] = deque()

    def take(self) -> list[Submission]:
        """Take what one write can hold."""
        most = WRITE_WEIGHT_MAX if self.key[1] else RECEIPTS_MAX
        taken: list[Submission] = []
        while self.waiting and (not taken or most >= self.waiting[0].weight):
            most -= self.waiting[0].weight
            taken.append(self.waiting.popleft())
        return taken


class Committer:
    """Hands records to the poster in groups, and its answers to those who wait."""

    def __init__(
        self,
        poster: Poster,
        note_counted: Callable[[Submission], None],
        give_back: Callable[[str, int], None],
        *,
        linger_ms: int = 0,
    ) -> None:
        self._poster = poster
        self._note_counted = note_counted
        self._give_back = give_back
        self._linger_ms = linger_ms
        self._groups: dict[GroupKey, _Group] = {}
        self._queue: TurnQueue[_Group] = TurnQueue()
        self._unanswered: dict[tuple[str, str], Submission] = {}
        self._pending = 0
        self._writes: set[asyncio.Task[None]] = set()
        self._starting = False
        self._closed = False
        self.meter = MeteringMeter()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, submission: Submission) -> asyncio.Future[Posted]:
        """Have the record written. Cancelling the future withdraws the caller, not the record.

        The record has a place in the queue, which is given back with its answer.
        """
        if self._closed:
            raise StoreClosedError("metering is closed")
        self._pending += 1
        self._idle.clear()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Posted] = loop.create_future()
        first = self._unanswered.setdefault((submission.org_id, submission.request_id), submission)
        first.waiting.append(future)
        if first is submission:
            key = _group_key(submission)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(key)
                if self._linger_ms:
                    loop.call_later(self._linger_ms / 1000, self._enqueue, group)
                else:
                    self._enqueue(group)
            group.waiting.append(submission)
        return future

    async def close(self) -> None:
        """Write what was accepted; nothing more is. Closing twice is fine."""
        self._closed = True
        await self._idle.wait()

    def _enqueue(self, group: _Group) -> None:
        """Put a group in its organisation's queue, and begin at the end of this turn."""
        self._queue.append(group.key[0], group)
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and len(self._writes) < WRITES_MAX:
            write = asyncio.create_task(self._write(self._queue.pop()), name="pricekeeper-commit")
            self._writes.add(write)
            write.add_done_callback(self._end)

    def _end(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        self._start()

    async def _write(self, group: _Group) -> None:
        """Write a part of the group, and answer everybody in it, whatever happens."""
        taken, counted = group.take(), 0
        error: BaseException = StoreError("the records were not answered")

        def settle(submission: Submission, outcome: Posted | PriceKeeperError) -> None:
            nonlocal counted
            counted += isinstance(outcome, Posted) and outcome.accepted
            self._settle(submission, outcome)

        try:
            await self._poster.post(taken, settle)
        except StoreError as failure:
            error = failure
        except BaseException as failure:
            error = failure
            raise
        finally:
            if counted:
                self.meter.commit_sizes.note(counted)
            for submission in taken:
                if submission.waiting:
                    self._fail(submission, error)
            if group.waiting:
                self._enqueue(group)
            else:
                del self._groups[group.key]

    def _settle(self, submission: Submission, outcome: Posted | PriceKeeperError) -> None:
        """Answer those who wait for the record; the first of them submitted it."""
        if isinstance(outcome, PriceKeeperError):
            self._fail(submission, outcome)
            return
        waiting = self._take_waiting(submission)
        self.meter.accepted += outcome.accepted
        self.meter.duplicates += len(waiting) - outcome.accepted
        if outcome.accepted:
            self._note_counted(submission)
        for number, future in enumerate(waiting):
            if not future.done():  # else its caller was cancelled; the record stands
                future.set_result(outcome if number == 0 else outcome._replace(accepted=False))

    def _fail(self, submission: Submission, error: BaseException) -> None:
        for future in self._take_waiting(submission):
            self.meter.failed += 1
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            elif not future.done():
                future.set_exception(error_copy(error))

    def _take_waiting(self, submission: Submission) -> list[asyncio.Future[Posted]]:
        """Those who wait for it; from now on the request id may be submitted anew."""
        key = (submission.org_id, submission.request_id)
        if self._unanswered.get(key) is submission:
            del self._unanswered[key]
        waiting, submission.waiting = submission.waiting, []
        if waiting:
            self._give_back(submission.org_id, len(waiting))
        self._pending -= len(waiting)
        if not self._pending:
            self._idle.set()
        return waiting


def _group_key(submission: Submission) -> GroupKey:
    address = submission.address
    return submission.org_id, "" if address is None else address.digits[:PAGE_DIGITS]
