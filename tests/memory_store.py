"""A store in a dict, for simulations of many thousand histories.

It applies the port's own operations and conditions to items in memory, with nothing in between. A
test holds it against SQLite: the same history leaves the same items in both.
"""

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
from pricekeeper.storage.operations import Check, check_transaction
from pricekeeper.storage.values import EXPIRY


class MemoryStore:
    """Items by table and key; the sort keys of a partition are sorted when it is queried."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[tuple[str, str], dict[str, Item]] = {}
        self.written: list[tuple[str, Key]] = []
        """The tables and keys of all writes that were applied, in their order."""

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        del consistent
        return self._find(table, key)

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        del consistent
        return [self._find(*key) for key in keys]

    async def put(self, operation: Put) -> None:
        self._apply_alone(operation)

    async def update(self, operation: Update) -> Item:
        self._apply_alone(operation)
        found = self._find(operation.table, operation.key)
        assert found is not None
        return found

    async def delete(self, operation: Delete) -> Item | None:
        before = self._find(operation.table, operation.key)
        self._apply_alone(operation)
        return before

    async def transact(self, operations: Sequence[Write]) -> None:
        check_transaction(operations)
        if not all(map(self._holds, operations)):
            raise TransactionCancelledError([self._reason(one) for one in operations])
        for operation in operations:
            self._apply(operation)

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        del consistent
        query.check()
        partition = self.partitions.get((query.table.name, query.pk), {})
        names = sorted(partition, key=str.encode, reverse=query.descending)
        found: list[Item] = []
        for name in names:
            if not name.startswith(query.prefix) or not _is_between(name, query):
                continue
            item = self._find(query.table, Key(query.pk, name))
            if item is not None:
                found.append(item)
        page = found[: query.limit]
        return Page(tuple(page), page[-1]["SK"] if len(found) > len(page) else "")

    async def create_tables(self) -> None:
        """There is nothing to make."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _find(self, table: Table, key: Key) -> Item | None:
        item = self.partitions.get((table.name, key.pk), {}).get(key.sk or "")
        if item is None:
            return None
        is_over = table.expires and item.get(EXPIRY, 1 << 60) <= self._clock.now_ms() // 1000
        return None if is_over else dict(item)

    def _holds(self, operation: Write) -> bool:
        item: Mapping[str, Any] = self._find(operation.table, operation.key) or {}
        return operation.condition is None or operation.condition.holds(item)

    def _reason(self, operation: Write) -> CancellationReason:
        if self._holds(operation):
            return CancellationReason(ReasonCode.NONE)
        item = self._find(operation.table, operation.key)
        return CancellationReason(ReasonCode.CONDITION_FAILED, item)

    def _apply_alone(self, operation: Put | Update | Delete) -> None:
        operation.check()
        if not self._holds(operation):
            raise ConditionFailedError(self._find(operation.table, operation.key))
        self._apply(operation)

    def _apply(self, operation: Write) -> None:
        key = operation.key
        self.written.append((operation.table.name, key))
        partition = self.partitions.setdefault((operation.table.name, key.pk), {})
        match operation:
            case Put(item=item):
                partition[key.sk or ""] = dict(item)
            case Update():
                partition[key.sk or ""] = operation.apply(self._find(operation.table, key))
            case Delete():
                partition.pop(key.sk or "", None)
            case Check():
                pass


def _is_between(name: str, query: Query) -> bool:
    if query.after and (name >= query.after if query.descending else name <= query.after):
        return False
    return (not query.first or name >= query.first) and (not query.last or name <= query.last)
