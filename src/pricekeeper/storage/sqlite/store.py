"""The port on SQLite.

Writes go through the writer thread and are durable when they return. Reads of a file run on the
event loop, on their own connection: a few microseconds, less than a handover to a thread. A memory
database has one connection, so its reads queue with the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

import apsw

from pricekeeper.clock import Clock, TrustedClock, doubt_of
from pricekeeper.errors import StoreClosedError, StoreDamagedError, StoreError
from pricekeeper.settings import MEMORY
from pricekeeper.storage.kept_rows import EXPORT_STATE, Horizon, kept_from_epoch
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
from pricekeeper.storage.sqlite.codec import unpack
from pricekeeper.storage.sqlite.database import (
    DAMAGED,
    STATEMENTS,
    connect,
    read_data,
    read_item,
    read_items,
    read_range,
    translated,
)
from pricekeeper.storage.sqlite.file_watch import FileWatch
from pricekeeper.storage.sqlite.moments import Moments, read_moments, sweep_until_ms
from pricekeeper.storage.sqlite.writer import BUSY_TIMEOUT_MS, Writer
from pricekeeper.storage.tables import Key, Table
from pricekeeper.storage.values import SORT_KEY, Item
from pricekeeper.telemetry import StoreMeter

READ_BUSY_TIMEOUT_MS: Final = 1_000
SWEEP_INTERVAL_MS: Final = 60_000
LOOK_INTERVAL_MS: Final = 1_000
"""The longest time that reads continue without a look at the file. Commits always look."""
SWEEP_ROWS_MAX: Final = 500

_Result = TypeVar("_Result")


class SqliteStore:
    """Items in one SQLite file, which other processes may share."""

    def __init__(
        self,
        writer: Writer,
        reader: apsw.Connection | None,
        *,
        clock: Clock,
        meter: StoreMeter,
        moments: Moments | None = None,
        watch: FileWatch | None = None,
    ) -> None:
        self._writer = writer
        self._watch = watch
        self._looked_at_ms = clock.monotonic_ms()
        self._reader = reader
        self._in_memory = reader is None
        self._clock = clock
        self._meter = meter
        self._swept_until_ms = None if moments is None else moments.swept_until_ms
        self._swept_at_ms = clock.monotonic_ms()
        self._sweeper = asyncio.create_task(self._sweep_forever(), name="pricekeeper-sweeper")

    @classmethod
    async def open(cls, path: str, *, clock: Clock, meter: StoreMeter) -> Self:
        """Open a file, or a database in memory that ends with this object."""
        connection = connect(path, busy_timeout_ms=BUSY_TIMEOUT_MS)
        reader, watch = None, None
        if path != MEMORY:
            reader = connect(path, busy_timeout_ms=READ_BUSY_TIMEOUT_MS, read_only=True)
            watch = FileWatch(path, connection, meter)
        try:
            moments, kept_from = read_moments(connection), _read_kept_from(connection)
        except DAMAGED as error:
            raise StoreDamagedError(f"{path} is damaged: {error}") from error
        except apsw.Error as error:
            raise translated(error) from error
        if moments is not None and isinstance(clock, TrustedClock):
            clock.note_deleted(moments.deleted_until_ms)
            clock.note_newest_moment(moments.newest_ms)
        writer = Writer(connection, clock=clock, meter=meter, watch=watch)
        writer.kept_from_epoch = kept_from
        return cls(writer, reader, clock=clock, meter=meter, moments=moments, watch=watch)

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        del consistent
        self._meter.calls["get"] += 1
        return await self._read(read_item, table, table.checked(key))

    async def put(self, operation: Put) -> None:
        self._meter.calls["put"] += 1
        operation.check()
        await self._writer.submit(Batch.put, operation)

    async def update(self, operation: Update) -> Item:
        self._meter.calls["update"] += 1
        operation.check()
        return await self._writer.submit(Batch.update, operation)

    async def delete(self, operation: Delete) -> Item | None:
        self._meter.calls["delete"] += 1
        operation.check()
        return await self._writer.submit(Batch.delete, operation)

    async def transact(self, operations: Sequence[Write]) -> None:
        self._meter.calls["transact"] += 1
        check_transaction(operations)
        await self._writer.submit(Batch.transact, tuple(operations))

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        del consistent
        self._meter.calls["batch_get"] += 1
        return await self._read(read_items, [(table, table.checked(key)) for table, key in keys])

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        del consistent
        self._meter.calls["query"] += 1
        query.check()
        items = await self._read(read_range, query)
        if len(items) <= query.limit:
            return Page(tuple(items))
        del items[query.limit :]
        return Page(tuple(items), str(items[-1][SORT_KEY]))

    async def create_tables(self) -> None:
        await self._writer.submit(Batch.create_tables, None)

    async def sweep(self) -> int:
        """Remove rows that expired a day ago, in small steps between other writes.

        Nothing is removed in doubt of the time. Rows that wait for an export stay (`kept_rows`).
        """
        self._writer.kept_from_epoch = await self._writer.submit(Batch.find_kept_from, None)
        now_ms, began_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        until_ms = sweep_until_ms(now_ms, self._swept_until_ms, began_ms - self._swept_at_ms)
        trusted = self._clock if isinstance(self._clock, TrustedClock) else None
        leap_ms = 0 if trusted is None else trusted.leap_ms
        noted = Moments(now_ms, leap_ms, swept_until_ms=until_ms)
        moments = await self._writer.submit(Batch.note_moments, noted)
        if trusted is not None:
            trusted.note_deleted(moments.deleted_until_ms)
        if leap_ms or doubt_of(self._clock) is not None:
            return 0
        self._swept_until_ms, self._swept_at_ms = until_ms, began_ms
        swept = 0
        for name in STATEMENTS:
            step = SWEEP_ROWS_MAX
            while step == SWEEP_ROWS_MAX:
                wanted = (name, until_ms // 1000, SWEEP_ROWS_MAX)
                step = await self._writer.submit(Batch.sweep, wanted)
                swept += step
        self._meter.swept += swept
        return swept

    async def close(self) -> None:
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._writer.close()
        if self._reader is not None:
            if self._watch is not None and self._watch.overwritten:
                self._reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._reader.close()
            self._reader = None

    async def _read(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        if self._in_memory:
            return await self._writer.submit(Batch.read, (function, arguments))
        if self._reader is None:
            raise StoreClosedError("the store is closed")
        self._look_at_file()
        try:
            horizon = Horizon(self._clock.now_ms() // 1000, self._writer.kept_from_epoch)
            return function(self._reader, *arguments, horizon)
        except apsw.Error as error:
            if self._watch is not None and isinstance(error, DAMAGED):
                self._watch.look()  # a file that was replaced looks damaged, too
                self._watch.note_damage(error)
                self._watch.refuse_if_unusable()
            raise translated(error) from error

    def _look_at_file(self) -> None:
        """Look at the file now and then; raise if it must not be used any more."""
        if self._watch is None:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_at_ms >= LOOK_INTERVAL_MS:
            self._looked_at_ms = now_ms
            self._watch.look()
        self._watch.refuse_if_unusable()

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(SWEEP_INTERVAL_MS)
            try:
                await self.sweep()
            except StoreError:
                # The sweeper is not urgent, since expired items are invisible: it tries again at
                # the next interval, and the meter shows the failure.
                self._meter.faults["sweep"] += 1


def _read_kept_from(connection: apsw.Connection) -> int | None:
    """Rows that expire at this time or later are kept; ``None`` if none are."""
    table, key = EXPORT_STATE
    try:
        data = read_data(connection, table, key)
    except apsw.SQLError as error:
        if "no such table" not in str(error):
            raise
        return None
    return None if data is None else kept_from_epoch(unpack(data, key))
