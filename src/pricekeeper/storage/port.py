"""The storage port: seven calls with DynamoDB's meaning.

Features are written once against `Store` and run on every adapter with the same results.
The promises that hold on all of them, each kept by the contract suite:

- A write is atomic and durable when its call returns. A condition that fails raises
  `ConditionFailedError` with the current item and writes nothing.
- An item whose expiry has come is absent: for reads, for conditions, and for updates,
  which then start from nothing.
- `OutcomeUnknownError` is the only error after which a write may have happened. A store
  sends again by itself only what can't be applied twice.
- Cancelling the caller leaves the operation either wholly applied or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pricekeeper.storage.operations import Delete, Page, Put, Query, Update, Write
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import Item


class Store(Protocol):
    """Items in tables. Bound to the event loop it was opened on."""

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        """The item at that key. An inconsistent read may be stale, and costs half."""
        ...

    async def put(self, operation: Put) -> None:
        """Write a whole item."""
        ...

    async def update(self, operation: Update) -> Item:
        """Change an item and return it as it is afterwards."""
        ...

    async def delete(self, operation: Delete) -> Item | None:
        """Remove an item and return what it was.

        Of several deletes at one moment, more than one may return the item. Only with the
        condition that it exists does exactly one succeed.
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

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        """Items of one partition in order."""
        ...

    async def create_tables(self) -> None:
        """Make whatever tables are missing and wait until they can be used."""
        ...

    async def close(self) -> None:
        """Finish the accepted calls, then close everything. Closing twice is fine."""
        ...
