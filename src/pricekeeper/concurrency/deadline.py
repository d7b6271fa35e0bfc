"""One deadline for each request, through everything that is done for it.

When it comes, whatever the request waits for is cancelled: reads, retries and their pauses, its
place in a queue. Work that is shared with other requests goes on without it: a commit, a sum, a
write of a lease. The answer is 503, and it says whether the request may have been applied all the
same. The time in which a body arrives does not count, because it is not ours to shorten.

A timer of its own for each request costs as much as half of the request. So requests are put
together by the tick in which they are due, and one timer goes from tick to tick for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from pricekeeper.errors import DeadlineExceededError

DEADLINES: Final = "deadlines"
"""Under this name the lifespan's state has them."""
TICK_SECS: Final = 0.05
"""A request gets so much more time than it should, at most."""


class Expiring(Protocol):
    """What has to end in time."""

    def expire(self) -> None:
        """Its time is up."""
        ...


class Deadlines:
    """The deadlines of all requests on one event loop."""

    def __init__(self, deadline_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.secs = deadline_ms / 1000
        """What a request has."""
        self._due: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, secs: float | None = None) -> Deadline:
        """The deadline of a request that begins now: to be used as ``with``, in its own task.

        ``secs`` is what is left to one that was begun before, or for a part with a time of its own.
        """
        return Deadline(self, self.secs if secs is None else secs)

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def add(self, deadline: Expiring, left_secs: float) -> tuple[float, int]:
        """Note when it is due; returns that, and under which tick it is noted."""
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
        """Forget it; returns how many seconds are left."""
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
    """A request's deadline; its block raises `DeadlineExceededError` if the time was up in it."""

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
        """Whether the request has got to where it changes something."""

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
        ours = self._task.uncancel() <= self._cancelling  # else somebody else has cancelled it too
        if ours and kind is asyncio.CancelledError:
            raise DeadlineExceededError(may_be_applied=self.may_be_applied) from None

    def expire(self) -> None:
        """End what the request waits for, because its time is up."""
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time of this block."""
        self._left = self._deadlines.remove(self, self._due, self._tick)
        try:
            yield
        finally:
            if not self._expired:
                self._due, self._tick = self._deadlines.add(self, self._left)
