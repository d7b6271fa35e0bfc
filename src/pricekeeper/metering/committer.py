"""The queue in front of the journal: groups records that can share a write.

A group is the records of one page, or those of one organisation whose ids have no time. Each has
one write under way; later records go into the next. A new group starts at the end of the turn of
the event loop, or `linger_ms` later. Groups take turns by organisation (`concurrency.fairness`).

Bounds: `PENDING_MAX` places (`metering.admission`), half of them for one organisation alone, and
`WRITES_MAX` writes under way, a quarter of them of one organisation.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from pricekeeper.concurrency import TurnQueue, error_copy
from pricekeeper.errors import StoreClosedError, StoreError
from pricekeeper.metering.journal import PAGE_DIGITS, WRITE_WEIGHT_MAX
from pricekeeper.metering.meter import MeteringMeter
from pricekeeper.metering.posting import Poster, Settled
from pricekeeper.metering.submission import Posted, Submission, Waiter

PENDING_MAX: Final = 10_000
WRITES_MAX: Final = 32
ORG_WRITES_MAX: Final = WRITES_MAX // 4
"""Of one organisation, so that one whose writes are slow leaves the others room."""
GroupKey: TypeAlias = tuple[str, str]

_log = structlog.get_logger(__name__)


class _Group:
    __slots__ = ("key", "waiting")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.waiting: deque[Submission] = deque()

    def take(self) -> list[Submission]:
        most = WRITE_WEIGHT_MAX
        taken: list[Submission] = []
        while self.waiting and (not taken or most >= self.waiting[0].weight):
            most -= self.waiting[0].weight
            taken.append(self.waiting.popleft())
        return taken


class Committer:
    """Passes groups of records to the poster, and its results to the waiting callers."""

    def __init__(
        self,
        poster: Poster,
        note_counted: Callable[[Sequence[Submission]], None],
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
        self._writing: Counter[str] = Counter()
        self._held_back: dict[str, deque[_Group]] = {}
        self._starting = False
        self._closed = False
        self.meter = MeteringMeter()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, submission: Submission, waiter: Waiter) -> None:
        if self._closed:
            raise StoreClosedError("metering is closed")
        if not self._pending:
            self._idle.clear()
        self._pending += 1
        first = self._unanswered.setdefault((submission.org_id, submission.request_id), submission)
        first.waiting.append(waiter)
        if first is submission:
            key = _group_key(submission)
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(key)
                if self._linger_ms:
                    loop = asyncio.get_running_loop()
                    loop.call_later(self._linger_ms / 1000, self._enqueue, group)
                else:
                    self._enqueue(group)
            group.waiting.append(submission)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Write the accepted records, and accept no more."""
        self._closed = True
        await self._idle.wait()

    def _enqueue(self, group: _Group) -> None:
        self._queue.append(group.key[0], group)
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and len(self._writes) < WRITES_MAX:
            group = self._queue.pop()
            org_id = group.key[0]
            if self._writing[org_id] == ORG_WRITES_MAX:
                self._held_back.setdefault(org_id, deque()).append(group)
                continue
            self._writing[org_id] += 1
            write = asyncio.create_task(self._write(group), name="pricekeeper-commit")
            self._writes.add(write)
            write.add_done_callback(partial(self._end, org_id))

    def _end(self, org_id: str, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        self._writing[org_id] -= 1
        if not self._writing[org_id]:
            del self._writing[org_id]
        held_back = self._held_back.get(org_id)
        if held_back:
            self._queue.append(org_id, held_back.popleft())
            if not held_back:
                del self._held_back[org_id]
        self._start()

    async def _write(self, group: _Group) -> None:
        """Write a part of the group, and answer all of it in any case."""
        taken, counted = group.take(), 0
        error: BaseException = StoreError("the records were not answered")

        def settle(settled: Sequence[Settled]) -> None:
            nonlocal counted
            counted += self._settle(settled)

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
            self._tell_all([(one, error) for one in taken if one.waiting])
            if group.waiting:
                self._enqueue(group)
            else:
                del self._groups[group.key]

    def _settle(self, settled: Sequence[Settled]) -> int:
        counted = [one for one, posted in settled if isinstance(posted, Posted) and posted.accepted]
        if counted:
            self.meter.accepted += len(counted)
            self._note_counted(counted)
        self._tell_all(settled)
        return len(counted)

    def _tell_all(self, settled: Sequence[tuple[Submission, Posted | BaseException]]) -> None:
        """The first waiter submitted the record, others a duplicate."""
        told = [(self._take_waiting(one), outcome) for one, outcome in settled]
        if not told:
            return
        count = sum([len(waiting) for waiting, _ in told])
        self._give_back(settled[0][0].org_id, count)  # what is written together has one owner
        self._pending -= count
        if not self._pending:
            self._idle.set()
        for waiting, outcome in told:
            if isinstance(outcome, Posted):
                self.meter.duplicates += len(waiting) - outcome.accepted
                for number, waiter in enumerate(waiting):
                    _tell(waiter, outcome if number == 0 else outcome._replace(accepted=False))
            else:
                self.meter.failed += len(waiting)
                for waiter in waiting:
                    _tell(waiter, error_copy(outcome))

    def _take_waiting(self, submission: Submission) -> list[Waiter]:
        """The waiting callers; the id may be submitted again from now on."""
        key = (submission.org_id, submission.request_id)
        if self._unanswered.get(key) is submission:
            del self._unanswered[key]
        waiting, submission.waiting = submission.waiting, []
        return waiting


def _tell(waiter: Waiter, outcome: Posted | BaseException) -> None:
    """Call one waiter; its error must not stop the others."""
    try:
        waiter(outcome)
    except Exception as error:  # noqa: BLE001 - a bug of ours, which is logged
        _log.error("waiter_failed", exc_info=error)


def _group_key(submission: Submission) -> GroupKey:
    address = submission.address
    return submission.org_id, "" if address is None else address.digits[:PAGE_DIGITS]
