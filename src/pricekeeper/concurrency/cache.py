"""Caches with a bound: when one is full, the least recently used entry is evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """At most ``entries_max`` entries; every operation takes constant time."""

    __slots__ = ("_entries", "_entries_max", "peek")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.peek: Callable[[K], V | None] = self._entries.get
        """Read an entry without marking it as used."""

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: K, entry: V) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        return self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


Reading: TypeAlias = tuple[int, int]
"""The number of changes when a read began, and when its result expires."""


class ReadCache(Generic[K, V]):
    """Values from the store, each valid for ``age_ms_max`` from the start of its read.

    A read that overlaps a change made here is not kept: it may have missed the change.
    """

    def __init__(self, monotonic_ms: Callable[[], int], age_ms_max: int, entries_max: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._age_ms_max = age_ms_max
        self._entries: BoundedCache[K, tuple[int, V]] = BoundedCache(entries_max)
        self.changes = 0

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_ms, value = entry
        if self._monotonic_ms() >= expires_ms:
            self._entries.pop(key)
            return None
        return value

    def reading(self) -> Reading:
        """Begin a read; pass the result to `keep` with the value."""
        return self.changes, self._monotonic_ms() + self._age_ms_max

    def keep(self, key: K, value: V, reading: Reading) -> None:
        changes, expires_ms = reading
        if changes == self.changes:
            self._entries.put(key, (expires_ms, value))

    def replace(self, key: K, value: V) -> None:
        entry = self._entries.peek(key)
        if entry is not None:
            self._entries.put(key, (entry[0], value))

    def drop(self, key: K) -> None:
        self._entries.pop(key)

    def forget(self, key: K) -> None:
        self.changes += 1
        self._entries.pop(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)
