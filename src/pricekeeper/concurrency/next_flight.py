"""One execution that serves every caller who came before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class NextFlight(Generic[K, T]):
    """Executions for callers who must see what happened before they came.

    For each key at most one execution is under way. Whoever comes meanwhile waits for it to end
    and shares the next one with everybody else who waits. So any number of callers at one moment
    cost two executions.
    """

    __slots__ = ("_name", "_next", "_under_way")

    def __init__(self, name: str) -> None:
        self._name = name
        """The name of the tasks, for whoever lists them."""
        self._under_way: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of an execution that begins now or later."""
        flight = self._next.get(key)
        if flight is None:
            before = self._under_way.get(key)
            flight = asyncio.create_task(self._fly(key, work, before), name=self._name)
            (self._under_way if before is None else self._next)[key] = flight
            flight.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(flight)

    async def _fly(
        self,
        key: K,
        work: Callable[[], Coroutine[Any, Any, T]],
        before: asyncio.Task[T] | None,
    ) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._under_way[key] = self._next.pop(key)
        return await work()

    def _end(self, key: K, flight: asyncio.Task[T]) -> None:
        for flights in (self._under_way, self._next):
            if flights.get(key) is flight:
                del flights[key]
        if not flight.cancelled():
            flight.exception()  # every caller may have left; asyncio wants it to be looked at
