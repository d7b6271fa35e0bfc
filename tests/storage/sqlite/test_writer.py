"""The writer thread: group commit, bounds, and what it survives."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import apsw
import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.storage import ITEM_ABSENT, Add, Item, Key, Put, Update, Value
from pricekeeper.storage.expressions import Condition
from pricekeeper.storage.sqlite import writer as writer_module
from pricekeeper.storage.sqlite.batch import Batch
from pricekeeper.storage.sqlite.database import connect, create_schema
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.sqlite.writer import IN_LOOP_MAX, Writer
from pricekeeper.storage.tables import ALL_TABLES, CONFIG
from pricekeeper.telemetry import StoreMeter
from programs import run_program


def put(n: int, pk: str = "a") -> Put:
    return Put(CONFIG, {"PK": pk, "SK": str(n), "n": n}, ITEM_ABSENT)


async def test_one_commit_carries_what_arrived_together(
    store: SqliteStore, meter: StoreMeter
) -> None:
    """A hundred writes of one moment are one fsync, a lone write is one too."""
    before = meter.commit_sizes.count
    await asyncio.gather(*(store.put(put(n)) for n in range(100)))
    assert meter.commit_sizes.count == before + 1
    await store.put(put(100))
    assert meter.commit_sizes.count == before + 2
    assert meter.commit_sizes.total >= 101


async def test_a_batch_has_a_bound(
    store: SqliteStore, meter: StoreMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_MAX", 30)
    before = meter.commit_sizes.count
    await asyncio.gather(*(store.put(put(n)) for n in range(100)))
    assert meter.commit_sizes.count == before + 4


async def test_the_queue_has_a_bound(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PENDING_MAX", 10)
    outcomes = await asyncio.gather(*(store.put(put(n)) for n in range(15)), return_exceptions=True)
    assert outcomes[:10] == [None] * 10
    assert all(isinstance(outcome, ThrottledError) for outcome in outcomes[10:])
    await store.put(put(99))


async def test_a_failing_operation_leaves_its_neighbours_alone(store: SqliteStore) -> None:
    """In one commit: a lost race, a type error and a bug, each told to its own caller."""
    await store.put(Put(CONFIG, {"PK": "a", "SK": "text", "n": "x"}))

    def broken(_: Batch, __: None) -> None:
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        store.put(put(1)),
        store.put(put(1)),
        store._writer.submit(broken, None),
        store.put(put(2)),
        return_exceptions=True,
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ConditionFailedError)
    assert isinstance(outcomes[2], ZeroDivisionError)
    assert outcomes[3] is None
    assert await store.get(CONFIG, Key("a", "2")) is not None


async def test_operations_of_one_batch_see_each_other(store: SqliteStore) -> None:
    counter = Update(CONFIG, Key("a", "n"), (Add("n", 1),))
    items = await asyncio.gather(*(store.update(counter) for _ in range(50)))
    assert [item["n"] for item in items] == list(range(1, 51))


class Noting(Condition, frozen=True):
    """Holds, and notes in which thread it was asked."""

    threads: list[str]

    def holds(self, item: Mapping[str, Value]) -> bool:
        del item
        self.threads.append(threading.current_thread().name)
        return True


LOOP, THREAD = "MainThread", "pricekeeper-writer"


async def threads_of(store: SqliteStore, count: int) -> set[str]:
    """Where so many writes of one moment are decided."""
    noting = Noting([])
    items: list[Item] = [{"PK": "a", "SK": str(n)} for n in range(count)]
    await asyncio.gather(*(store.put(Put(CONFIG, item, noting)) for item in items))
    assert len(noting.threads) == count
    return set(noting.threads)


async def test_a_few_writes_are_decided_in_the_loop(store: SqliteStore) -> None:
    """The thread only commits them; it decides larger batches itself, to keep the loop free."""
    assert await threads_of(store, 1) == {LOOP}
    assert await threads_of(store, IN_LOOP_MAX) == {LOOP}
    assert await threads_of(store, IN_LOOP_MAX + 1) == {THREAD}
    noting = Noting([])
    items: list[Item] = [{"PK": "b", "SK": str(n)} for n in range(IN_LOOP_MAX + 1)]
    await store.transact([Put(CONFIG, item, noting) for item in items])
    assert set(noting.threads) == {THREAD}


async def test_while_the_thread_commits_it_decides_what_comes(troubled: Writer) -> None:
    """The connection has one user until every job is answered."""
    TroubledDisk.gate.clear()
    TroubledDisk.reached.clear()
    first, second = Noting([]), Noting([])
    waiting = [troubled.submit(Batch.put, Put(CONFIG, {"PK": "a", "SK": "1"}, first))]
    await asyncio.to_thread(TroubledDisk.reached.wait, 30)
    waiting += [troubled.submit(Batch.put, Put(CONFIG, {"PK": "a", "SK": "2"}, second))]
    await asyncio.sleep(0)
    assert (first.threads, second.threads) == ([LOOP], [])
    TroubledDisk.gate.set()
    await asyncio.gather(*waiting)
    assert second.threads == [THREAD]


async def test_the_loop_never_waits_for_another_process(path: str, store: SqliteStore) -> None:
    """That is the thread's work; meanwhile the loop stays free."""
    writes, goes_on, noting = threading.Event(), threading.Event(), Noting([])

    def write() -> bool:
        """Write until the loop has gone on meanwhile; whether it has."""
        other = connect(path, busy_timeout_ms=0)
        other.execute("BEGIN IMMEDIATE")
        writes.set()
        has_gone_on = goes_on.wait(2)
        other.execute("ROLLBACK")
        other.close()
        return has_gone_on

    writing = asyncio.create_task(asyncio.to_thread(write))
    await asyncio.to_thread(writes.wait, 30)
    waiting = asyncio.create_task(store.put(Put(CONFIG, {"PK": "a", "SK": "1"}, noting)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    goes_on.set()
    assert await writing
    await waiting
    assert noting.threads == [THREAD]


async def test_what_fails_in_the_loop_is_done_by_the_thread(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = Batch.flush

    def fail_in_loop(batch: Batch) -> None:
        flush(batch)
        if threading.current_thread().name == LOOP:
            raise ZeroDivisionError

    monkeypatch.setattr(Batch, "flush", fail_in_loop)
    count = Update(CONFIG, Key("a", "n"), (Add("n", 1),))
    assert [(await store.update(count))["n"] for _ in range(3)] == [1, 2, 3]
    assert await store.get(CONFIG, Key("a", "n")) == {"PK": "a", "SK": "n", "n": 3}


class TroubledFile(apsw.VFSFile):
    """A file whose fsync can be made to fail, as a dying disk's does, or to take its time."""

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        TroubledDisk.reached.set()
        if not TroubledDisk.gate.wait(timeout=30) or TroubledDisk.failing:
            raise apsw.IOError("the disk is gone")
        super().xSync(flags)


class TroubledDisk(apsw.VFS):
    """The ordinary file system, through `TroubledFile`."""

    failing = False
    gate = threading.Event()
    reached = threading.Event()

    def __init__(self) -> None:
        super().__init__("troubled", "")

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return TroubledFile("", name, flags)


@pytest.fixture
async def troubled(path: str) -> AsyncIterator[Writer]:
    """A writer on a disk that can be told to misbehave."""
    disk = TroubledDisk()
    TroubledDisk.gate.set()
    connect(path, busy_timeout_ms=0).close()
    connection = apsw.Connection(path, vfs="troubled")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    with connection:
        create_schema(connection)
    writer = Writer(connection, clock=ManualClock(), meter=StoreMeter())
    yield writer
    TroubledDisk.gate.set()
    TroubledDisk.failing = False
    await writer.close()
    del disk


async def test_a_failed_commit_fails_its_whole_batch_and_the_writer_lives_on(
    troubled: Writer,
) -> None:
    """No caller gets a success; afterwards the store works as before."""
    await troubled.submit(Batch.put, put(0))
    TroubledDisk.failing = True
    outcomes = await asyncio.gather(
        *(troubled.submit(Batch.put, put(n)) for n in range(1, 6)), return_exceptions=True
    )
    TroubledDisk.failing = False
    assert all(isinstance(outcome, OutcomeUnknownError) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 5
    await asyncio.gather(*(troubled.submit(Batch.put, put(n)) for n in range(1, 6)))


async def test_nobody_is_answered_before_the_disk_has(troubled: Writer) -> None:
    """No caller gets an answer before the fsync returns; new writes wait their turn."""
    TroubledDisk.gate.clear()
    TroubledDisk.reached.clear()
    first = troubled.submit(Batch.put, put(1))
    await asyncio.to_thread(TroubledDisk.reached.wait, 30)
    second = troubled.submit(Batch.put, put(2))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    TroubledDisk.gate.set()
    await asyncio.gather(first, second)


async def test_a_full_disk_is_told_and_survived(store: SqliteStore) -> None:
    """Writes that do not fit are refused as not applied; smaller ones succeed."""
    pages = store._writer._connection.pragma("page_count")
    store._writer._connection.pragma("max_page_count", pages + 3)
    large: Item = {"PK": "a", "SK": "large", "v": "x" * 100_000}
    with pytest.raises(StoreUnavailableError):
        await store.put(Put(CONFIG, large))
    await store.put(put(1))
    store._writer._connection.pragma("max_page_count", pages + 1000)
    await store.put(Put(CONFIG, large))
    assert await store.get(CONFIG, Key("a", "large")) == large


FILE_LIMIT_SCRIPT = """
import asyncio, resource, sys
from pricekeeper.clock import SystemClock
from pricekeeper.errors import StoreError
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Key, Put, open_store
from pricekeeper.storage.tables import CONFIG

async def main():
    store = await open_store(SqliteLocation(sys.argv[1]), clock=SystemClock())
    await store.create_tables()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    failures = 0
    for n in range(8):
        try:
            await store.put(Put(CONFIG, {"PK": "a", "SK": str(n), "v": "x" * 90_000}))
        except StoreError as error:
            failures += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.put(Put(CONFIG, {"PK": "a", "SK": "last"}))
    there = [await store.get(CONFIG, Key("a", str(n))) is not None for n in range(8)]
    print(failures, sum(there), await store.get(CONFIG, Key("a", "last")) is not None)
    await store.close()

asyncio.run(main())
"""


def test_a_disk_that_really_refuses_to_grow(path: str) -> None:
    failures, there, last = run_program(FILE_LIMIT_SCRIPT, path).stdout.split()
    assert int(failures) > 0
    assert int(failures) + int(there) == 8
    assert last == "True"


async def test_a_cancelled_caller_does_not_kill_the_writer(store: SqliteStore) -> None:
    task = asyncio.create_task(store.put(put(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.put(put(2))
    assert await store.get(CONFIG, Key("a", "1")) is not None


async def test_reads_never_see_what_is_not_committed(path: str, store: SqliteStore) -> None:
    await store.put(put(1))
    other = connect(path, busy_timeout_ms=0)
    other.execute("BEGIN IMMEDIATE")
    other.execute('DELETE FROM "Config"')
    assert await store.get(CONFIG, Key("a", "1")) is not None
    other.execute("ROLLBACK")
    other.close()


async def test_missing_tables_say_what_to_do(tmp_path: Path, clock: ManualClock) -> None:
    store = await SqliteStore.open(str(tmp_path / "e.db"), clock=clock, meter=StoreMeter())
    for call in (store.get(CONFIG, Key("a", "1")), store.put(put(1))):
        with pytest.raises(StoreMisconfiguredError, match="tables create"):
            await call
    await store.close()


def test_every_table_of_ours_has_statements() -> None:
    connection = connect(":memory:", busy_timeout_ms=0)
    create_schema(connection)
    made = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert {table.name for table in ALL_TABLES} <= made
    connection.close()
