"""A store in a dict, for simulations of many thousand histories.

It applies the port's own operations and conditions to items in memory, with nothing in between. A
test holds it against SQLite: the same history leaves the same items in both.

An item is never changed once it is stored: a write puts another one in its place. So conditions
look at the item itself, and only what leaves the store is a copy.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Table, Update, Write
from pricekeeper.storage.operations import check_transaction
from pricekeeper.storage.values import EXPIRY

_NOTHING: Mapping[str, Any] = {}
_NEVER = 1 << 60


class MemoryStore:
    """Items by table and key; the sort keys of a partition are kept in their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[tuple[str, str], dict[str, Item]] = {}
        self._sort_keys: dict[tuple[str, str], list[str]] = {}
        self.written: list[tuple[str, Key]] = []
        """The tables and keys of all writes that were applied, in their order."""

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        del consistent
        item = self._find(table, key)
        return None if item is None else dict(item)

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        del consistent
        found = [self._find(table, key) for table, key in keys]
        return [None if item is None else dict(item) for item in found]

    async def put(self, operation: Put) -> None:
        self._apply_alone(operation)

    async def update(self, operation: Update) -> Item:
        _, after = self._apply_alone(operation)
        assert after is not None
        return dict(after)

    async def delete(self, operation: Delete) -> Item | None:
        before, _ = self._apply_alone(operation)
        return None if before is None else dict(before)

    async def transact(self, operations: Sequence[Write]) -> None:
        check_transaction(operations)
        found = [self._find(one.table, one.key) for one in operations]
        reasons = [_reason(one, item) for one, item in zip(operations, found, strict=True)]
        if any(reasons):
            nothing = CancellationReason(ReasonCode.NONE)
            raise TransactionCancelledError([reason or nothing for reason in reasons])
        for operation, item in zip(operations, found, strict=True):
            self._apply(operation, item)

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        del consistent
        query.check()
        place = (query.table.name, query.pk)
        partition = self.partitions.get(place)
        if not partition:
            return Page(())
        names = self._sort_keys[place]
        begin, end = _bounds(names, query)
        chosen = names[begin:end]
        if query.descending:
            chosen.reverse()
        found: list[Item] = []
        now_secs = self._clock.now_ms() // 1000 if query.table.expires else -1
        for name in chosen:
            item = partition[name]
            if item.get(EXPIRY, _NEVER) > now_secs:
                if len(found) == query.limit:
                    return Page(tuple(found), found[-1]["SK"])
                found.append(dict(item))
        return Page(tuple(found))

    async def create_tables(self) -> None:
        """There is nothing to make."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _find(self, table: Table, key: Key) -> Item | None:
        """The item itself, unless it has expired."""
        partition = self.partitions.get((table.name, key.pk))
        item = None if partition is None else partition.get(key.sk or "")
        if item is None or not table.expires:
            return item
        is_over = item.get(EXPIRY, _NEVER) <= self._clock.now_ms() // 1000
        return None if is_over else item

    def _apply_alone(self, operation: Put | Update | Delete) -> tuple[Item | None, Item | None]:
        """Apply the operation; the item before and after it."""
        operation.check()
        before = self._find(operation.table, operation.key)
        if operation.condition is not None and not operation.condition.holds(before or _NOTHING):
            raise ConditionFailedError(None if before is None else dict(before))
        return before, self._apply(operation, before)

    def _apply(self, operation: Write, before: Item | None) -> Item | None:
        """Apply the operation to the item that is there; what is there afterwards."""
        key = operation.key
        name, place = key.sk or "", (operation.table.name, key.pk)
        self.written.append((operation.table.name, key))
        partition = self.partitions.setdefault(place, {})
        if isinstance(operation, Put):
            after = dict(operation.item)
        elif isinstance(operation, Update):
            after = operation.apply(before)
        else:
            if isinstance(operation, Delete) and partition.pop(name, None) is not None:
                self._sort_keys[place].remove(name)
            return None
        if name not in partition:
            insort(self._sort_keys.setdefault(place, []), name)
        partition[name] = after
        return after


def _reason(operation: Write, item: Item | None) -> CancellationReason | None:
    """Why the operation can't be applied to the item; nothing if it can."""
    if operation.condition is None or operation.condition.holds(item or _NOTHING):
        return None
    return CancellationReason(ReasonCode.CONDITION_FAILED, None if item is None else dict(item))


def _bounds(names: list[str], query: Query) -> tuple[int, int]:
    """Where in the sorted names that which is asked for begins and ends."""
    begin, end = 0, len(names)
    if query.prefix:
        length = len(query.prefix)
        begin = bisect_left(names, query.prefix)
        end = bisect_right(names, query.prefix, begin, key=lambda name: name[:length])
    if query.first:
        begin = bisect_left(names, query.first)
    if query.last:
        end = bisect_right(names, query.last)
    if query.after and query.descending:
        end = min(end, bisect_left(names, query.after))
    elif query.after:
        begin = max(begin, bisect_right(names, query.after))
    return begin, end
