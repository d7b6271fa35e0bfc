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
        self._tasks: set[asyncio.Task[Any]] = set()

    async def complete(self, work: Coroutine[Any, Any, _T], undo: _Undo[_T] | None = None) -> _T:
        """Run the work; if the caller is cancelled, undo the result as soon as there is one."""
        task = self.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():  # else the loop is being shut down
                self.start(_undo_result(task, undo))
            raise

    async def drain(self) -> None:
        """Wait for all tasks that are still running."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start work that `drain` waits for, whoever else does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _undo_result(work: asyncio.Task[_T], undo: _Undo[_T] | None) -> None:
    """Undo the result, if there is one. Nobody waits; a failure is counted where it happens."""
    with contextlib.suppress(PriceKeeperError):
        result = await work
        if undo is not None:
            await undo(result)
