"""One execution that serves every caller who asks for the same thing while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Executions under way, at most one for each key.

    The number of entries is bounded by the number of callers that wait: an entry is removed when
    its execution ends.
    """

    __slots__ = ("_flights", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        """The name of the tasks, as it shows in a list of tasks."""
        self._flights: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the execution under way, or of a new one."""
        # The execution is a task of its own: the caller who happened to start it can be
        # cancelled without taking the others along.
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(work(), name=self._name)
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(flight)

    def detach(self, key: K) -> None:
        """Let the next caller start a new execution; those who wait get the old one's result."""
        self._flights.pop(key, None)

    def detach_all(self) -> None:
        """`detach` for every key."""
        self._flights.clear()

    async def drain(self) -> None:
        """Wait until every execution that is not detached has ended."""
        if self._flights:
            await asyncio.wait(self._flights.values())

    def _end(self, key: K, flight: asyncio.Task[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # every caller may have left; asyncio wants it to be looked at
