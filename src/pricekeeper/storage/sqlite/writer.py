"""Group commit: one thread commits the operations of many callers.

Operations submitted during a commit join the next one, so a single fsync serves many, and an idle
store commits at once. A caller's future is resolved after its COMMIT has returned. Submissions of
one turn of the event loop go to the thread together. A few writes that find the thread idle are
decided in the event loop: faster than passing Python's lock back and forth.

Bounds: `PENDING_MAX` operations accepted and unanswered, `BATCH_MAX` of them in one commit,
`IN_LOOP_MAX` decided in the event loop, about `RECENT_MAX` packed items cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import apsw

from pricekeeper.clock import Clock
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import StoreClosedError, StoreError, ThrottledError
from pricekeeper.storage.kept_rows import Horizon
from pricekeeper.storage.sqlite.batch import Batch, Recent
from pricekeeper.storage.sqlite.database import DAMAGED, translated
from pricekeeper.storage.sqlite.file_watch import FileWatch
from pricekeeper.telemetry import StoreMeter

PENDING_MAX: Final = 10_000
BATCH_MAX: Final = 1_000
IN_LOOP_MAX: Final = 8
BUSY_TIMEOUT_MS: Final = 5_000
RECENT_MAX: Final = 10_000
CHECKPOINT_FRAMES: Final = 1_000
"""The length of the log at which it is written back into the file."""

_Result = TypeVar("_Result")
_Argument = TypeVar("_Argument")


_Job: TypeAlias = tuple[Callable[[Batch, Any], Any], Any, asyncio.Future[Any]]
_Answer: TypeAlias = tuple[asyncio.Future[Any], Any, Exception | None]
_WRITES: Final = frozenset({Batch.put, Batch.update, Batch.delete, Batch.transact})


class _Begun(NamedTuple):
    jobs: list[_Job]
    answers: list[_Answer]


class Writer:
    """The only user of its connection: its thread, and the event loop while the thread waits."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        clock: Clock,
        meter: StoreMeter,
        watch: FileWatch | None = None,
    ) -> None:
        self._connection = connection
        self._watch = watch
        if watch is not None:
            connection.wal_autocheckpoint(0)  # the writer does it, between two looks at the file
        self._clock = clock
        self.kept_from_epoch: int | None = None
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Job] = []
        self._inbox: queue.SimpleQueue[list[_Job] | _Begun | None] = queue.SimpleQueue()
        self._recent: Recent = {}
        self._data_version = 0
        self._pending = 0
        self._closed = False
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="pricekeeper-writer", daemon=True)
        self._thread.start()

    def submit(
        self, function: Callable[[Batch, _Argument], _Result], argument: _Argument
    ) -> asyncio.Future[_Result]:
        """Run a batch's method in the next commit; the future is done when that is durable."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._watch is not None and self._watch.failure is not None:
            self._watch.refuse_if_unusable()
        if self._pending >= PENDING_MAX:
            raise ThrottledError(f"{PENDING_MAX} writes are waiting; the disk can't keep up")
        self._pending += 1
        future: asyncio.Future[_Result] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append((function, argument, future))
        return future

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._inbox.put, None)
        await asyncio.shield(self._stopped)
        self._thread.join()  # it has nothing left to do; this takes no time

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        is_idle = self._pending == len(gathered)
        begun = self._begin_in_loop(gathered) if is_idle and _are_few(gathered) else None
        self._inbox.put(begun or gathered)

    def _begin_in_loop(self, jobs: list[_Job]) -> _Begun | None:
        """Do all but the commit while the thread waits; ``None`` leaves all to the thread."""
        connection = self._connection
        connection.set_busy_timeout(0)  # never wait for another process here
        try:
            return _Begun(jobs, self._begin(jobs))
        except Exception:  # noqa: BLE001 - the thread tries it again, and tells
            self._forget_transaction()
            return None
        finally:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    def _answer(self, answers: list[_Answer]) -> None:
        self._pending -= len(answers)
        for future, result, error in answers:
            if future.done():
                continue  # its caller was cancelled; the operation is applied
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _run(self) -> None:
        backlog: list[_Job] = []
        open_ = True
        while open_ or backlog:
            if not backlog:
                arrived = self._inbox.get()
                if arrived is None:
                    open_ = False
                    continue
                if isinstance(arrived, _Begun):
                    self._call_in_loop(self._answer, self._commit(*arrived))
                    continue
                backlog = arrived
            while open_ and len(backlog) < BATCH_MAX:
                try:
                    arrived = self._inbox.get_nowait()
                except queue.Empty:
                    break
                if arrived is None:
                    open_ = False
                else:
                    backlog = [*backlog, *arrived]  # never one that was begun: we are not idle
            jobs, backlog = backlog[:BATCH_MAX], backlog[BATCH_MAX:]
            self._call_in_loop(self._answer, self._commit(jobs))
        if self._watch is not None and self._watch.overwritten:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._connection.close()
        self._call_in_loop(self._stopped.set_result, None)

    def _call_in_loop(self, callback: Callable[[Any], object], argument: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)

    def _begin(self, jobs: list[_Job]) -> list[_Answer]:
        self._connection.execute("BEGIN IMMEDIATE")
        self._forget_if_stale()
        horizon = Horizon(self._clock.now_ms() // 1000, self.kept_from_epoch)
        batch = Batch(self._connection, self._recent, horizon)
        answers = [_attempt(batch, job) for job in jobs]
        batch.flush()
        return answers

    def _commit(self, jobs: list[_Job], begun: list[_Answer] | None = None) -> list[_Answer]:
        committing = False
        try:
            answers = self._begin(jobs) if begun is None else begun
            committing = True
            self._connection.execute("COMMIT")
            self._verify_file()
        except apsw.Error as error:
            return self._roll_back(jobs, self._explain(error, committing=committing))
        except Exception as error:  # noqa: BLE001 - a bug of ours: raised to every caller
            return self._roll_back(jobs, error)
        self._meter.commit_sizes.note(len(jobs))
        return answers

    def _verify_file(self) -> None:
        watch = self._watch
        if watch is None:
            return
        log_frames = watch.verify(self._data_version)
        if watch.failure is not None:
            watch.refuse_if_unusable(may_be_applied=True)
        if log_frames >= CHECKPOINT_FRAMES:
            # If it fails, the log grows, and the next commit tries again.
            with contextlib.suppress(apsw.Error):
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            watch.accept()

    def _explain(self, error: apsw.Error, *, committing: bool) -> StoreError:
        """The caller's error; if the file was replaced or damaged, that error."""
        watch = self._watch
        if watch is not None:
            watch.look()
            if watch.failure is None and isinstance(error, DAMAGED):
                watch.note_damage(error)
            if watch.failure is not None:
                return watch.failure
        return translated(error, committing=committing)

    def _forget_if_stale(self) -> None:
        """Clear the cached items if another connection has written or there are too many."""
        version = self._connection.execute("PRAGMA data_version").get
        if version != self._data_version or len(self._recent) > RECENT_MAX:
            self._recent.clear()
        self._data_version = version

    def _roll_back(self, jobs: list[_Job], error: Exception) -> list[_Answer]:
        self._forget_transaction()
        return [(future, None, error_copy(error)) for _, _, future in jobs]

    def _forget_transaction(self) -> None:
        self._recent.clear()
        if self._connection.in_transaction:
            # If this fails, the next BEGIN fails, too, and this runs again.
            with contextlib.suppress(apsw.Error):
                self._connection.execute("ROLLBACK")


def _are_few(jobs: list[_Job]) -> bool:
    count = 0
    for function, argument, _ in jobs:
        if function not in _WRITES:
            return False
        count += len(argument) if isinstance(argument, tuple) else 1
    return count <= IN_LOOP_MAX


def _attempt(batch: Batch, job: _Job) -> _Answer:
    function, argument, future = job
    try:
        return future, function(batch, argument), None
    except apsw.Error:
        raise  # the file itself is in trouble: that concerns the whole batch
    except Exception as error:  # noqa: BLE001 - the other operations continue
        return future, None, error
