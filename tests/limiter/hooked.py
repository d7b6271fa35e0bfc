"""A real store that a test can interrupt just before and just after a call."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update, Write

_T = TypeVar("_T")


class Hooked:
    """Forwards every call. ``before`` may run other requests, move the clock, or raise."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.replies_to_lose = 0
        """The next writes that are applied but raise `OutcomeUnknownError`."""

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._call("get", lambda: self._store.get(table, key, consistent=consistent))

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        return await self._call(
            "batch_get", lambda: self._store.batch_get(keys, consistent=consistent)
        )

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        return await self._call("query", lambda: self._store.query(query, consistent=consistent))

    async def put(self, operation: Put) -> None:
        await self._write("put", lambda: self._store.put(operation))

    async def update(self, operation: Update) -> Item:
        return await self._write("update", lambda: self._store.update(operation))

    async def delete(self, operation: Delete) -> Item | None:
        return await self._write("delete", lambda: self._store.delete(operation))

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._write("transact", lambda: self._store.transact(operations))

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()

    async def _call(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        if self.before is not None:
            await self.before(name)
        return await send()

    async def _write(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        result = await self._call(name, send)
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            raise OutcomeUnknownError("the reply was lost")
        return result


def once(hook: Callable[[], Awaitable[object]]) -> Callable[[str], Awaitable[None]]:
    """Run the hook before the next call only."""
    pending = [hook]

    async def before(_: str) -> None:
        if pending:
            await pending.pop()()

    return before
