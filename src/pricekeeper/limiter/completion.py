"""Bringing what was begun to its end, though its caller may be gone.

Whoever is cancelled while a write is under way can't know whether it was applied. So every
write of a lease runs in a task of its own, and the caller only waits for it. If the caller
stops waiting for something that then succeeds, it is undone.
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
    """As many tasks as there are callers; each ends within the store's own bounds."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def of(self, work: Coroutine[Any, Any, _T], undo: _Undo[_T] | None = None) -> _T:
        """The result of the work; if the caller is cancelled, it is undone once it is there."""
        told: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.keep(_to_its_end(work, told, undo))
        try:
            return await told
        except asyncio.CancelledError:
            # If the result was there already, nobody else is going to look at it.
            if undo is not None and not told.cancelled() and told.exception() is None:
                self.keep(_undone(told.result(), undo))
            raise

    async def drain(self) -> None:
        """Wait for everything that is still under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work that nobody waits for but `drain`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _to_its_end(
    work: Coroutine[Any, Any, _T], told: asyncio.Future[_T], undo: _Undo[_T] | None
) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        told.cancel()  # the loop is being shut down
        raise
    except Exception as error:  # noqa: BLE001 - handed to the caller, whoever has to deal with it
        if not told.done():
            told.set_exception(error)
        return
    if not told.done():
        told.set_result(result)
    elif undo is not None:
        await _undone(result, undo)


async def _undone(result: _T, undo: _Undo[_T]) -> None:
    """Undo it; nobody waits for this, and a failure is counted where it happens."""
    with contextlib.suppress(PriceKeeperError):
        await undo(result)
