"""Readings that callers share, so that asking often costs little more than asking once.

A reading is reused for `reuse_ms` from its beginning, unless outdated since. One that took 10 ms of
processor time is reused for 80 ms even if outdated: constant asking uses at most about 1/8 of a
processor. Callers share the reading under way, or the next one if it was outdated before they
asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pricekeeper.concurrency.cache import BoundedCache
from pricekeeper.concurrency.single_flight import SingleFlight

REST_TIMES: Final = 8
REST_MS_MIN: Final = 50
"""An outdated reading is not reused if its rest would be shorter, so if it took about 6 ms."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Read(NamedTuple, Generic[T]):
    """A result, and its processor time."""

    result: T
    work_us: int


class _Reading(Generic[T]):
    __slots__ = ("began_ms", "is_outdated", "number", "read")

    def __init__(self, number: int, began_ms: int) -> None:
        self.number = number
        self.began_ms = began_ms
        self.read: Read[T] | None = None
        self.is_outdated = False


class SharedReadings(Generic[K, T]):
    """The last result of each key, at most ``entries_max`` of them."""

    def __init__(
        self, name: str, monotonic_ms: Callable[[], int], *, entries_max: int, reuse_ms: int
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._reuse_ms = reuse_ms
        self._begun = 0
        self._made: BoundedCache[K, _Reading[T]] = BoundedCache(entries_max)
        self._under_way: dict[K, _Reading[T]] = {}
        self._flights: SingleFlight[K, T] = SingleFlight(name)

    async def get(self, key: K, read: Callable[[], Coroutine[Any, Any, Read[T]]]) -> T:
        begun_before = self._begun
        while True:  # ends: a reading that begins after this call serves it
            known = self._made.get(key)
            if known is not None and known.read is not None and self._is_fresh(known, known.read):
                return known.read.result
            under_way = self._under_way.get(key)
            flight = self._flights.run(key, lambda: self._make(key, read))
            if under_way is None or not under_way.is_outdated or under_way.number > begun_before:
                return await flight
            with contextlib.suppress(Exception):  # the callers of that reading get its error
                await flight

    def outdate(self, *keys: K) -> None:
        """Outdate earlier readings of these keys: they lack a change."""
        for key in keys:
            for reading in (self._made.peek(key), self._under_way.get(key)):
                if reading is not None:
                    reading.is_outdated = True

    def _is_fresh(self, reading: _Reading[T], read: Read[T]) -> bool:
        rest_ms = read.work_us * REST_TIMES // 1000
        if rest_ms < REST_MS_MIN:
            rest_ms = 0
        good_ms = rest_ms if reading.is_outdated else max(self._reuse_ms, rest_ms)
        return self._monotonic_ms() - reading.began_ms < good_ms

    async def _make(self, key: K, read: Callable[[], Coroutine[Any, Any, Read[T]]]) -> T:
        self._begun += 1
        reading = self._under_way[key] = _Reading[T](self._begun, self._monotonic_ms())
        try:
            reading.read = made = await read()
        finally:
            del self._under_way[key]
        self._made.put(key, reading)
        return made.result
