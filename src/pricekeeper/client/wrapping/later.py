"""Work that is done later, by threads of its own.

A finalizer runs in any thread, at any point: also while that thread holds a lock which the work
needs, so that it would wait for itself. So it only says what is to be done, and returns.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_PAUSE_SECS: Final = 0.01

_log = logging.getLogger("pricekeeper")


class WorkQueue:
    """Work in the order in which it was put, and the threads that do it: so many at the most."""

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self.begin_anew()

    @property
    def is_idle(self) -> bool:
        """Whether all of it is done."""
        return not self._open

    @property
    def waiting(self) -> int:
        """How much of it nobody has begun."""
        return self._waiting.qsize()

    def ready(self) -> None:
        """Have at least one thread, before there is anything to do for it."""
        if not self._threads:
            self._start_if(lambda: not self._threads)

    def put(self, work: Callable[[], object]) -> None:
        """Have it done soon. It takes no lock."""
        self._open.append(None)
        self._waiting.put(work)

    def begin_anew(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._open: deque[None] = deque()
        """One for each that is not done; a deque is changed without a lock."""
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
            except Exception:  # noqa: BLE001 - the thread goes on with the next
                _log.exception("a call could not be settled: what is held for it stays held")
            del work  # it may hold the last reference to something
            self._open.popleft()


def wait_until(is_done: Callable[[], bool], secs: float) -> None:
    """Wait until that is so and nothing is left for `later`, for at most so long."""
    ends_at = time.monotonic() + secs
    while time.monotonic() < ends_at and not (is_done() and later.is_idle):
        time.sleep(_PAUSE_SECS)


later: Final = WorkQueue("pricekeeper-later")
os.register_at_fork(after_in_child=later.begin_anew)
