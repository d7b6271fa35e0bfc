"""An event loop on a thread of its own, for programs that have none, or another."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ROUNDS_MAX: Final = 8
"""How often what comes in while the loop ends is ended, too."""


class _ProcessLoop(asyncio.SelectorEventLoop):
    """A loop for one process, to its very end.

    It is closed in every other process. A forked child has a copy of it, and with the copy the
    same epoll instance. Whatever is left of the parent's connections is freed in the child at some
    time, and would take itself out of that instance: the parent would wait for its answers for
    ever.

    It does blocking work itself when no thread pool takes it any more. Python closes every pool
    before it calls what was registered with ``atexit``, and that is when a program's last usage is
    told: the spool is synced and a host name is looked up by then.
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
            except Exception as error:  # noqa: BLE001 - whoever awaits it decides
                done.set_exception(error)
            return done


class LoopThread:
    """One loop and its thread. It ends with the process, if nobody stops it before."""

    def __init__(self, name: str) -> None:
        self._loop = _ProcessLoop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], None] | None = None
    ) -> Future[T]:
        """Run a coroutine there; its outcome. Cancelling that cancels the work.

        ``unclaimed`` is called with a result that came after its caller had given up.
        """
        future: Future[T] = Future()
        try:
            self.call(lambda: self._begin(work, future, unclaimed))
        except RuntimeError:
            work.close()
            raise
        return future

    def call(self, work: Callable[[], None]) -> None:
        """Run a function there, soon; `RuntimeError` if the thread has ended."""
        self._loop.call_soon_threadsafe(work)

    def stop(self, wait_secs: float) -> None:
        """Cancel what is under way and end the thread, waiting for at most that long."""
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
