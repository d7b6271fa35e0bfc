"""The aggregator: finds everything, misses nothing, never goes back, and says how late it is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import (
    DAY_MS,
    PREMIUM,
    STANDARD,
    MeteringMaker,
    World,
    a_policy,
    a_usage,
    stored,
    today,
)
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError
from pricekeeper.metering import AggregationReport, Aggregator, org_day
from pricekeeper.metering.aggregator import INTERVAL_MS, days_open
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import day_expires_at_epoch, spent_put, total_key
from pricekeeper.storage import Item, Key, Put, Store, Table
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.tenants import Policy
from stores import ShiftedClock

HOUR_MS = 3_600_000


class ForgedStore(FaultyStore):
    """A store whose reads and puts of totals a test can get between."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.after_read: Callable[[], Awaitable[None]] | None = None
        self.before_put: Callable[[Put], Awaitable[None]] | None = None
        self.puts: list[Put] = []
        self.down = False

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        if self.down:
            raise StoreUnavailableError("injected")
        return await super().get(table, key, consistent=consistent)

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        assert consistent
        found = await super().batch_get(keys, consistent=consistent)
        if self.after_read is not None and any(table is DAILY_TOTAL for table, _ in keys):
            await self.after_read()
        return found

    async def put(self, operation: Put) -> None:
        self.puts.append(operation)
        if self.before_put is not None:
            await self.before_put(operation)
        await super().put(operation)


def account_puts(forged: ForgedStore) -> list[Put]:
    """The totals of accounts that were asked to be written."""
    return [put for put in forged.puts if str(put.item["SK"]).startswith("DAY#")]


async def test_a_total_is_the_sum_of_the_records(world: World) -> None:
    """Of all of them, to the pico-dollar."""
    for _ in range(30):
        recorded = await world.record(a_usage(input_tokens=1, output_tokens=0))
    report = await world.aggregate()
    day = recorded.receipt.org_day
    item = await world.store.get(*total_key(Account(world.policy.scope_key, PREMIUM, day)))

    assert (report.accounts, report.written, report.failed) == (1, 1, 0)
    assert item is not None
    assert item["PK"] == f"{world.policy.scope_key}#LABEL#premium"
    assert item["SK"] == f"DAY#{day}"
    assert item["cost_usd_picos"] == 30 * 3_000_000
    assert item["cost_usd_micros"] == 90
    assert (item["input_tokens"], item["output_tokens"], item["requests"]) == (30, 0, 30)
    assert item["expires_at_epoch"] > world.clock.now_epoch() + 90 * 86_400


async def test_an_equal_sum_writes_nothing(world: World) -> None:
    """A quiet scope costs reads and no write."""
    await world.record()
    forged = ForgedStore(world.store)
    aggregator = Aggregator(forged, world.clock)
    reports = [await aggregator.run_once() for _ in range(3)]
    assert [report.written for report in reports] == [1, 0, 0]
    assert [report.accounts for report in reports] == [1, 1, 1]
    assert len(account_puts(forged)) == 1


async def test_many_scopes_and_days_are_all_found(world: World) -> None:
    """More than one read can hold, in zones at both ends of the day."""
    zones = ("Pacific/Kiritimati", "UTC", "Etc/GMT+12")
    policies = [a_policy(timezone=zones[n % 3]) for n in range(12)]
    expected: list[tuple[Policy, str]] = []
    for policy in policies:
        for hours in (-23, 0):
            at_ms = world.clock.now_ms() + hours * HOUR_MS
            recorded = await world.metering.record(policy, a_usage(timestamp_ms=at_ms))
            expected.append((policy, recorded.receipt.org_day))
    report = await world.aggregate()
    assert report.written == len(expected) == 24
    for policy, day in expected:
        assert (await stored(world.store, policy, day)).requests == 1


async def test_a_late_event_for_yesterday_is_caught(world: World) -> None:
    """Long after the aggregator has seen yesterday's total."""
    aggregator = Aggregator(world.store, world.clock)
    usage = a_usage()
    day = (await world.record(usage)).receipt.org_day
    await aggregator.run_once()
    event_ms = world.clock.now_ms()
    world.clock.shift_ms += DAY_MS - 60_000
    await aggregator.run_once()
    await world.record(a_usage(timestamp_ms=event_ms))
    await aggregator.run_once()
    assert (await world.stored(day)).requests == 2


@pytest.mark.parametrize("idle_days", [1, 7, 60])
async def test_a_week_without_an_aggregator_strands_nothing(world: World, idle_days: int) -> None:
    """The next run finds the records since the last complete one."""
    await world.aggregate()
    day = (await world.record()).receipt.org_day
    world.clock.shift_ms += idle_days * DAY_MS
    report = await world.aggregate()
    assert report.written == 1
    assert (await world.stored(day)).requests == 1
    world.clock.shift_ms += 4 * DAY_MS
    assert (await world.aggregate()).accounts == 0


def test_the_days_that_may_change_are_those_of_every_zone() -> None:
    """Two before, for late events far west, and one after, for the far east."""
    noon_ms = ManualClock().now_ms() // DAY_MS * DAY_MS + DAY_MS // 2
    days = list(days_open(noon_ms, noon_ms))
    for zone in ("Etc/GMT+12", "UTC", "Pacific/Kiritimati"):
        for offset_ms in (-DAY_MS, 0, 5 * 60_000):
            assert org_day(zone, noon_ms + offset_ms) in days
    assert len(days) == 4


async def test_a_paused_aggregator_moves_no_total_back(world: World) -> None:
    """It read, slept while another ran, and wakes up to write what it had read."""
    day = (await world.record()).receipt.org_day
    paused = ForgedStore(world.store)

    async def sleep_while_others_work() -> None:
        paused.after_read = None
        for _ in range(5):
            await world.record()
        await world.aggregate()
        assert (await world.stored(day)).requests == 6

    paused.after_read = sleep_while_others_work
    report = await Aggregator(paused, world.clock).run_once()
    assert report.failed == 0
    assert (await world.stored(day)).requests == 6
    assert [put.item["requests"] for put in account_puts(paused)] == [1]


async def test_no_attribute_of_a_total_goes_back(world: World) -> None:
    """Nor the moment as of which it is, also if an aggregator's clock is behind."""
    day = (await world.record()).receipt.org_day
    await world.aggregate()
    before = await world.stored(day)
    await world.record()
    behind = ShiftedClock()
    behind.shift_ms = world.clock.shift_ms - 30_000
    report = await Aggregator(world.store, behind).run_once()
    after = await world.stored(day)
    assert report.failed == 0
    assert after.requests == 2
    assert after.as_of_ms >= before.as_of_ms


async def test_a_lost_reply_to_a_total_is_looked_into(world: World) -> None:
    """Written or not, the records are read again, and the total is right in the end."""
    day = (await world.record()).receipt.org_day
    forged = ForgedStore(world.store)
    for applied in (True, False):
        await world.record()

        async def lost(operation: Put, applied: bool = applied) -> None:
            forged.before_put = None
            if applied:
                await world.store.put(operation)
            raise OutcomeUnknownError("injected")

        forged.before_put = lost
        assert (await Aggregator(forged, world.clock).run_once()).failed == 0
    assert (await world.stored(day)).requests == 3


async def test_one_failing_scope_keeps_the_others_from_nothing(world: World) -> None:
    """It is reported, the run does not count as complete, and the next one catches up."""
    policies = [a_policy() for _ in range(3)]
    for policy in policies:
        day = (await world.metering.record(policy, a_usage())).receipt.org_day
    forged = ForgedStore(world.store)

    async def refuse(operation: Put) -> None:
        if operation.key == total_key(Account(policies[1].scope_key, PREMIUM, day))[1]:
            raise StoreUnavailableError("injected")

    forged.before_put = refuse
    aggregator = Aggregator(forged, world.clock)
    report = await aggregator.run_once()
    assert (report.accounts, report.written, report.failed) == (3, 2, 1)
    assert report.errors == ("StoreUnavailableError: injected",)

    for _ in range(2):  # it fails for days
        world.clock.shift_ms += 3 * DAY_MS
        assert (await aggregator.run_once()).failed == 1
    forged.before_put = None
    report = await aggregator.run_once()
    assert (report.written, report.failed) == (1, 0)
    for policy in policies:
        assert (await stored(world.store, policy, day)).requests == 1


async def test_a_run_says_how_late_it_is(world: World) -> None:
    """No change that it found can be older than the last complete run."""
    aggregator = Aggregator(world.store, world.clock)
    await world.record()
    first = await aggregator.run_once()
    assert (first.lag_ms, first.since_last_ms) == (None, None)

    world.clock.shift_ms += 60_000
    quiet = await aggregator.run_once()
    assert quiet.lag_ms == 0
    assert quiet.since_last_ms is not None
    assert 60_000 <= quiet.since_last_ms < 70_000

    await world.record()
    world.clock.shift_ms += 45_000
    late = await aggregator.run_once()
    assert late.lag_ms is not None
    assert 45_000 <= late.lag_ms < 60_000


async def test_totals_and_records_are_kept_for_the_retention(
    world: World, new_metering: MeteringMaker
) -> None:
    """90 days after the day has ended everywhere, then they are gone together."""
    recorded = await new_metering(world.store, world.clock).record(world.policy, a_usage())
    await world.aggregate()
    day = recorded.receipt.org_day
    world.clock.shift_ms += 90 * DAY_MS
    metering = new_metering(world.store, world.clock)
    for live in (True, False):
        totals = await metering.read_totals(world.policy.scope_key, [PREMIUM], day, live=live)
        assert totals[PREMIUM].requests == 1
    world.clock.shift_ms += 3 * DAY_MS
    metering = new_metering(world.store, world.clock)  # which shares no reading of a moment ago
    for live in (True, False):
        totals = await metering.read_totals(world.policy.scope_key, [PREMIUM], day, live=live)
        assert totals[PREMIUM].requests == 0


class Sleeper(ManualClock):
    """A clock whose sleeps are remembered and end when the test says so."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.slept_ms: list[int] = []
        self.asleep = asyncio.Event()

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept_ms.append(duration_ms)
        self.asleep.set()
        await super().sleep_ms(duration_ms)


async def test_it_runs_at_every_interval_with_jitter_and_survives_failures(world: World) -> None:
    """A failed run is reported, and the next interval tries again."""
    await world.record()
    sleeper = Sleeper(world.clock.now_ms())
    forged = ForgedStore(world.store)
    reports: asyncio.Queue[AggregationReport] = asyncio.Queue()
    aggregator = Aggregator(forged, sleeper, randomness=Random(1))
    running = asyncio.create_task(aggregator.run_forever(observe=reports.put_nowait))
    seen = []
    for failing in (False, True, False, False):
        await sleeper.asleep.wait()
        sleeper.asleep.clear()
        forged.down = failing
        sleeper.advance_ms(sleeper.slept_ms[-1])
        seen.append(await reports.get())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    # Once the tick of the record is closed, one of the last two writes what the total is made of.
    written = [report.written for report in seen]
    assert (written[:2], sum(written[2:])) == ([1, 0], 1)
    assert [report.failed for report in seen] == [0, 1, 0, 0]
    assert "injected" in seen[1].errors[0]
    assert seen[2].since_last_ms is not None
    assert seen[2].since_last_ms > INTERVAL_MS * 3 // 2  # the failed one did not count
    assert len(set(sleeper.slept_ms)) > 2
    assert all(0.9 * INTERVAL_MS <= slept <= 1.1 * INTERVAL_MS for slept in sleeper.slept_ms)


async def test_one_run_in_an_interval_is_enough_for_any_number_of_instances(world: World) -> None:
    """A run right after another one costs one read."""
    await world.record()
    first, second = Aggregator(world.store, world.clock), Aggregator(world.store, world.clock)
    within_ms = INTERVAL_MS // 2
    assert not (await first.run_once(unless_run_within_ms=within_ms)).skipped
    assert (await second.run_once(unless_run_within_ms=within_ms)).skipped
    world.clock.shift_ms += within_ms
    assert not (await second.run_once(unless_run_within_ms=within_ms)).skipped
    # A run asked for by hand is never left out, nor is one because of a clock that is ahead.
    assert not (await second.run_once()).skipped
    world.clock.shift_ms -= within_ms
    assert not (await second.run_once(unless_run_within_ms=within_ms)).skipped


async def test_accounts_are_found_page_by_page(world: World, new_metering: MeteringMaker) -> None:
    """A day can have more accounts than a page."""
    day = today(world.clock)
    expires = day_expires_at_epoch(day)
    account = Account("ORG#many", STANDARD, day)
    for first in range(0, 1100, 100):  # an engine on a busy machine has no time for all at once
        await asyncio.gather(
            *(
                world.store.put(spent_put(account._replace(label=f"l{n:04}"), expires))
                for n in range(first, first + 100)
            )
        )
    assert (
        len(await new_metering(world.store, world.clock).read_labels_used("ORG#many", day)) == 1100
    )
