"""The file itself: who may read it, what it must be, and how it is kept small."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import ContendedError, StoreMisconfiguredError
from pricekeeper.storage import Item, Key, Put
from pricekeeper.storage.sqlite import database
from pricekeeper.storage.sqlite.moments import SWEEP_AFTER_MS
from pricekeeper.storage.sqlite.store import SWEEP_INTERVAL_MS, SWEEP_ROWS_MAX, SqliteStore
from pricekeeper.storage.tables import CONFIG, REQUEST_DEDUP
from pricekeeper.telemetry import StoreMeter


async def opened(path: Path) -> SqliteStore:
    return await SqliteStore.open(str(path), clock=ManualClock(), meter=StoreMeter())


async def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "store.db"
    store = await opened(path)
    await store.create_tables()
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0
    await store.close()


async def test_it_is_durable_by_configuration(store: SqliteStore) -> None:
    connection = store._writer._connection
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2


async def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """We refuse it instead of adding our tables to it."""
    path = tmp_path / "foreign.db"
    foreign = apsw.Connection(str(path))
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    with pytest.raises(StoreMisconfiguredError, match="another program"):
        await opened(path)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database " * 100)
    with pytest.raises(StoreMisconfiguredError):
        await opened(path)


async def test_a_folder_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreMisconfiguredError):
        await opened(tmp_path / "file" / "store.db")


async def test_an_old_sqlite_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its WAL can be corrupted, so we do not start on it."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreMisconfiguredError, match="upgrade apsw"):
        await opened(Path(path))


def receipt(number: int, clock: ManualClock, seconds: int) -> Put:
    item: Item = {"PK": f"r{number}", "expires_at_epoch": clock.now_ms() // 1000 + seconds}
    return Put(REQUEST_DEDUP, item)


def rows(path: str) -> int:
    connection = apsw.Connection(path)
    count = connection.execute('SELECT count(*) FROM "RequestDedup"').get
    connection.close()
    return int(count)


async def test_expired_rows_are_swept_and_no_others(
    path: str, store: SqliteStore, clock: ManualClock, meter: StoreMeter
) -> None:
    dead = SWEEP_ROWS_MAX * 2 + 7
    await asyncio.gather(*(store.put(receipt(n, clock, 60)) for n in range(dead)))
    await asyncio.gather(*(store.put(receipt(dead + n, clock, 3600)) for n in range(5)))
    await store.put(Put(CONFIG, {"PK": "c", "SK": "1", "expires_at_epoch": 1}))
    clock.advance_ms(60_000 + SWEEP_AFTER_MS - 1_000)
    assert await store.sweep() == 0
    clock.advance_ms(1_000)
    commits = meter.commit_sizes.count
    assert await store.sweep() == dead
    assert meter.commit_sizes.count - commits >= 3
    assert rows(path) == 5
    assert await store.get(CONFIG, Key("c", "1")) is not None


async def test_sweeping_goes_on_in_the_background(
    path: str, store: SqliteStore, clock: ManualClock, meter: StoreMeter
) -> None:
    """Every interval, without being asked; a failure is counted and tried again."""
    await asyncio.gather(*(store.put(receipt(n, clock, 60)) for n in range(10)))
    clock.advance_ms(SWEEP_AFTER_MS)
    await let_the_sweeper_run(clock, meter, lambda: meter.swept == 10)
    assert rows(path) == 0
    store._writer._connection.execute('ALTER TABLE "Sessions" RENAME TO "Gone"')
    await let_the_sweeper_run(clock, meter, lambda: meter.faults["sweep"] == 1)
    store._writer._connection.execute('ALTER TABLE "Gone" RENAME TO "Sessions"')
    await store.put(receipt(99, clock, 1 - SWEEP_AFTER_MS // 1_000))
    await let_the_sweeper_run(clock, meter, lambda: meter.swept == 11)


async def let_the_sweeper_run(
    clock: ManualClock, meter: StoreMeter, done: Callable[[], bool]
) -> None:
    """Let one interval pass, and turn the loop until the sweeper has done its work."""
    turns = 0
    while not done():
        if clock.sleepers:
            clock.advance_ms(SWEEP_INTERVAL_MS)
        await asyncio.sleep(0)
        turns += 1
        assert turns < 100_000, f"the sweeper did not get there: {meter}"


async def test_the_file_shrinks_its_log_when_it_is_closed(path: str, store: SqliteStore) -> None:
    """A closed store is one file again."""
    await store.put(Put(CONFIG, {"PK": "c", "SK": "1"}))
    await store.close()
    assert os.listdir(Path(path).parent) == ["store.db"]  # noqa: PTH208


def test_a_new_file_that_another_process_switches_is_asked_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait then, despite its timeout; a file that stays busy is refused."""
    refusals = 3

    class Refusing(apsw.Connection):
        def execute(self, *given: Any, **named: Any) -> apsw.Cursor:
            nonlocal refusals
            if given[0].startswith("PRAGMA journal_mode") and refusals:
                refusals -= 1
                raise apsw.BusyError("database is locked")
            return super().execute(*given, **named)

    monkeypatch.setattr(apsw, "Connection", Refusing)
    database.connect(path, busy_timeout_ms=5_000).close()
    assert refusals == 0
    refusals = 1_000
    with pytest.raises(ContendedError):
        database.connect(path, busy_timeout_ms=50)
