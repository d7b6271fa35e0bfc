"""Shares expensive reads, so that frequent callers cost as little as occasional ones.

A result is reused for `reuse_ms` from the moment its read began, unless a change is known; and
always for `REST_TIMES` as long as the read took. So constant polling takes a bounded part of a
processor. Callers that come during a read share its result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pricekeeper.concurrency.cache import BoundedCache
from pricekeeper.concurrency.single_flight import SingleFlight

REST_TIMES: Final = 8

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Read(NamedTuple, Generic[T]):
    """A result, and how long it took to read."""

    result: T
    work_us: int


class _Reading(Generic[T]):
    __slots__ = ("began_ms", "is_outdated", "read")

    def __init__(self, began_ms: int) -> None:
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
        self._made: BoundedCache[K, _Reading[T]] = BoundedCache(entries_max)
        self._under_way: dict[K, _Reading[T]] = {}
        self._flights: SingleFlight[K, T] = SingleFlight(name)

    async def get(self, key: K, read: Callable[[], Coroutine[Any, Any, Read[T]]]) -> T:
        """The result of a recent read, or of a new one."""
        known = self._made.get(key)
        if known is not None and known.read is not None and self._is_fresh(known, known.read):
            return known.read.result
        return await self._flights.run(key, lambda: self._make(key, read))

    def outdate(self, key: K) -> None:
        """Mark the results of a key as outdated by a change."""
        for reading in (self._made.peek(key), self._under_way.get(key)):
            if reading is not None:
                reading.is_outdated = True

    def _is_fresh(self, reading: _Reading[T], read: Read[T]) -> bool:
        rest_ms = read.work_us * REST_TIMES // 1000
        good_ms = rest_ms if reading.is_outdated else max(self._reuse_ms, rest_ms)
        return self._monotonic_ms() - reading.began_ms < good_ms

    async def _make(self, key: K, read: Callable[[], Coroutine[Any, Any, Read[T]]]) -> T:
        reading = self._under_way[key] = _Reading[T](self._monotonic_ms())
        try:
            reading.read = made = await read()
        finally:
            del self._under_way[key]
        self._made.put(key, reading)
        return made.result
