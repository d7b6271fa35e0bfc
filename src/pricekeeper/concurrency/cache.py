"""A mapping with a bound: when it is full, the entry that was used longest ago makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """At most ``entries_max`` entries. Each operation costs the same, however many there are."""

    __slots__ = ("_entries", "_entries_max", "peek")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.peek: Callable[[K], V | None] = self._entries.get
        """The entry, without counting as use; for each request that is asked many times."""

    def get(self, key: K) -> V | None:
        """The entry, which counts as used now."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: K, entry: V) -> None:
        """Store an entry, which counts as used now, and evict another one if there are too many."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Remove the entry, if there is one."""
        return self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove every entry."""
        self._entries.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, beginning with the one that was used longest ago."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
