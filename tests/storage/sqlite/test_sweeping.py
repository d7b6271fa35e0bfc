"""Sweeping deletes nothing that a right clock would still show, at any time of the clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import apsw
import msgspec
import pytest

from pricekeeper.clock import LEAP_MS_MAX, STEADY_MS, Doubt, ManualClock, TrustedClock, doubt_of
from pricekeeper.errors import TransactionCancelledError
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import (
    ITEM_ABSENT,
    Check,
    Item,
    Key,
    Put,
    Query,
    Table,
    Value,
    forget_moments_ahead,
    read_leap_ms,
)
from pricekeeper.storage.opening import open_store
from pricekeeper.storage.sqlite.batch import Batch
from pricekeeper.storage.sqlite.moments import (
    SWEEP_AFTER_MS,
    SWEEP_PACE,
    Moments,
    load_moments,
    sweep_until_ms,
)
from pricekeeper.storage.sqlite.store import SWEEP_ROWS_MAX, SqliteStore
from pricekeeper.storage.tables import CONFIG, DAILY_TOTAL, REQUEST_DEDUP, USAGE_AGG_SHARDED
from pricekeeper.telemetry import StoreMeter

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_768_000_000_000

Opener = Callable[[], Awaitable[tuple[SqliteStore, TrustedClock]]]


@pytest.fixture
def machine() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
async def start(machine: ManualClock, path: str) -> AsyncIterator[Opener]:
    """Opens the store as a service does when it starts."""
    async with AsyncExitStack() as closing:

        async def opened() -> tuple[SqliteStore, TrustedClock]:
            clock = TrustedClock(machine)
            store = await SqliteStore.open(path, clock=clock, meter=StoreMeter())
            closing.push_async_callback(store.close)
            store._sweeper.cancel()  # the test sweeps when it wants to
            await store.create_tables()
            return store, clock

        yield opened


def put(name: str, expires_at_ms: int) -> Put:
    return Put(REQUEST_DEDUP, {"PK": name, "expires_at_epoch": expires_at_ms // 1000})


def kept(path: str) -> set[str]:
    """What is in the file, expired or not."""
    connection = apsw.Connection(path)
    names = {str(pk) for (pk,) in connection.execute('SELECT pk FROM "RequestDedup"')}
    connection.close()
    return names


@pytest.mark.parametrize(
    ("swept_until_ms", "elapsed_ms", "expected_ms"),
    [
        (None, 0, START_MS - SWEEP_AFTER_MS),
        (START_MS - SWEEP_AFTER_MS, 60_000, START_MS - SWEEP_AFTER_MS),
        (START_MS - 30 * DAY_MS, HOUR_MS, START_MS - 30 * DAY_MS + SWEEP_PACE * HOUR_MS),
        (START_MS + DAY_MS, HOUR_MS, START_MS - SWEEP_AFTER_MS),
    ],
)
def test_how_far_a_sweep_may_go(
    swept_until_ms: int | None, elapsed_ms: int, expected_ms: int
) -> None:
    """A day behind now, and no faster than its pace from where the last one ended."""
    assert sweep_until_ms(START_MS, swept_until_ms, elapsed_ms) == expected_ms


async def test_nothing_is_swept_while_the_time_is_in_doubt(
    start: Opener, machine: ManualClock, path: str
) -> None:
    """Neither at the leap nor for as long as it lasts; the doubt is noted for others to see."""
    store, clock = await start()
    await store.put(put("old", START_MS - SWEEP_AFTER_MS + 1_000))
    await store.put(put("young", START_MS + HOUR_MS))
    assert await store.sweep() == 0
    machine.jump_ms(50 * HOUR_MS)
    machine.advance_ms(70_000)
    assert await store.sweep() == 0
    assert kept(path) == {"old", "young"}
    assert await store.get(REQUEST_DEDUP, Key("young")) is not None
    assert load_moments(path) == Moments(START_MS, 50 * HOUR_MS, START_MS - SWEEP_AFTER_MS)
    assert read_leap_ms(SqliteLocation(path)) == 50 * HOUR_MS
    machine.jump_ms(-50 * HOUR_MS)
    assert await store.sweep() == 1
    assert doubt_of(clock) is None
    assert kept(path) == {"young"}
    assert read_leap_ms(SqliteLocation(path)) == 0


@pytest.mark.parametrize("how", ["at a start", "after a leap that lasted"])
async def test_a_clock_that_is_believed_and_wrong_has_a_day_before_it_does_harm(
    start: Opener, machine: ManualClock, path: str, how: str
) -> None:
    """However far it is ahead: unexpired rows stay for another day."""
    store, _ = await start()
    await store.put(put("due", START_MS - SWEEP_AFTER_MS))
    await store.put(put("alive", START_MS + DAY_MS))
    assert await store.sweep() == 1
    machine.jump_ms(1_000 * DAY_MS)
    if how == "at a start":
        await store.close()
        store, clock = await start()
    else:
        clock = TrustedClock(machine)
        await store.sweep()
        machine.advance_ms(STEADY_MS)
    assert doubt_of(clock) is None
    for _ in range(23):
        machine.advance_ms(HOUR_MS)
        await store.sweep()
    assert kept(path) == {"alive"}
    machine.jump_ms(-1_000 * DAY_MS)  # the clock is set right, a day after it went wrong
    await store.close()
    store, clock = await start()
    assert doubt_of(clock) is Doubt.BEHIND
    machine.advance_ms(STEADY_MS)
    assert doubt_of(clock) is None
    await store.sweep()
    assert kept(path) == {"alive"}


async def test_after_a_long_stop_the_sweep_catches_up(start: Opener, machine: ManualClock) -> None:
    store, _ = await start()
    await store.put(put("first", START_MS + DAY_MS))
    await store.put(put("second", START_MS + 8 * DAY_MS))
    await store.sweep()
    await store.close()
    machine.advance_ms(10 * DAY_MS)
    passed, swept = 0, list[int]()
    while len(swept) < 2:
        store, _ = await start()
        for _ in range(3):
            machine.advance_ms(6 * HOUR_MS)
            passed += 6
            if await store.sweep():
                swept.append(passed)
        await store.close()
        assert passed < 20 * 24
    assert swept == [2 * 24 // SWEEP_PACE, 9 * 24 // SWEEP_PACE]


async def test_a_start_behind_the_newest_moment_is_in_doubt(
    start: Opener, machine: ManualClock
) -> None:
    """A bound is left for clocks that differ; a long stop is no reason for doubt."""
    store, _ = await start()
    await store.sweep()
    await store.close()
    for set_back_ms, doubt in ((LEAP_MS_MAX, None), (LEAP_MS_MAX + 1, Doubt.BEHIND)):
        machine.jump_ms(-set_back_ms)
        store, clock = await start()
        assert doubt_of(clock) is doubt
        await store.close()
        machine.jump_ms(set_back_ms)
    machine.jump_ms(300 * DAY_MS)
    _, clock = await start()
    assert doubt_of(clock) is None


async def test_a_time_at_which_deleted_rows_would_live_is_not_believed(
    start: Opener, machine: ManualClock
) -> None:
    """Also after a start, and however long it lasts: a revocation may have been among them."""
    store, clock = await start()
    await store.put(put("deleted", START_MS))
    machine.advance_ms(SWEEP_AFTER_MS)
    assert await store.sweep() == 1
    machine.jump_ms(-2 * DAY_MS)
    machine.advance_ms(STEADY_MS)
    assert doubt_of(clock) is Doubt.LEAP
    await store.close()
    _, clock = await start()
    assert doubt_of(clock) is Doubt.BEHIND
    machine.advance_ms(STEADY_MS)
    assert doubt_of(clock) is Doubt.BEHIND
    machine.advance_ms(DAY_MS - 2 * STEADY_MS)
    assert doubt_of(clock) is None


async def test_an_operator_can_say_that_the_clock_is_right(
    start: Opener, machine: ManualClock, path: str
) -> None:
    machine.jump_ms(300 * DAY_MS)
    store, _ = await start()
    await store.sweep()
    await store.close()
    machine.jump_ms(-300 * DAY_MS)
    location, now_ms = SqliteLocation(path), machine.now_ms()
    assert forget_moments_ahead(location, now_ms=now_ms, dry_run=True)
    store, clock = await start()
    assert doubt_of(clock) is Doubt.BEHIND
    await store.close()
    assert forget_moments_ahead(location, now_ms=now_ms, dry_run=False)
    assert not forget_moments_ahead(location, now_ms=now_ms, dry_run=False)
    _, clock = await start()
    assert doubt_of(clock) is None


@pytest.mark.parametrize("damage", ["no table", "no row", "strange row"])
async def test_a_file_that_remembers_nothing_can_be_used(
    start: Opener, path: str, damage: str
) -> None:
    store, _ = await start()
    await store.sweep()
    await store.close()
    connection = apsw.Connection(path)
    connection.execute(
        {
            "no table": 'DROP TABLE "ClockMoments"',
            "no row": 'DELETE FROM "ClockMoments"',
            "strange row": "UPDATE \"ClockMoments\" SET item = x'93'",
        }[damage]
    )
    connection.close()
    assert load_moments(path) is None
    store, clock = await start()
    assert doubt_of(clock) is None
    await store.sweep()
    assert load_moments(path) == Moments(START_MS, swept_until_ms=START_MS - SWEEP_AFTER_MS)


async def test_a_row_of_a_newer_version_is_read(start: Opener, path: str) -> None:
    store, _ = await start()
    await store.sweep()
    await store.close()
    item = msgspec.msgpack.encode({"newest_ms": 5, "weather": "fine"})
    connection = apsw.Connection(path)
    connection.execute('UPDATE "ClockMoments" SET item = ?', (item,))
    connection.close()
    assert load_moments(path) == Moments(5)


async def test_a_clock_that_judges_nothing_sweeps_as_well(path: str) -> None:
    machine = ManualClock(START_MS)
    store = await open_store(SqliteLocation(path), clock=machine)
    await store.create_tables()
    assert isinstance(store, SqliteStore)
    await store.put(put("due", START_MS - SWEEP_AFTER_MS))
    assert await store.sweep() == 1
    await store.close()


def kept_put(kept_from_ms: int | None) -> Put:
    """Say from which expiry on rows of usage are kept."""
    state: Item = {"PK": "EXPORT", "SK": "THROUGH", "day": "20260101"}
    if kept_from_ms is not None:
        state["kept_from_epoch"] = kept_from_ms // 1000
    return Put(CONFIG, state)


def usage(table: Table, name: str, expires_at_ms: int) -> Put:
    return Put(table, {"PK": name, "SK": "1", "expires_at_epoch": expires_at_ms // 1000})


async def seen(store: SqliteStore, table: Table, names: str) -> str:
    """Which of these rows are there, for a read, a query and a condition alike."""
    found = ""
    for name in names:
        there = await store.get(table, Key(name, "1")) is not None
        assert there is bool((await store.query(Query(table, name))).items)
        absent = Check(table, Key(name, "1"), ITEM_ABSENT)
        try:
            await store.transact([absent])
        except TransactionCancelledError:
            assert there
        else:
            assert not there
        found += name if there else ""
    return found


@pytest.mark.parametrize("table", [USAGE_AGG_SHARDED, DAILY_TOTAL], ids=lambda one: one.name)
async def test_usage_that_is_kept_is_shown_and_not_deleted(
    table: Table, start: Opener, machine: ManualClock
) -> None:
    """From one expiry on, for every process that opens the file, until the export releases them."""
    store, _ = await start()
    for name, hours in (("a", 1), ("b", 2), ("c", 3)):
        await store.put(usage(table, name, START_MS + hours * HOUR_MS))
    await store.put(put("receipt", START_MS + 3 * HOUR_MS))
    await store.put(kept_put(START_MS + 2 * HOUR_MS))
    machine.advance_ms(2 * DAY_MS)
    await store.sweep()
    assert await seen(store, table, "abc") == "bc"
    another, _ = await start()
    assert await seen(another, table, "abc") == "bc"
    machine.advance_ms(DAY_MS)
    assert await another.sweep() == 0
    assert await another.get(REQUEST_DEDUP, Key("receipt")) is None

    await store.put(kept_put(START_MS + 3 * HOUR_MS))
    machine.advance_ms(60_000)
    assert await another.sweep() == 1
    assert await seen(another, table, "abc") == "c"
    await store.put(kept_put(None))
    machine.advance_ms(60_000)
    assert await another.sweep() == 1
    assert await seen(another, table, "abc") == ""


@pytest.mark.parametrize("strange", ["soon", b"1", True])
async def test_a_strange_word_about_what_is_kept_keeps_everything(
    strange: Value, start: Opener, machine: ManualClock
) -> None:
    """Deleted rows can't be restored."""
    store, _ = await start()
    await store.put(usage(DAILY_TOTAL, "a", START_MS))
    await store.put(Put(CONFIG, {"PK": "EXPORT", "SK": "THROUGH", "kept_from_epoch": strange}))
    machine.advance_ms(2 * DAY_MS)
    assert await store.sweep() == 0
    assert await seen(store, DAILY_TOTAL, "a") == "a"


async def test_a_step_is_bounded_and_others_slip_between(
    start: Opener, machine: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await start()
    rows = 3 * SWEEP_ROWS_MAX + 1
    await asyncio.gather(
        *(store.put(usage(USAGE_AGG_SHARDED, f"{n}", START_MS)) for n in range(rows))
    )
    machine.advance_ms(2 * DAY_MS)
    steps: list[int] = []
    written: list[int] = []
    sweep, begun, loop = Batch.sweep, asyncio.Event(), asyncio.get_running_loop()

    def counted(batch: Batch, request: tuple[str, int, int]) -> int:
        steps.append(sweep(batch, request))
        if steps[-1]:
            loop.call_soon_threadsafe(begun.set)
        return steps[-1]

    async def write_meanwhile() -> None:
        await begun.wait()
        await store.put(put("meanwhile", START_MS + 9 * DAY_MS))
        written.append(sum(steps))

    monkeypatch.setattr(Batch, "sweep", counted)
    commits = store._meter.commit_sizes.count
    writing = asyncio.create_task(write_meanwhile())
    assert await store.sweep() == rows
    await writing
    assert max(steps) == SWEEP_ROWS_MAX
    assert [step for step in steps if step] == [SWEEP_ROWS_MAX] * 3 + [1]
    assert store._meter.commit_sizes.count - commits >= len(steps)
    assert written[0] <= 3 * SWEEP_ROWS_MAX
