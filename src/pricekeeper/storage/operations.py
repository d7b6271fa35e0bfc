"""The operations of a store as frozen values, and DynamoDB's rules for them.

Both adapters refuse the same operations with the same error before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage.expressions import Action, Condition, Remove
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import (
    EXPIRY,
    ITEM_BYTES_MAX,
    PARTITION_KEY,
    SORT_KEY,
    SORT_KEY_BYTES_MAX,
    Item,
    Value,
    item_bytes,
    item_bytes_at_most,
    text_bytes,
)

TRANSACTION_OPERATIONS_MAX: Final = 100
QUERY_ITEMS_MAX: Final = 1000

_NOT_UPDATABLE: Final = frozenset({PARTITION_KEY, SORT_KEY, ""})


class Put(msgspec.Struct, frozen=True, tag=True):
    """Write a whole item, replacing an existing one."""

    table: Table
    item: Item
    condition: Condition | None = None
    key: Key = Key("")

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "key", self.table.key_of(self.item))

    def check(self) -> None:
        _check_expiry(self.table, self.item.get(EXPIRY, 0))
        check_item_size(self.item)


class Update(msgspec.Struct, frozen=True, tag=True):
    """Change attributes of an item, creating it if it is absent."""

    table: Table
    key: Key
    actions: tuple[Action, ...]
    condition: Condition | None = None

    def check(self) -> None:
        self.table.checked(self.key)
        if not self.actions:
            raise InvalidOperationError("an update needs at least one action")
        touched = set[str]()
        for action in self.actions:
            touched.add(action.attribute)
            action.check()
            if action.attribute == EXPIRY and not isinstance(action, Remove):
                _check_expiry(self.table, action.value)
        if len(touched) < len(self.actions):
            raise InvalidOperationError("an update may touch an attribute once only")
        if not touched.isdisjoint(_NOT_UPDATABLE):
            raise InvalidOperationError("an update can't change the key, nor a nameless attribute")

    def apply(self, item: Item | None) -> Item:
        fresh = dict(item) if item is not None else self.key.attributes
        for action in self.actions:
            action.apply(fresh)
        return fresh


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Remove an item, which may be absent."""

    table: Table
    key: Key
    condition: Condition | None = None

    def check(self) -> None:
        self.table.checked(self.key)


class Check(msgspec.Struct, frozen=True, tag=True):
    """In a transaction: require a condition without writing."""

    table: Table
    key: Key
    condition: Condition

    def check(self) -> None:
        self.table.checked(self.key)


Write: TypeAlias = Put | Update | Delete | Check


class Query(msgspec.Struct, frozen=True):
    """Items of one partition in the order of their sort keys, at most ``limit`` of them.

    ``prefix`` narrows to sort keys that start with it, ``first`` and ``last`` (inclusive) to a
    range. ``after`` continues behind a sort key, in the direction asked.
    """

    table: Table
    pk: str
    prefix: str = ""
    first: str = ""
    last: str = ""
    after: str = ""
    limit: int = QUERY_ITEMS_MAX
    descending: bool = False

    def check(self) -> None:
        if not self.table.sorted:
            raise InvalidOperationError(f"{self.table.name}: a table without SK can't be queried")
        self.table.checked(Key(self.pk, "any"))
        for bound in (self.prefix, self.first, self.last, self.after):
            if bound and text_bytes(bound) > SORT_KEY_BYTES_MAX:
                raise InvalidOperationError(f"SK has at most {SORT_KEY_BYTES_MAX} bytes")
        if self.prefix and (self.first or self.last):
            raise InvalidOperationError("a query takes a prefix or a range, not both")
        if not 1 <= self.limit <= QUERY_ITEMS_MAX:
            raise InvalidOperationError(f"a query's limit is 1 to {QUERY_ITEMS_MAX}")


class Page(msgspec.Struct, frozen=True):
    """The items of a query. ``after`` continues it; empty at the end."""

    items: tuple[Item, ...]
    after: str = ""


def check_transaction(operations: Sequence[Write]) -> None:
    """Raise if the store's rules refuse this transaction."""
    if not 1 <= len(operations) <= TRANSACTION_OPERATIONS_MAX:
        raise InvalidOperationError(
            f"a transaction has 1 to {TRANSACTION_OPERATIONS_MAX} operations, not {len(operations)}"
        )
    for operation in operations:
        operation.check()
    keys = {(operation.table.name, operation.key) for operation in operations}
    if len(keys) < len(operations):
        raise InvalidOperationError("a transaction can't touch one item twice")


def check_item_size(item: Mapping[str, Value]) -> None:
    """Raise if the item is too large."""
    if item_bytes_at_most(item) <= ITEM_BYTES_MAX:
        return
    size = item_bytes(item)
    if size > ITEM_BYTES_MAX:
        raise InvalidOperationError(f"an item of {size} bytes: the most is {ITEM_BYTES_MAX}")


def _check_expiry(table: Table, expires: Value) -> None:
    if table.expires and type(expires) is not int:
        raise InvalidOperationError(f"{table.name}: {EXPIRY} is in whole seconds")
