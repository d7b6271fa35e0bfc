"""A store that forwards every call, so that a test can do something around it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update, Write

_T = TypeVar("_T")


class ForwardingStore:
    """Subclasses say what happens around a read and a write."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._read("get", lambda: self._store.get(table, key, consistent=consistent))

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        return await self._read(
            "batch_get", lambda: self._store.batch_get(keys, consistent=consistent)
        )

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        return await self._read("query", lambda: self._store.query(query, consistent=consistent))

    async def put(self, operation: Put) -> None:
        await self._write("put", [operation], lambda: self._store.put(operation))

    async def update(self, operation: Update) -> Item:
        return await self._write("update", [operation], lambda: self._store.update(operation))

    async def delete(self, operation: Delete) -> Item | None:
        return await self._write("delete", [operation], lambda: self._store.delete(operation))

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._write("transact", operations, lambda: self._store.transact(operations))

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()

    async def _read(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        raise NotImplementedError

    async def _write(
        self, name: str, operations: Sequence[Write], send: Callable[[], Awaitable[_T]]
    ) -> _T:
        raise NotImplementedError
