"""The storage port: seven calls with DynamoDB's meaning, and reads of whole partitions.

Every adapter gives the same results; the contract suite checks these promises:

- A write is atomic, and durable when its call returns. A failed condition raises
  `ConditionFailedError` with the current item and writes nothing.
- An expired item is absent: for reads, conditions and updates, which then start from nothing.
- `OutcomeUnknownError` is the only error after which a write may have happened. A store retries
  only what can't be applied twice.
- Cancelling the caller leaves the operation applied or not applied, never in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pricekeeper.errors import InvalidValueError
from pricekeeper.storage.operations import Delete, Page, Put, Query, Update, Write
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import Item

T = TypeVar("T")
C = TypeVar("C")


class Store(Protocol):
    """Items in tables. Bound to the event loop on which it was opened."""

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        """The item at that key. An inconsistent read may be stale, and costs half."""
        ...

    async def put(self, operation: Put) -> None: ...

    async def update(self, operation: Update) -> Item: ...

    async def delete(self, operation: Delete) -> Item | None:
        """Remove an item and return it.

        Of simultaneous deletes, several may return the item, unless conditioned on its existence.
        """
        ...

    async def transact(self, operations: Sequence[Write]) -> None:
        """Apply 1 to 100 operations on different items, all or nothing."""
        ...

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        """The items at these keys, in that order; any number, repeats allowed."""
        ...

    async def query(self, query: Query, *, consistent: bool = True) -> Page: ...

    async def create_tables(self) -> None: ...

    async def close(self) -> None:
        """Finish the accepted calls, then close everything. May be repeated."""
        ...


class ListPage(NamedTuple, Generic[T, C]):
    """A page of a list; ``after`` is ``None`` at the end."""

    entries: list[T]
    after: C | None = None


def invalid_cursor() -> InvalidValueError:
    """The error for an ``after`` that is no cursor of the list."""
    return InvalidValueError("after", "must be the `next` of the page before")


async def query_pages(store: Store, query: Query) -> AsyncIterator[Page]:
    """The pages of a query; each starts behind the last, so this ends."""
    while True:
        page = await store.query(query)
        yield page
        if not page.after:
            return
        query = msgspec.structs.replace(query, after=page.after)
        await asyncio.sleep(0)  # SQLite answers at once; let other requests have their turn


async def query_items(store: Store, query: Query) -> AsyncIterator[Item]:
    """The items of a query, over all pages; for one page faster than `query_pages`."""
    page = await store.query(query)
    for item in page.items:
        yield item
    while page.after:
        query = msgspec.structs.replace(query, after=page.after)
        await asyncio.sleep(0)
        page = await store.query(query)
        for item in page.items:
            yield item


async def read_items(store: Store, query: Query) -> list[Item]:
    """All items of a small query."""
    page = await store.query(query)
    if not page.after:
        return list(page.items)
    rest = query_items(store, msgspec.structs.replace(query, after=page.after))
    return [*page.items, *[item async for item in rest]]
