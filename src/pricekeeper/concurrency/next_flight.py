"""One execution that serves every caller who came before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class NextFlight(Generic[K, T]):
    """Executions for callers who must see what happened before they came.

    For each key at most one execution is in flight. Callers that come meanwhile wait for it to
    end and share the next one. So any number of callers at one moment cost two executions.
    """

    __slots__ = ("_in_flight", "_name", "_next")

    def __init__(self, name: str) -> None:
        self._name = name
        """The name of the tasks, as it shows in a list of tasks."""
        self._in_flight: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of an execution that begins now or later."""
        flight = self._next.get(key)
        if flight is None:
            before = self._in_flight.get(key)
            flight = asyncio.create_task(self._run_after(key, work, before), name=self._name)
            (self._in_flight if before is None else self._next)[key] = flight
            flight.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(flight)

    async def _run_after(
        self, key: K, work: Callable[[], Coroutine[Any, Any, T]], before: asyncio.Task[T] | None
    ) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._in_flight[key] = self._next.pop(key)
        return await work()

    def _end(self, key: K, flight: asyncio.Task[T]) -> None:
        for flights in (self._in_flight, self._next):
            if flights.get(key) is flight:
                del flights[key]
        if not flight.cancelled():
            flight.exception()  # every caller may have left; asyncio wants it to be looked at
