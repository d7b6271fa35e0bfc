"""One execution that serves every caller who asks for the same thing while it runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from pricekeeper.errors import PriceKeeperError

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


E = TypeVar("E", bound=BaseException)


def error_copy(error: E) -> E:
    """The same error for one more caller, with a traceback of its own.

    An error of this package is made without its ``__init__``, which may want other arguments than
    it hands on. An error of another make that refuses to be copied is shared.
    """
    if isinstance(error, PriceKeeperError):
        copied = type(error).__new__(type(error), *error.args)
        copied.__dict__.update(error.__dict__)
        return copied
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - whatever its own __init__ says to its arguments
        return error
