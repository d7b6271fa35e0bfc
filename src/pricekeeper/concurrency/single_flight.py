"""One execution that serves several callers, and one error for all of them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from pricekeeper.errors import PriceKeeperError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Shares the execution under way with callers that ask for the same key meanwhile."""

    __slots__ = ("_flights", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._flights: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # A task of its own: cancelling the caller that started it does not stop it for the others.
        flight = self._flights.get(key)
        if flight is None or flight.done():
            flight = asyncio.create_task(work(), name=self._name)
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(flight)

    async def join(self, key: K) -> T | None:
        """The result of the execution under way, ``None`` if there is none."""
        flight = self._flights.get(key)
        return None if flight is None else await asyncio.shield(flight)

    def detach_all(self) -> None:
        """Let the next callers start new executions; present callers keep the old ones."""
        self._flights.clear()

    async def drain(self) -> None:
        """Wait until every execution that is not detached has ended."""
        if self._flights:
            await asyncio.wait(self._flights.values())

    def _end(self, key: K, flight: asyncio.Task[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        _look_at(flight)


class NextFlight(Generic[K, T]):
    """Shares the next execution, so that each caller sees what happened before it came.

    At most one execution per key is in flight.
    """

    __slots__ = ("_in_flight", "_name", "_next")

    def __init__(self, name: str) -> None:
        self._name = name
        self._in_flight: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
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
        _look_at(flight)


def _look_at(flight: asyncio.Task[T]) -> None:
    """Read its error: every caller may have left, and asyncio complains about unread ones."""
    if not flight.cancelled():
        flight.exception()


E = TypeVar("E", bound=BaseException)


def error_copy(error: E) -> E:
    """A copy of the error for one more caller, with its own traceback.

    Our errors are copied without ``__init__``; one that can't be copied is shared.
    """
    if isinstance(error, PriceKeeperError):
        copied = type(error).__new__(type(error), *error.args)
        copied.__dict__.update(error.__dict__)
        return copied
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - its own __init__ may raise anything
        return error
