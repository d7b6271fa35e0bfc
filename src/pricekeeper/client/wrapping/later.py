"""Work that a finalizer asks for, done by a thread of its own.

A finalizer runs in any thread, at any point: also while that thread holds a lock which the work
needs, so that it would wait for itself. So it only says what is to be done, and returns.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("pricekeeper")


class Later:
    """A queue of work, and the thread that does it in order."""

    def __init__(self) -> None:
        self._has_thread = False
        self._begin()

    @property
    def is_idle(self) -> bool:
        """Whether all of it is done."""
        return not self._open

    def ready(self) -> None:
        """Have a thread, before there is anything to do for it."""
        if self._has_thread:
            return
        with self._lock:
            if not self._has_thread:
                threading.Thread(target=self._serve, name="pricekeeper-later", daemon=True).start()
                self._has_thread = True

    def put(self, work: Callable[[], object]) -> None:
        """Have it done soon. It takes no lock."""
        self._open.append(None)
        self._waiting.put(work)

    def _begin(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._open: deque[None] = deque()
        """One for each that is not done; a deque is changed without a lock."""
        self._lock = threading.Lock()
        self._has_thread = False

    def _serve(self) -> None:
        while True:
            work = self._waiting.get()
            try:
                work()
            except Exception:  # noqa: BLE001 - the thread goes on with the next
                _log.exception("a call could not be settled: what is held for it stays held")
            del work  # it may hold the last reference to something
            self._open.popleft()


later: Final = Later()
os.register_at_fork(after_in_child=later._begin)  # noqa: SLF001 - of this module
