"""The file under the store: what is noticed, what is not mistaken for it, and what that costs."""

import asyncio
import os
import secrets
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreDamagedError, StoreReplacedError
from pricekeeper.storage import Item, Key, Put
from pricekeeper.storage.sqlite import file_watch
from pricekeeper.storage.sqlite.batch import Batch
from pricekeeper.storage.sqlite.database import FileCheck, check_file, connect
from pricekeeper.storage.sqlite.file_watch import FileWatch
from pricekeeper.storage.sqlite.store import LOOK_INTERVAL_MS, SqliteStore
from pricekeeper.storage.sqlite.writer import CHECKPOINT_FRAMES, Writer
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter


def put(n: int, size: int = 1) -> Put:
    item: Item = {"PK": "a", "SK": str(n), "v": "x" * size}
    return Put(CONFIG, item)


def checkpoint(path: str, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> None:
    """As another process does it, without a commit of its own."""
    other = reading(path)
    other.wal_checkpoint(mode=mode)
    other.close()


def reading(path: str, vfs: str | None = None) -> apsw.Connection:
    """A connection that has read, and so knows of the log."""
    other = apsw.Connection(path, vfs=vfs)
    other.pragma("schema_version")
    return other


def size_of(path: str) -> int:
    return Path(path).stat().st_size


@pytest.fixture
async def impatient(path: str, meter: StoreMeter) -> AsyncIterator[Writer]:
    """A writer that does not wait for other processes' checkpoints."""
    connection = connect(path, busy_timeout_ms=0)
    watch = FileWatch(path, connection, meter, checkpoint_ms_max=0)
    writer = Writer(connection, clock=ManualClock(), meter=meter, watch=watch)
    await writer.submit(Batch.create_tables, None)
    yield writer
    await writer.close()


@pytest.mark.parametrize("written_back", [False, True], ids=["log", "file"])
async def test_a_copy_over_the_name_is_noticed_by_the_first_commit(
    impatient: Writer, path: str, tmp_path: Path, *, written_back: bool
) -> None:
    for n in range(3):
        await impatient.submit(Batch.put, put(n))
    if written_back:
        while size_of(path) < CHECKPOINT_FRAMES * 4_096:
            await impatient.submit(Batch.put, put(3, size=300_000))
            await impatient.submit(Batch.put, put(secrets.randbits(32), size=300_000))
    copy = tmp_path / "copy.db"
    shutil.copyfile(path, copy)
    shutil.copyfile(copy, path)
    with pytest.raises(StoreReplacedError) as refused:
        await impatient.submit(Batch.put, put(4))
    assert refused.value.may_be_applied
    with pytest.raises(StoreReplacedError) as later:
        await impatient.submit(Batch.put, put(5))
    assert not later.value.may_be_applied


async def test_a_copy_while_a_commit_is_under_way_is_noticed(
    impatient: Writer, path: str, tmp_path: Path
) -> None:
    """Under load a commit is always under way."""
    await impatient.submit(Batch.put, put(1))
    copy = tmp_path / "copy.db"
    shutil.copyfile(path, copy)

    def put_and_copy(batch: Batch, operation: Put) -> None:
        batch.put(operation)
        shutil.copyfile(copy, path)

    with pytest.raises(StoreReplacedError):
        await impatient.submit(put_and_copy, put(2))


async def test_checkpoints_of_others_are_no_replacement(impatient: Writer, path: str) -> None:
    """Before, during and after a commit; also if the commit then resets the log."""

    def put_and_checkpoint(batch: Batch, operation: Put) -> None:
        batch.put(operation)
        checkpoint(path)

    for n in range(20):
        await impatient.submit(Batch.put, put(n, size=50_000 if n % 3 else 1))
        checkpoint(path)
        await impatient.submit(put_and_checkpoint, put(n, size=100_000))
        if n % 4 == 0:
            checkpoint(path, apsw.SQLITE_CHECKPOINT_TRUNCATE)


async def test_our_own_checkpoints_are_no_replacement(
    impatient: Writer, path: str, meter: StoreMeter
) -> None:
    """The log stays about as long as a checkpoint allows, however much is written."""
    for n in range(60):
        await impatient.submit(Batch.put, put(n % 7, size=300_000))
    assert size_of(f"{path}-wal") < 2 * CHECKPOINT_FRAMES * 4_200
    assert not meter.faults["replaced"]


class SlowFile(apsw.VFSFile):
    """A database file whose fsync waits for a signal."""

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        SlowDisk.reached.set()
        assert SlowDisk.gate.wait(timeout=20)
        super().xSync(flags)


class SlowDisk(apsw.VFS):
    """The ordinary file system, with a `SlowFile` for the database itself."""

    gate = threading.Event()
    reached = threading.Event()

    def __init__(self) -> None:
        super().__init__("slow", "")

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        kind = SlowFile if flags[0] & apsw.SQLITE_OPEN_MAIN_DB else apsw.VFSFile
        return kind("", name, flags)


async def test_a_checkpoint_that_is_under_way_is_waited_for(
    store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages are in the file, and the log does not say so yet: the commit waits for that."""
    disk, waits, sleep = SlowDisk(), threading.Event(), time.sleep

    def noted_sleep(secs: float) -> None:
        waits.set()
        sleep(secs)

    monkeypatch.setattr(time, "sleep", noted_sleep)
    await store.put(put(1, size=50_000))
    other = reading(path, vfs="slow")
    checkpointing = asyncio.create_task(
        asyncio.to_thread(other.wal_checkpoint, mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    )
    assert await asyncio.to_thread(SlowDisk.reached.wait, 20)
    writing = asyncio.create_task(store.put(put(2)))
    assert await asyncio.to_thread(waits.wait, 20)
    assert not writing.done()
    SlowDisk.gate.set()
    await writing
    await checkpointing
    other.close()
    del disk


async def test_reads_notice_it_within_a_second(
    store: SqliteStore, path: str, clock: ManualClock, meter: StoreMeter
) -> None:
    await store.put(put(1))
    os.rename(path, f"{path}.gone")  # noqa: PTH104 - as quick as can be
    clock.advance_ms(LOOK_INTERVAL_MS)
    for _ in range(3):
        with pytest.raises(StoreReplacedError):
            await store.get(CONFIG, Key("a", "1"))
    with pytest.raises(StoreReplacedError):
        await store.put(put(2))
    assert meter.faults["replaced"] == 1


async def test_each_commit_looks_once_and_reads_hardly_ever(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of many operations asks for the file, its log and its index, as one of one does."""
    asked: list[str] = []
    stat = file_watch._stat

    def counted(path: str) -> os.stat_result | None:
        asked.append(path)
        return stat(path)

    monkeypatch.setattr(file_watch, "_stat", counted)
    await store.put(put(1))
    alone = len(asked)
    asked.clear()
    await asyncio.gather(*(store.put(put(n)) for n in range(100)))
    assert len(asked) == alone == 3
    asked.clear()
    for n in range(100):
        await store.get(CONFIG, Key("a", str(n)))
    assert not asked


def damage(path: Path) -> None:
    """Overwrite the second half, where the items are: what is read at a start is whole."""
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xa5" * (len(whole) - half))


async def test_a_damaged_file_is_neither_read_nor_written(
    path: str, clock: ManualClock, meter: StoreMeter
) -> None:
    store = await SqliteStore.open(path, clock=clock, meter=meter)
    await store.create_tables()
    await asyncio.gather(*(store.put(put(n, size=3_000)) for n in range(50)))
    await store.close()
    damage(Path(path))
    store = await SqliteStore.open(path, clock=clock, meter=meter)
    with pytest.raises(StoreDamagedError, match="doctor"):
        await asyncio.gather(*(store.get(CONFIG, Key("a", str(n))) for n in range(50)))
    with pytest.raises(StoreDamagedError):
        await store.put(put(1))
    assert meter.faults["damaged"] == 1
    await store.close()


async def test_a_search_for_damage_ends_when_its_time_is_up(
    path: str, clock: ManualClock, meter: StoreMeter
) -> None:
    store = await SqliteStore.open(path, clock=clock, meter=meter)
    await store.create_tables()
    await asyncio.gather(*(store.put(put(n, size=3_000)) for n in range(5_000)))
    await store.close()
    assert check_file(path, clock, 0) == FileCheck(None)
    assert check_file(path, clock, -1) == FileCheck(None, complete=False)
    damage(Path(path))
    assert check_file(path, clock, 0).damage
