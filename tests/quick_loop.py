"""An event loop for simulations, in which nothing waits for the outside world.

A simulated history is a few thousand steps of tasks that wait for each other, on a store in memory.
Asyncio asks the operating system after each turn whether anything has arrived, which takes longer
than the turn. This loop asks only when no task is ready. It also says whether one is, so that an
`Interleaving` need not find out by waiting.

Its time is not the machine's, which would decide histories beside their seeds: it stops while a
task is ready, and then jumps to the next moment that a task waits for.

The order of steps is asyncio's own. A test plays histories on asyncio's loop, too, and they are the
same.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextvars import Context
from typing import Any, TypeAlias, TypeVar

import pytest
import structlog

_T = TypeVar("_T")
_Step: TypeAlias = tuple[Context, Callable[..., object], tuple[Any, ...]]


class TimelessLoop(asyncio.SelectorEventLoop):
    """Asyncio's loop, with a time of its own."""

    _ready: deque[asyncio.Handle | _Step]
    _scheduled: list[asyncio.TimerHandle]
    _now = 0.0

    def time(self) -> float:
        """The loop's own time, in seconds."""
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class QuickLoop(TimelessLoop):
    """A loop that asks for news of the outside only if it has nothing else to do."""

    _stopping: bool

    @property
    def is_idle(self) -> bool:
        """Whether no task is ready."""
        return not self._ready

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Let it run in its turn. Tasks and futures keep no handle, and so none is made."""
        if context is None:
            return super().call_soon(callback, *args)
        self._ready.append((context, callback, args))
        return None  # type: ignore[return-value]

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        """As asyncio does, for a loop that is open and has no factory of its own."""
        return asyncio.Task(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]

    get_debug = staticmethod(bool)  # every future asks for it, and this is the quickest no

    def _asyncgen_firstiter_hook(self, agen: object) -> None:
        """Nothing is known of generators, and so none is closed at the end of a history."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[object, None]) -> None:
        """Close a generator without readers. No thread but this one has any."""
        if not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())

    def advance_newest(self) -> None:
        """Let the task that became ready last run next."""
        self._ready.appendleft(self._ready.pop())

    def _run_once(self) -> None:
        """Run everything that is ready, and what that makes ready, until nothing is."""
        ready = self._ready
        while ready and not self._stopping:
            step = ready.popleft()
            if isinstance(step, asyncio.Handle):
                if not step.cancelled():
                    step._run()
                continue
            context, callback, args = step
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": str(callback), "exception": error})
        if not self._stopping:
            super()._run_once()


@pytest.fixture
def quiet() -> Iterator[None]:
    """What is logged in thousands of histories takes longer than a few hundred of them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def run(work: Coroutine[Any, Any, _T], loop: type[TimelessLoop] = QuickLoop) -> _T:
    """Run it to its end. A simulated process that dies leaves tasks behind, unreported.

    The garbage of a history is collected when it has ended, all at once.
    """
    had_collected = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.get_loop().set_exception_handler(lambda *_: None)
            return runner.run(work)
    finally:
        if had_collected:
            gc.enable()
