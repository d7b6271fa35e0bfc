"""One deadline for each request.

At the deadline, all that the request waits for is cancelled; shared work (a commit, a sum, the
write of a lease) continues. The answer is 503 and says whether the request may have been applied.
Receiving the body does not count. One timer serves all requests of a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from pricekeeper.errors import DeadlineExceededError

DEADLINES: Final = "deadlines"
TICK_SECS: Final = 0.05


class Expiring(Protocol):
    """Something with a deadline."""

    def expire(self) -> None: ...


class Deadlines:
    """The deadlines of all requests on one event loop."""

    def __init__(self, deadline_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.secs = deadline_ms / 1000
        self._due: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, secs: float | None = None) -> Deadline:
        """A deadline that starts now, for use as ``with`` in the task of the request.

        ``secs`` is the time left of an earlier deadline, or of one part of a request.
        """
        return Deadline(self, self.secs if secs is None else secs)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def add(self, deadline: Expiring, left_secs: float) -> tuple[float, int]:
        """Add a deadline; returns the due time and the tick that `remove` needs."""
        due = self._loop.time() + left_secs
        tick = int(due / TICK_SECS) + 1
        noted = self._due.get(tick)
        if noted is None:
            noted = self._due[tick] = set()
        noted.add(deadline)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_SECS, self._end_due)
        return due, tick

    def remove(self, deadline: Expiring, due: float, tick: int) -> float:
        noted = self._due.get(tick)
        if noted is not None:
            noted.discard(deadline)
        return due - self._loop.time()

    def _end_due(self) -> None:
        now_tick = int(self._loop.time() / TICK_SECS)
        for tick in [tick for tick in self._due if tick <= now_tick]:
            for deadline in self._due.pop(tick):
                deadline.expire()
        self._timer = self._loop.call_later(TICK_SECS, self._end_due) if self._due else None


class Deadline:
    """A request's deadline; its block raises `DeadlineExceededError` when time runs out."""

    __slots__ = ("_cancelling", "_deadlines", "_due", "_expired", "_left", "_task", "_tick",
                 "may_be_applied")  # fmt: skip

    def __init__(self, deadlines: Deadlines, secs: float) -> None:
        self._deadlines = deadlines
        self._left = secs
        self._due, self._tick = 0.0, 0
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.may_be_applied = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
        self._due, self._tick = self._deadlines.add(self, self._left)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadlines.remove(self, self._due, self._tick)
        if not self._expired or self._task is None:
            return
        ours = (
            self._task.uncancel() <= self._cancelling
        )  # else another caller has cancelled it, too
        if ours and kind is asyncio.CancelledError:
            raise DeadlineExceededError(may_be_applied=self.may_be_applied) from None

    def expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._left = self._deadlines.remove(self, self._due, self._tick)
        try:
            yield
        finally:
            if not self._expired:
                self._due, self._tick = self._deadlines.add(self, self._left)
