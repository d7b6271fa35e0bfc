"""Many operations in one SQLite transaction, each of them atomic.

A batch keeps the items that it touches in memory. An operation reads through that view and changes
it only when sure to succeed; rows are written once, at the end. So a failed operation needs no
savepoint, and ten updates of one item cost one row.

`Recent` carries packed items to the next batch, while this connection is the file's only writer;
see the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import apsw
import msgspec

from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    InvalidOperationError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.storage.kept_rows import EXPORT_STATE, Horizon, kept_from_epoch
from pricekeeper.storage.operations import Check, Delete, Put, Update, Write, check_item_size
from pricekeeper.storage.sqlite.codec import pack, unpack
from pricekeeper.storage.sqlite.database import STATEMENTS, create_schema, read_data
from pricekeeper.storage.sqlite.moments import Moments, read_moments, write_moments
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import DAMAGED, EXPIRY, ITEM_BYTES_MAX, Item

_RowKey: TypeAlias = tuple[str, Key]
_Row: TypeAlias = tuple[str, str, int | None, bytes]
_Result = TypeVar("_Result")

Recent: TypeAlias = dict[_RowKey, bytes | None]

_NOTHING: Final[Item] = {}
_SURELY_SMALL: Final = ITEM_BYTES_MAX // 4
"""A packed item has at least a quarter of its size in DynamoDB's arithmetic."""
_PASSED: Final = CancellationReason(ReasonCode.NONE)


class Batch:
    """The view of one transaction."""

    __slots__ = ("_connection", "_horizon", "_recent", "_rows", "_seen")

    def __init__(self, connection: apsw.Connection, recent: Recent, horizon: Horizon) -> None:
        self._connection = connection
        self._recent = recent
        self._horizon = horizon
        self._seen: dict[_RowKey, Item | None] = {}
        self._rows: dict[_RowKey, _Row | None] = {}

    def put(self, operation: Put) -> None:
        key = operation.key
        if operation.condition is not None:
            self._require(operation, key)
        self._write(
            operation.table, key, operation.item, _row(operation.table, key, operation.item)
        )

    def update(self, operation: Update) -> Item:
        table, key = operation.table, operation.key
        row_key = (table.name, key)
        item = self._find(row_key, table)
        condition = operation.condition
        if condition is not None and not condition.holds(item or _NOTHING):
            raise ConditionFailedError(item)
        fresh = _updated_item(operation, item)
        self._rows[row_key] = _row(table, key, fresh)
        self._seen[row_key] = fresh
        return fresh

    def delete(self, operation: Delete) -> Item | None:
        old = self._require(operation, operation.key)
        if old is not None:
            self._write(operation.table, operation.key, None, None)
        return old

    def transact(self, operations: Sequence[Write]) -> None:
        reasons = [self._reason(operation) for operation in operations]
        if any(reason is not _PASSED for reason in reasons):
            raise TransactionCancelledError(reasons)
        staged = [self._stage(operation) for operation in operations]
        for operation, (item, row) in zip(operations, staged, strict=True):
            if not isinstance(operation, Check):
                self._write(operation.table, operation.key, item, row)

    def read(self, request: tuple[Callable[..., _Result], tuple[Any, ...]]) -> _Result:
        function, arguments = request
        self.flush()
        return function(self._connection, *arguments, self._horizon)

    def create_tables(self, _: None) -> None:
        create_schema(self._connection)

    def note_moments(self, noted: Moments) -> Moments:
        current = read_moments(self._connection)
        moments = noted if current is None else current.followed_by(noted)
        write_moments(self._connection, moments)
        return moments

    def sweep(self, request: tuple[str, int, int]) -> int:
        name, until_epoch, rows_max = request
        until_epoch = Horizon(until_epoch, self.find_kept_from(None)).of(name)
        self._connection.execute(STATEMENTS[name].sweep, (until_epoch, rows_max))
        swept = self._connection.changes()  # swept rows are expired in every view
        moments = read_moments(self._connection) if swept else None
        if moments is not None and moments.deleted_until_ms < until_epoch * 1000:
            deleted = msgspec.structs.replace(moments, deleted_until_ms=until_epoch * 1000)
            write_moments(self._connection, deleted)
        return swept

    def find_kept_from(self, _: None) -> int | None:
        return kept_from_epoch(self._current(*EXPORT_STATE))

    def flush(self) -> None:
        written: dict[str, list[_Row]] = {}
        deleted: dict[str, list[tuple[str, str]]] = {}
        for row_key, row in self._rows.items():
            name, key = row_key
            self._recent[row_key] = None if row is None else row[3]
            if row is None:
                deleted.setdefault(name, []).append((key.pk, key.sk or ""))
            else:
                written.setdefault(name, []).append(row)
        for name, keys in deleted.items():
            self._connection.executemany(STATEMENTS[name].delete, keys)
        for name, rows in written.items():
            self._connection.executemany(STATEMENTS[name].upsert, rows)
        self._rows.clear()

    def _current(self, table: Table, key: Key) -> Item | None:
        return self._find((table.name, key), table)

    def _find(self, row_key: _RowKey, table: Table) -> Item | None:
        if row_key in self._seen:
            item = self._seen[row_key]
        else:
            if row_key not in self._recent:
                self._recent[row_key] = read_data(self._connection, table, row_key[1])
            data = self._recent[row_key]
            item = self._seen[row_key] = None if data is None else unpack(data, row_key[1])
        if item is not None and table.expires and self._is_expired(table, item):
            return None
        return item

    def _is_expired(self, table: Table, item: Item) -> bool:
        expires, horizon = item.get(EXPIRY), self._horizon
        if type(expires) is not int or expires > horizon.now_epoch:
            return False
        return expires <= horizon.of(table.name)

    def _require(self, operation: Put | Update | Delete, key: Key) -> Item | None:
        item = self._current(operation.table, key)
        if operation.condition is not None and not operation.condition.holds(item or _NOTHING):
            raise ConditionFailedError(item)
        return item

    def _reason(self, operation: Write) -> CancellationReason:
        if operation.condition is None:
            return _PASSED
        item = self._current(operation.table, operation.key)
        if operation.condition.holds(item or _NOTHING):
            return _PASSED
        return CancellationReason(ReasonCode.CONDITION_FAILED, item)

    def _stage(self, operation: Write) -> tuple[Item | None, _Row | None]:
        table, key = operation.table, operation.key
        if isinstance(operation, Put):
            return operation.item, _row(table, key, operation.item)
        if isinstance(operation, Update):
            item = _updated_item(operation, self._current(table, key))
            return item, _row(table, key, item)
        return None, None

    def _write(self, table: Table, key: Key, item: Item | None, row: _Row | None) -> None:
        row_key = (table.name, key)
        self._seen[row_key] = item
        self._rows[row_key] = row


def _updated_item(operation: Update, item: Item | None) -> Item:
    """The item after the update; an item that can't be decoded can't be updated."""
    if item is not None and DAMAGED in item:
        raise InvalidOperationError(f"{operation.table.name}: the item there can't be decoded")
    return operation.apply(item)


def _row(table: Table, key: Key, item: Item) -> _Row:
    """The row to write, packed now so that a too large item fails only its own operation."""
    data = pack(item)
    if len(data) > _SURELY_SMALL:
        check_item_size(item)
    expires = item.get(EXPIRY) if table.expires else None
    return key.pk, key.sk or "", expires, data
