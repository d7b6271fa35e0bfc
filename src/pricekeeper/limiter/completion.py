"""Completes what was started, also if its caller is cancelled.

A caller that is cancelled while a write is in flight can't know whether it was applied. So every
write of a lease runs in a task of its own, and the caller only waits for it. If the caller
stops waiting and the write then succeeds, the write is undone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from pricekeeper.errors import PriceKeeperError

_T = TypeVar("_T")
_Undo: TypeAlias = Callable[[_T], Coroutine[Any, Any, None]]


class Completion:
    """The tasks of all callers; each ends within the store's own bounds."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def complete(self, work: Coroutine[Any, Any, _T], undo: _Undo[_T] | None = None) -> _T:
        """Run the work; if the caller is cancelled, undo the result as soon as there is one."""
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.start(_run_to_end(work, answer, undo))
        try:
            return await answer
        except asyncio.CancelledError:
            # If the result is already there, `_run_to_end` will not undo it.
            if undo is not None and not answer.cancelled() and answer.exception() is None:
                self.start(_undo_result(answer.result(), undo))
            raise

    async def drain(self) -> None:
        """Wait for all tasks that are still running."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that only `drain` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _run_to_end(
    work: Coroutine[Any, Any, _T], answer: asyncio.Future[_T], undo: _Undo[_T] | None
) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        answer.cancel()  # the loop is being shut down
        raise
    except Exception as error:  # noqa: BLE001 - handed to the caller
        if not answer.done():
            answer.set_exception(error)
        return
    if not answer.done():
        answer.set_result(result)
    elif undo is not None:
        await _undo_result(result, undo)


async def _undo_result(result: _T, undo: _Undo[_T]) -> None:
    """Undo the result. Nobody waits for this; a failure is counted where it happens."""
    with contextlib.suppress(PriceKeeperError):
        await undo(result)
