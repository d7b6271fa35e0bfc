"""The SQLite file: opening, schema, statements, errors, and a check for damage.

Each of our tables is an SQLite table of key, expiry and packed item, with an index over present
expiries for the sweeper.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from pricekeeper.settings import MEMORY
from pricekeeper.storage.kept_rows import Horizon
from pricekeeper.storage.operations import Query
from pricekeeper.storage.sqlite.codec import unpack
from pricekeeper.storage.tables import ALL_TABLES, Key, Table
from pricekeeper.storage.values import SORT_KEY_BYTES_MAX, Item

SQLITE_OLDEST: Final = (3, 51, 3)
"""Older versions can corrupt a WAL database when the log is reset under a reader."""

APPLICATION_ID: Final = 0x50_4B_53_31
MOMENTS: Final = "ClockMoments"
"""One row: what this store knows of the time. See `moments`."""

_STATEMENT_CACHE: Final = 200
DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError)
_UNUSABLE: Final = (*DAMAGED, apsw.CantOpenError, apsw.PermissionsError)
_BEYOND_ALL: Final = "\U0010ffff" * (SORT_KEY_BYTES_MAX // 4 + 1)
"""Sorts behind every possible sort key, also when appended to a prefix."""


class Statements:
    """The statements for one table."""

    __slots__ = ("create", "delete", "index", "peek", "select", "sweep", "upsert")

    def __init__(self, name: str) -> None:
        self.create = (
            f'CREATE TABLE IF NOT EXISTS "{name}" (pk TEXT NOT NULL, sk TEXT NOT NULL, '
            "expires INTEGER, item BLOB NOT NULL, PRIMARY KEY (pk, sk)) WITHOUT ROWID"
        )
        self.index = (
            f'CREATE INDEX IF NOT EXISTS "{name}ByExpiry" ON "{name}" (expires) '
            "WHERE expires IS NOT NULL"
        )
        self.peek = f'SELECT item FROM "{name}" WHERE pk = ? AND sk = ?'  # noqa: S608
        self.select = (
            f'SELECT item FROM "{name}" '  # noqa: S608 - names are our own constants
            "WHERE pk = ? AND sk = ? AND (expires IS NULL OR expires > ?)"
        )
        self.upsert = (
            f'INSERT INTO "{name}" (pk, sk, expires, item) VALUES (?, ?, ?, ?) '  # noqa: S608
            "ON CONFLICT (pk, sk) DO UPDATE SET expires = excluded.expires, item = excluded.item"
        )
        self.delete = f'DELETE FROM "{name}" WHERE pk = ? AND sk = ?'  # noqa: S608
        self.sweep = (
            f'DELETE FROM "{name}" WHERE (pk, sk) IN '  # noqa: S608
            f'(SELECT pk, sk FROM "{name}" WHERE expires <= ? LIMIT ?)'
        )


_NAMES: Final = (*(table.name for table in ALL_TABLES), MOMENTS)
STATEMENTS: Final = {name: Statements(name) for name in _NAMES}


def connect(path: str, *, busy_timeout_ms: int, read_only: bool = False) -> apsw.Connection:
    """Open the file or a memory database; a new file is readable by its owner only."""
    if _library_version() < SQLITE_OLDEST:
        raise StoreMisconfiguredError(
            f"SQLite {apsw.sqlite_lib_version()} is older than 3.51.3: upgrade apsw"
        )
    try:
        if path != MEMORY and not read_only:
            _make_file(Path(path))
        connection = apsw.Connection(path, statementcachesize=_STATEMENT_CACHE)
        connection.set_busy_timeout(busy_timeout_ms)
        _configure(connection, path, busy_timeout_ms)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except apsw.Error as error:
        raise translated(error) from error
    except OSError as error:
        raise StoreMisconfiguredError(f"can't open {path}: {error.strerror}") from error
    return connection


def create_schema(connection: apsw.Connection) -> None:
    """Create missing tables. The caller holds a transaction."""
    for statements in STATEMENTS.values():
        connection.execute(statements.create)
        connection.execute(statements.index)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def read_data(connection: apsw.Connection, table: Table, key: Key) -> bytes | None:
    """The packed item at that key, expired or not."""
    for (data,) in connection.execute(STATEMENTS[table.name].peek, (key.pk, key.sk or "")):
        return data  # type: ignore[no-any-return]
    return None


def read_item(connection: apsw.Connection, table: Table, key: Key, horizon: Horizon) -> Item | None:
    """The item at that key, unless it has expired."""
    bindings = (key.pk, key.sk or "", horizon.of(table.name))
    cursor = connection.execute(STATEMENTS[table.name].select, bindings)
    for (data,) in cursor:
        return unpack(data, key)
    return None


def read_items(
    connection: apsw.Connection, keys: Sequence[tuple[Table, Key]], horizon: Horizon
) -> list[Item | None]:
    """Many items, as of one moment."""
    with connection:
        items = [read_item(connection, table, key, horizon) for table, key in keys]
    return items  # noqa: RET504 - mypy thinks that a connection's exit may swallow exceptions


def read_range(connection: apsw.Connection, query: Query, horizon: Horizon) -> list[Item]:
    """The items of a query, and one more if there is one."""
    low, high = query.first or query.prefix, query.last or query.prefix + _BEYOND_ALL
    order, beyond = ("DESC", "<") if query.descending else ("ASC", ">")
    after = query.after or (_BEYOND_ALL if query.descending else "")
    sql = (
        f'SELECT sk, item FROM "{query.table.name}" '  # noqa: S608 - names are our own constants
        f"WHERE pk = ? AND sk >= ? AND sk <= ? AND sk {beyond} ? "
        f"AND (expires IS NULL OR expires > ?) ORDER BY sk {order} LIMIT ?"
    )
    bindings = (query.pk, low, high, after, horizon.of(query.table.name), query.limit + 1)
    rows = connection.execute(sql, bindings)
    return [unpack(data, Key(query.pk, sk)) for sk, data in rows]


def translated(error: apsw.Error, *, committing: bool = False) -> StoreError:
    """The store's error for an error of SQLite.

    Until COMMIT nothing is applied. A COMMIT out of space wrote no commit record; after any other
    I/O error the record may have reached the disk.
    """
    text = f"SQLite: {error}"
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return ContendedError(f"{text}: another process holds the file")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreReadOnlyError(text)
    if isinstance(error, _UNUSABLE):
        return StoreMisconfiguredError(text)
    if isinstance(error, apsw.SQLError) and "no such table" in str(error):
        return StoreMisconfiguredError(
            f"{text}; create the tables first: pricekeeper tables create"
        )
    if isinstance(error, apsw.FullError):
        return StoreFullError(text)
    if not committing:
        return StoreUnavailableError(text)
    return OutcomeUnknownError(f"{text}, while committing")


def _library_version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


def _make_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # An existing file is left alone: closing it here would end the locks that another connection of
    # this process holds on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _configure(connection: apsw.Connection, path: str, busy_timeout_ms: int) -> None:
    application = connection.pragma("application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if application not in (0, APPLICATION_ID) or (application == 0 and tables):
        raise StoreMisconfiguredError(f"{path} is a database of another program")
    mode = _switch_to_wal(connection, busy_timeout_ms)
    if mode != ("memory" if path == MEMORY else "wal"):
        raise StoreMisconfiguredError(f"{path}: the file system does not support WAL ({mode})")
    connection.execute("PRAGMA synchronous = FULL")


def _switch_to_wal(connection: apsw.Connection, busy_timeout_ms: int) -> object:
    """SQLite refuses at once if another process switches the same new file: ask it again."""
    deadline = time.monotonic() + busy_timeout_ms / 1000
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").get
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_SWITCH_PAUSE_SECS)


_SWITCH_PAUSE_SECS: Final = 0.02
_STEPS: Final = 10_000
"""SQLite instructions between two looks at the clock: under a millisecond."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The damage found. ``complete``: there was time to check everything."""

    damage: str | None
    complete: bool = True


def check_file(path: str, clock: Clock, patience_ms: int) -> FileCheck:
    """Run SQLite's own check until it finds damage or time is up; it reads every used page."""
    deadline_ms = clock.monotonic_ms() + patience_ms
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.Error as error:
        return FileCheck(str(error))
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(lambda: clock.monotonic_ms() > deadline_ms, _STEPS)
        result = str(connection.execute("PRAGMA quick_check(1)").get)
    except apsw.InterruptError:
        return FileCheck(None, complete=False)
    except apsw.Error as error:
        return FileCheck(str(error))
    finally:
        connection.close()
    return FileCheck(None if result == "ok" else result)
