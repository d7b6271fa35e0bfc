"""The port on SQLite.

Writes go through the writer thread and are durable when they return. Reads of a file run
straight on the event loop, on a connection of their own: a point read takes a few
microseconds, less than handing it to a thread. A memory database has one connection only, so
its reads queue up with the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

import apsw

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreClosedError, StoreError
from pricekeeper.settings import MEMORY
from pricekeeper.storage.operations import (
    Delete,
    Page,
    Put,
    Query,
    Update,
    Write,
    check_transaction,
)
from pricekeeper.storage.sqlite.batch import Batch
from pricekeeper.storage.sqlite.database import (
    STATEMENTS,
    connect,
    read_item,
    read_items,
    read_range,
    translated,
)
from pricekeeper.storage.sqlite.writer import Writer
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import SORT_KEY, Item
from pricekeeper.telemetry import StoreMeter

BUSY_TIMEOUT_MS: Final = 5_000
READ_BUSY_TIMEOUT_MS: Final = 1_000
SWEEP_INTERVAL_MS: Final = 60_000
SWEEP_ROWS_MAX: Final = 500

_Result = TypeVar("_Result")


class SqliteStore:
    """Items in one SQLite file, shared with other processes if need be."""

    def __init__(
        self,
        writer: Writer,
        reader: apsw.Connection | None,
        *,
        clock: Clock,
        meter: StoreMeter,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._in_memory = reader is None
        self._clock = clock
        self._meter = meter
        self._sweeper = asyncio.create_task(self._sweep_forever(), name="pricekeeper-sweeper")

    @classmethod
    async def open(cls, path: str, *, clock: Clock, meter: StoreMeter) -> Self:
        """Open a file, or a database in memory that ends with this object."""
        connection = connect(path, busy_timeout_ms=BUSY_TIMEOUT_MS)
        reader = None
        if path != MEMORY:
            reader = connect(path, busy_timeout_ms=READ_BUSY_TIMEOUT_MS, read_only=True)
        return cls(Writer(connection, clock=clock, meter=meter), reader, clock=clock, meter=meter)

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        """The item at that key; always consistent here."""
        del consistent
        self._meter.calls["get"] += 1
        return await self._read(read_item, table, table.checked(key))

    async def put(self, operation: Put) -> None:
        """Write a whole item."""
        self._meter.calls["put"] += 1
        operation.check()
        await self._writer.submit(Batch.put, operation)

    async def update(self, operation: Update) -> Item:
        """Change an item and return it as it is afterwards."""
        self._meter.calls["update"] += 1
        operation.check()
        return await self._writer.submit(Batch.update, operation)

    async def delete(self, operation: Delete) -> Item | None:
        """Remove an item and return what it was."""
        self._meter.calls["delete"] += 1
        operation.check()
        return await self._writer.submit(Batch.delete, operation)

    async def transact(self, operations: Sequence[Write]) -> None:
        """Apply the operations, all or nothing."""
        self._meter.calls["transact"] += 1
        check_transaction(operations)
        await self._writer.submit(Batch.transact, tuple(operations))

    async def batch_get(
        self, places: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        """The items at these keys, in that order, all as of one moment."""
        del consistent
        self._meter.calls["batch_get"] += 1
        return await self._read(read_items, [(table, table.checked(key)) for table, key in places])

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        """Items of one partition in order."""
        del consistent
        self._meter.calls["query"] += 1
        query.check()
        items = await self._read(read_range, query)
        if len(items) <= query.limit:
            return Page(tuple(items))
        del items[query.limit :]
        return Page(tuple(items), str(items[-1][SORT_KEY]))

    async def create_tables(self) -> None:
        """Make whatever tables are missing."""
        await self._writer.submit(Batch.create_tables, None)

    async def sweep(self) -> int:
        """Remove every item whose time has come, in small steps that others can slip between."""
        swept = 0
        for name in STATEMENTS:
            step = SWEEP_ROWS_MAX
            while step == SWEEP_ROWS_MAX:
                step = await self._writer.submit(Batch.sweep, (name, SWEEP_ROWS_MAX))
                swept += step
        self._meter.swept += swept
        return swept

    async def close(self) -> None:
        """Finish what was accepted, then let go of the file."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._writer.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    async def _read(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        if self._in_memory:
            return await self._writer.submit(Batch.read, (function, arguments))
        if self._reader is None:
            raise StoreClosedError("the store is closed")
        try:
            return function(self._reader, *arguments, self._clock.now_ms() // 1000)
        except apsw.Error as error:
            raise translated(error) from error

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(SWEEP_INTERVAL_MS)
            try:
                await self.sweep()
            except StoreError:
                # Nobody waits for the sweeper, and expired items are invisible anyway: it
                # tries again at the next interval, and the meter shows that it had to.
                self._meter.faults["sweep"] += 1
