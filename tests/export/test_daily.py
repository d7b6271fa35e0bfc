"""Every day is exported once it can no longer change, and unexported usage is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from export.conftest import Company, tree
from metering.conftest import DAY_MS
from pricekeeper.bootstrap import open_services
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.days import day_start_ms
from pricekeeper.export import DailyExports, ExportState
from pricekeeper.export.daily import INTERVAL_MS, LEASE_MS, kept_from_epoch
from pricekeeper.export.manifest import day_after, final_at_ms, last_final_day
from pricekeeper.http.app import make_app
from pricekeeper.metering import Aggregator
from pricekeeper.metering.items import day_expires_at_epoch
from pricekeeper.metering.journal_items import page_expires_at_epoch
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.settings import MEMORY, FolderLocation, Settings, SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.storage.kept_rows import EXPORT_STATE
from pricekeeper.storage.sqlite.moments import SWEEP_AFTER_MS
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.telemetry import StoreMeter
from pricekeeper.ticks import region_at
from stores import ShiftedClock, stored

HOUR_MS = 3_600_000


@pytest.fixture
def settings(folder: Path) -> Settings:
    return Settings(
        SqliteLocation(MEMORY),
        data_dir=folder.parent / "data",
        export_to=FolderLocation(str(folder)),
        retention_days=30,
    )


def days_of(company: Company) -> list[str]:
    return sorted({day for _, day, _ in company.reported})


def manifests(folder: Path) -> list[str]:
    return sorted(path.parent.name[4:] for path in folder.glob("day=*/manifest.json"))


def test_a_day_is_final_when_nothing_of_it_is_accepted_anywhere() -> None:
    """Two days after its end; in the last zone in which it ends, a record may be a day late."""
    day = "20260301"
    ends_last_ms = day_start_ms("UTC", day) + DAY_MS + 12 * HOUR_MS
    assert final_at_ms(day) == day_start_ms("UTC", day) + 3 * DAY_MS
    assert final_at_ms(day) >= ends_last_ms + LATE_MS_MAX + AHEAD_MS_MAX + HOUR_MS
    assert last_final_day(final_at_ms(day)) == day
    assert last_final_day(final_at_ms(day) - 1) == "20260228"


def test_what_is_kept_has_everything_of_the_next_day_in_it() -> None:
    """With the shortest retention: the first region and tick, in the first zone; and totals."""
    day = "20260301"
    following = day_after(day)
    first_ms = day_start_ms("UTC", following) - 14 * HOUR_MS - AHEAD_MS_MAX - LATE_MS_MAX - 65_536
    assert page_expires_at_epoch(region_at(first_ms), 30) >= kept_from_epoch(day)
    assert day_expires_at_epoch(following, 30) >= kept_from_epoch(day)
    assert kept_from_epoch(day) - day_start_ms("UTC", following) // 1000 == 30 * 86_400


async def test_days_are_exported_when_they_are_final(
    store: Store, clock: ShiftedClock, settings: Settings, folder: Path
) -> None:
    """The oldest first, from about the first usage on, each once, also those without usage."""
    company = Company(store, clock)
    await company.report(20)
    await company.aggregate()
    job, state = DailyExports(store, clock, settings), ExportState(store)
    first, *_, last = days_of(company)
    clock.shift_ms += final_at_ms(first) - clock.now_ms() - 1_000
    await company.aggregate()
    early = await job.run_once()  # records of a day may be posted before it and days after
    assert [one.records for one in early] == [0] * len(early)
    assert day_after(early[-1].day) == first
    clock.shift_ms += 5 * 60_000
    await company.aggregate()
    assert [one.day for one in await job.run_once()] == [first]
    assert await state.read_day() == first
    clock.shift_ms += 6 * DAY_MS
    await company.aggregate()
    done = [one.day for one in await job.run_once()]
    assert done[0] == day_after(first)
    assert done[-1] == last_final_day(clock.now_ms()) > last
    assert manifests(folder) == [*(one.day for one in early), first, *done]
    before = tree(folder)
    assert await job.run_once() == []
    assert tree(folder) == before
    total = sum(
        json.loads(before[f"day={day}/manifest.json"])["records"] for day in manifests(folder)
    )
    assert total == len(company.reported)


async def test_a_day_waits_for_the_aggregator(
    store: Store, clock: ShiftedClock, settings: Settings, folder: Path
) -> None:
    company = Company(store, clock)
    await company.report(5)
    await company.aggregate()
    clock.shift_ms += 5 * DAY_MS
    job = DailyExports(store, clock, settings)
    assert all(one.records == 0 for one in await job.run_once())
    await company.aggregate()
    assert sum(one.records for one in await job.run_once()) == 5


async def test_one_instance_exports_at_a_time(
    store: Store, clock: ShiftedClock, company: Company, settings: Settings
) -> None:
    """The holder of the lease; after its end another instance."""
    first, second = (DailyExports(store, clock, settings) for _ in range(2))
    assert await first._take_lease()
    assert await second.run_once() == []
    assert await first._take_lease()
    clock.shift_ms += LEASE_MS + 1
    assert await second.run_once()


async def test_a_failure_is_told_and_the_next_interval_goes_on(
    store: Store, company: Company, settings: Settings, folder: Path, clock: ShiftedClock
) -> None:
    machine = ManualClock(clock.now_ms())
    (folder.parent / "file").write_text("")
    broken = replace(settings, export_to=FolderLocation(str(folder.parent / "file")))
    job = DailyExports(store, machine, broken)
    with capture_logs() as logs:
        running = asyncio.create_task(job.run_forever())
        while not machine.sleepers:  # noqa: ASYNC110 - turns of the loop, no time
            await asyncio.sleep(0)
        assert [line["event"] for line in logs] == ["export_failed"]
        job._settings = settings
        machine.advance_ms(INTERVAL_MS)
        while not machine.sleepers:  # noqa: ASYNC110
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {*days_of(company)} <= {*manifests(folder)}
    assert "exported" in {line["event"] for line in logs}


async def test_the_service_runs_the_job(settings: Settings, folder: Path) -> None:
    """While it serves with a destination; without one it keeps nothing."""
    stored = replace(
        settings,
        store=SqliteLocation(str(folder.parent / "store.db")),
        exports_before_delete=True,
    )
    clock = SystemClock()
    for given, kept in ((stored, True), (replace(stored, export_to=None), False)):
        async with make_app(given)._lifespan():
            running = {task.get_name() for task in asyncio.all_tasks()}
            assert ("pricekeeper-export" in running) is kept
            store = await open_store(given.store, clock=clock)
            state = await store.get(*EXPORT_STATE)
            for _ in range(10_000 if kept and not state else 0):
                await asyncio.sleep(0)
                state = await store.get(*EXPORT_STATE)
                if state:
                    break
            assert ("kept_from_epoch" in (state or {})) is kept
            await store.close()


class Keeper:
    """A SQLite file with usage, and a clock to let months pass."""

    def __init__(self, store: SqliteStore, clock: ManualClock, settings: Settings) -> None:
        self.store, self.clock, self.settings = store, clock, settings
        self.job = DailyExports(store, clock, settings)
        self.company = Company(store, clock, settings.retention_days)

    async def let_days_pass(self, days: int) -> None:
        """Aggregate and sweep on each, as a service does."""
        for _ in range(days):
            self.clock.advance_ms(DAY_MS)
            await Aggregator(self.store, self.clock, retention_days=30).run_once()
            await self.job.settle_keeping()
            await self.store.sweep()

    def rows(self) -> int:
        """Of both tables, expired or not."""
        connection = self.store._writer._connection
        tables = ("UsageAggSharded", "DailyTotal")
        sql = "SELECT count(*) FROM \"{}\" WHERE pk LIKE 'ORG#%'"
        return sum(int(connection.execute(sql.format(table)).get) for table in tables)


@pytest.fixture
async def keeper(settings: Settings, folder: Path) -> AsyncIterator[Keeper]:
    clock = ManualClock()
    path = str(folder.parent / "store.db")
    store = await SqliteStore.open(path, clock=clock, meter=StoreMeter())
    store._sweeper.cancel()
    await store.create_tables()
    yield Keeper(store, clock, replace(settings, exports_before_delete=True))
    await store.close()


async def test_nothing_is_deleted_that_was_not_exported(keeper: Keeper, folder: Path) -> None:
    """For months, if need be; then it can be exported, and is deleted."""
    await keeper.company.report(30)
    await keeper.let_days_pass(1)
    whole = keeper.rows()
    await keeper.let_days_pass(2 * 30 + 40)
    assert keeper.rows() == whole
    exported = await keeper.job.run_once()
    assert sum(one.records for one in exported) == len(keeper.company.reported)
    assert all(one.totals_equal_records for one in exported)
    assert keeper.rows() == whole
    await keeper.let_days_pass(1)
    assert keeper.rows() == 0


async def test_a_day_that_was_exported_does_not_wait_for_the_next(
    keeper: Keeper, folder: Path
) -> None:
    """What is kept begins with the first day that was not exported."""
    await keeper.company.report(15)
    await keeper.let_days_pass(8)
    await keeper.job.run_once()
    before = keeper.rows()
    await keeper.company.report(15)
    await keeper.let_days_pass(1)
    both = keeper.rows()
    await keeper.let_days_pass(30 + 10 + SWEEP_AFTER_MS // DAY_MS + 60)
    assert keeper.rows() == both - before
    second = await keeper.job.run_once()
    assert sum(one.records for one in second) == 15
    await keeper.let_days_pass(1)
    assert keeper.rows() == 0


async def test_without_the_setting_expired_usage_is_deleted(keeper: Keeper) -> None:
    await keeper.company.report(15)
    await keeper.let_days_pass(60)
    assert keeper.rows()
    keeper.job._settings = replace(keeper.settings, exports_before_delete=False)
    await keeper.let_days_pass(2)
    assert keeper.rows() == 0


async def test_the_state_never_goes_back(store: Store) -> None:
    """In every order of the instances; the kept usage moves forward with it."""
    state = ExportState(store)
    assert await state.read_day() is None
    await state.keep()
    item = await stored(store, *EXPORT_STATE)
    assert item["kept_from_epoch"] == 0
    for day, expected in (("20260105", "20260105"), ("20260104", "20260105"), ("20260106",) * 2):
        await state.advance(day)
        assert await state.read_day() == expected
        item = await stored(store, *EXPORT_STATE)
        assert item["kept_from_epoch"] == kept_from_epoch(expected)
    await state.release()
    await state.advance("20260107")
    assert await store.get(*EXPORT_STATE) == {"PK": "EXPORT", "SK": "THROUGH", "day": "20260107"}


async def test_commands_leave_what_is_kept_alone(settings: Settings, folder: Path) -> None:
    """They open the services as well, without the service's settings."""
    kept = replace(settings, store=SqliteLocation(str(folder.parent / "store.db")))
    async with open_services(kept) as services:
        await ExportState(services.store).keep()
    async with open_services(replace(kept, export_to=None)) as services:
        item = await stored(services.store, *EXPORT_STATE)
    assert "kept_from_epoch" in item
