"""Items in tables, with DynamoDB's meaning, on SQLite and on DynamoDB.

Features are given a `Store`; only the composition root calls `open_store`.
"""

from pricekeeper.storage.expressions import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Action,
    Add,
    Condition,
    Remove,
    Set,
    attr,
)
from pricekeeper.storage.format import require_format
from pricekeeper.storage.opening import (
    enable_expiry,
    find_damage,
    find_tables_without_expiry,
    forget_moments_ahead,
    open_store,
    read_leap_ms,
)
from pricekeeper.storage.operations import Check, Delete, Page, Put, Query, Update, Write
from pricekeeper.storage.port import (
    ListPage,
    Store,
    invalid_cursor,
    query_items,
    query_pages,
    read_items,
)
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.typed_items import TypedItem, readable
from pricekeeper.storage.values import Item, Value

__all__ = [
    "ITEM_ABSENT",
    "ITEM_EXISTS",
    "Action",
    "Add",
    "Check",
    "Condition",
    "Delete",
    "Item",
    "Key",
    "ListPage",
    "Page",
    "Put",
    "Query",
    "Remove",
    "Set",
    "Store",
    "Table",
    "TypedItem",
    "Update",
    "Value",
    "Write",
    "attr",
    "enable_expiry",
    "find_damage",
    "find_tables_without_expiry",
    "forget_moments_ahead",
    "invalid_cursor",
    "open_store",
    "query_items",
    "query_pages",
    "read_items",
    "read_leap_ms",
    "readable",
    "require_format",
]
