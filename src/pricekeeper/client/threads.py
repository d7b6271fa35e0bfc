"""Threads of the client: one with an event loop, and one that works for finalizers.

A finalizer may run while its thread holds any lock, so it only puts work into a `WorkQueue`, which
takes none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ROUNDS_MAX: Final = 8
"""Rounds of cancelling tasks that start while the loop ends."""


class _ProcessLoop(asyncio.SelectorEventLoop):
    """An event loop that belongs to one process and works until its very end.

    A forked child shares the epoll instance. In the child the loop counts as closed: freeing the
    parent's connections there would remove them, and the parent would wait forever.

    After Python has closed all thread pools, ``atexit`` handlers still report usage. So blocking
    work then runs on the loop's own thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def is_closed(self) -> bool:
        return os.getpid() != self._pid or super().is_closed()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        try:
            return super().run_in_executor(executor, func, *args)
        except RuntimeError:
            done: asyncio.Future[T] = self.create_future()
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - the awaiting code decides
                done.set_exception(error)
            return done


class LoopThread:
    """An event loop on its own thread, until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = _ProcessLoop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], None] | None = None
    ) -> Future[T]:
        """Run a coroutine. ``unclaimed`` gets a result whose caller had given up."""
        future: Future[T] = Future()
        try:
            self.call(lambda: self._begin(work, future, unclaimed))
        except RuntimeError:
            work.close()
            raise
        return future

    def call(self, work: Callable[[], None]) -> None:
        """Run a function on the loop; `RuntimeError` if the thread has ended."""
        self._loop.call_soon_threadsafe(work)

    def stop(self, wait_secs: float) -> None:
        """Cancel all tasks and end the thread; wait at most that long."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_secs)

    def _begin(
        self, work: Coroutine[Any, Any, T], future: Future[T], unclaimed: Callable[[T], None] | None
    ) -> None:
        if future.cancelled():
            work.close()
            return
        task = self._loop.create_task(work)

        def cancel_task(asked: Future[T]) -> None:
            if asked.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)

        def hand_over(done: asyncio.Task[T]) -> None:
            if done.cancelled():
                future.cancel()
                future.set_running_or_notify_cancel()
            elif not future.set_running_or_notify_cancel():  # its caller has given up
                if done.exception() is None and unclaimed is not None:
                    unclaimed(done.result())
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        task.add_done_callback(hand_over)
        future.add_done_callback(cancel_task)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for _ in range(ROUNDS_MAX):
                left = asyncio.all_tasks(self._loop)
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                if not left:
                    break
            self._loop.close()


_PAUSE_SECS: Final = 0.01

_log = logging.getLogger("pricekeeper")


class WorkQueue:
    """Work in order, done by at most ``threads_max`` threads."""

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self.begin_anew()

    @property
    def is_idle(self) -> bool:
        return not self._open

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    def ready(self) -> None:
        if not self._threads:
            self._start_if(lambda: not self._threads)

    def put(self, work: Callable[[], object]) -> None:
        """Add work. It takes no lock."""
        self._open.append(None)
        self._waiting.put(work)

    def begin_anew(self) -> None:
        """Start empty in a forked child."""
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._open: deque[None] = deque()
        """One item per unfinished work; a deque needs no lock."""
        self._lock = threading.Lock()
        self._threads = 0

    def _start_if(self, is_wanted: Callable[[], bool]) -> None:
        with self._lock:
            if not is_wanted():
                return
            self._threads += 1
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            work = self._waiting.get()
            self._start_if(lambda: self.waiting > 0 and self._threads < self._threads_max)
            try:
                work()
            except Exception:  # noqa: BLE001 - the thread continues with the next
                _log.exception("a call could not be settled: what is held for it stays held")
            del work  # it may hold the last reference to an object
            self._open.popleft()


def wait_until(is_done: Callable[[], bool], secs: float) -> None:
    """Wait until ``is_done`` and `later` is idle, for at most that long."""
    ends_at = time.monotonic() + secs
    while time.monotonic() < ends_at and not (is_done() and later.is_idle):
        time.sleep(_PAUSE_SECS)


later: Final = WorkQueue("pricekeeper-later")
os.register_at_fork(after_in_child=later.begin_anew)
