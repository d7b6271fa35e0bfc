"""An event loop for simulations, in which nothing waits for the outside world.

A simulated history is a few thousand steps of tasks that wait for each other, on a store in memory.
Asyncio asks the operating system after each turn whether anything has arrived, which takes longer
than the turn. This loop asks only when no task is ready. It also says whether one is, so that an
`Interleaving` need not find out by waiting.

Its time is not that of the machine, which would decide histories beside their seeds: it stands
still as long as a task is ready, and then goes on to the next moment that somebody waits for.

The order of steps is asyncio's own: a seed that fails here fails on any other loop.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop that asks for news of the outside only if it has nothing else to do."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _now = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing but whoever asks could go on."""
        return not self._ready

    def time(self) -> float:
        """The loop's own time, in seconds."""
        return self._now

    def _run_once(self) -> None:
        ready = self._ready
        if not ready or self._stopping:
            if not ready and self._scheduled:
                self._now = max(self._now, self._scheduled[0].when())
            super()._run_once()  # type: ignore[misc]
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


def is_idle() -> bool:
    """Whether nothing but whoever asks could go on, if the loop can tell."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, QuickLoop) and loop.is_idle


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it to its end. A simulated process that dies leaves tasks behind; nobody is told."""
    with asyncio.Runner(loop_factory=QuickLoop) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        return runner.run(work)
