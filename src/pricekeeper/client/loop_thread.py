"""An event loop on a thread of its own, for programs that have none, or another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Loop(asyncio.SelectorEventLoop):
    """A loop that does blocking work itself when no thread pool takes it any more.

    Python closes every pool before it calls what was registered with ``atexit``, and that is when
    a program's last usage is told: the spool is synced and a host name is looked up by then.
    """

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
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there; its outcome."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Callable[[], None]) -> None:
        """Run a function there, soon."""
        self._loop.call_soon_threadsafe(work)

    def stop(self, wait_secs: float) -> None:
        """Cancel what is under way and end the thread, waiting for at most that long."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_secs)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()
