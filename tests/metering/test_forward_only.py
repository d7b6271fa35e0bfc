"""What only moves forward, and the moments at which something just counts or just does not."""

import asyncio

import pytest
from msgspec.structs import replace

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import CATALOGUE, DAY_MS, PREMIUM, MeteringMaker, a_usage, new_org_id
from metering.other_program import counter_update, marker_put
from metering.test_aggregator import ForgedStore, Sleeper, stored
from pricekeeper.days import date_of, day_start_ms
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.metering import (
    AggregationReport,
    Aggregator,
    Metering,
    next_midnight_ms,
    org_day,
)
from pricekeeper.metering.aggregator import closable_tick
from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters, Total
from pricekeeper.metering.items import (
    CHECKPOINT,
    checkpoint_from,
    checkpoint_update,
    day_expires_at_epoch,
    total_put,
)
from pricekeeper.metering.running import RunningTotals
from pricekeeper.pricing.items import StatedPrices, price_item
from pricekeeper.pricing.prices import PriceTable, RateCard
from pricekeeper.storage import Item, Page, Put, Query, Store, Update
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy
from stores import ShiftedClock

ACCOUNT = Account("ORG#1", PREMIUM, "20260123")


def alike(number: int) -> Counters:
    """Every counter is that number."""
    return Counters.of_amounts([number] * len(COUNTER_NAMES))


@pytest.mark.parametrize("name", COUNTER_NAMES)
def test_one_smaller_number_is_enough_to_refuse_a_total(name: str) -> None:
    """However much larger the others are, and though it was summed later."""
    there = total_put(ACCOUNT, Total.of(alike(5), 1_000), 0).item
    for number, goes in ((4, False), (5, True)):
        summed = replace(alike(9), **{name: number})
        put = total_put(ACCOUNT, Total.of(summed, 2_000), 0)
        assert put.condition is not None
        assert put.condition.holds(there) is goes


async def test_a_run_that_began_earlier_does_not_move_the_checkpoint_back(
    clock: ShiftedClock, store: Store
) -> None:
    """It was complete, but another one that began later was so before it."""
    await Aggregator(store, clock).run_once()
    before_ms = checkpoint_from(await store.get(*CHECKPOINT))
    behind = ShiftedClock()
    behind.shift_ms = clock.shift_ms - 30_000
    report = await Aggregator(store, behind).run_once()
    assert report.failed == 0
    assert checkpoint_from(await store.get(*CHECKPOINT)) == before_ms


async def test_a_run_is_complete_up_to_when_it_began(
    metering: Metering, policy: Policy, clock: ShiftedClock, store: Store
) -> None:
    """What was acknowledged while it went on may not be in its totals."""
    await metering.record(policy, a_usage())
    slow = ForgedStore(store)

    async def take_a_minute() -> None:
        clock.shift_ms += 60_000

    slow.after_read = take_a_minute
    report = await Aggregator(slow, clock).run_once()
    assert report.written == 1
    assert checkpoint_from(await store.get(*CHECKPOINT)) == report.began_at_ms


async def test_who_runs_at_every_interval_leaves_out_what_another_has_just_done(
    clock: ShiftedClock, store: Store
) -> None:
    """So any number of instances cost little more than one."""
    sleeper = Sleeper(clock.now_ms())
    reports: asyncio.Queue[AggregationReport] = asyncio.Queue()
    running = asyncio.create_task(
        Aggregator(store, sleeper).run_forever(observe=reports.put_nowait)
    )
    await sleeper.asleep.wait()
    sleeper.advance_ms(sleeper.slept_ms[0] - 1)
    assert not (await Aggregator(store, sleeper).run_once()).skipped
    sleeper.advance_ms(1)
    report = await reports.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (report.skipped, report.since_last_ms) == (True, 1)


class ForgetfulStore(FaultyStore):
    """A store that moves the checkpoint, or does not, and whose replies to that are all lost."""

    def __init__(self, store: Store, *, applied: bool) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._applied = applied

    async def update(self, operation: Update) -> Item:
        if operation.key != CHECKPOINT[1]:
            return await super().update(operation)
        if self._applied:
            await super().update(operation)
        raise OutcomeUnknownError("injected")


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_to_the_checkpoint_spoils_no_run(
    metering: Metering, policy: Policy, clock: ShiftedClock, store: Store, applied: bool
) -> None:
    """The totals are written; at worst the next run looks at the same days again."""
    await metering.record(policy, a_usage())
    report = await Aggregator(ForgetfulStore(store, applied=applied), clock).run_once()
    assert (report.written, report.failed) == (1, 0)
    known_ms = checkpoint_from(await store.get(*CHECKPOINT))
    assert known_ms == (report.began_at_ms if applied else None)


async def test_a_checkpoint_far_ahead_hides_no_day(
    metering: Metering, policy: Policy, clock: ShiftedClock, store: Store
) -> None:
    """A clock that was set wrong for a while, and ran complete, strands nothing afterwards."""
    await metering.record(policy, a_usage())
    ahead = ShiftedClock()
    ahead.shift_ms = clock.shift_ms + 30 * DAY_MS
    await Aggregator(store, ahead).run_once()
    day = (await metering.record(policy, a_usage())).receipt.org_day  # in a tick that was closed
    report = await Aggregator(store, clock).run_once()
    assert report.failed == 0
    assert (await stored(store, policy, day)).requests == 2
    assert checkpoint_from(await store.get(*CHECKPOINT)) == report.began_at_ms
    # From then on it is as ever.
    clock.shift_ms += 60_000
    await metering.record(policy, a_usage())
    await Aggregator(store, clock).run_once()
    assert (await stored(store, policy, day)).requests == 3


async def test_a_total_that_was_read_again_is_as_fresh_as_that_read(
    metering: Metering, policy: Policy, clock: ShiftedClock, store: Store
) -> None:
    """Not only as the first one, whose total could not be written."""
    day = (await metering.record(policy, a_usage())).receipt.org_day
    forged = ForgedStore(store)

    async def lose(_: Put) -> None:
        forged.before_put = None
        clock.shift_ms += 60_000
        raise OutcomeUnknownError("injected")

    forged.before_put = lose
    report = await Aggregator(forged, clock).run_once()
    total = await stored(store, policy, day)
    assert total.requests == 1
    assert total.as_of_ms >= report.began_at_ms + 60_000


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "UTC", "Pacific/Kiritimati"])
def test_a_day_is_kept_in_full_from_when_it_ended_in_its_own_zone(zone: str) -> None:
    """Also where it ends last, half a day after it did in Greenwich."""
    ended_ms = next_midnight_ms(zone, day_start_ms(zone, ACCOUNT.day))
    assert day_expires_at_epoch(ACCOUNT.day, 90) * 1000 >= ended_ms + 90 * DAY_MS


def test_what_was_counted_at_the_very_moment_of_a_total_is_in_it() -> None:
    """A total holds everything up to and including its moment, so that is not added again."""
    running = RunningTotals()
    one = Counters(requests=1)
    for at_ms in (6_000, 7_000, 8_000):
        running.count(ACCOUNT, one, at_ms)
    running.rebase(ACCOUNT, Total.of(Counters(requests=2), 7_000), 0)
    assert running.total(ACCOUNT) == Total.of(Counters(requests=3), 7_000)


async def test_the_price_is_that_of_the_day_of_the_event(
    new_metering: MeteringMaker, policy: Policy, clock: ShiftedClock, store: Store
) -> None:
    """Yesterday's usage has yesterday's price, though it is reported today."""
    metering = new_metering(store, clock)
    event_ms = clock.now_ms() - DAY_MS + 60_000
    late = a_usage(timestamp_ms=event_ms, input_tokens=10, output_tokens=0)
    stated = StatedPrices(
        table=PriceTable(default=RateCard(input=7, output=11)),
        source="yesterday",
        fetched_at_epoch=clock.now_epoch(),
    )
    yesterday = (await metering.record(policy, a_usage(timestamp_ms=event_ms))).receipt.org_day
    item = price_item(CATALOGUE.model(PREMIUM), date_of(yesterday), stated)
    await store.put(Put(PRICING_CACHE, item))

    metering = new_metering(store, clock)  # has looked up nothing yet
    recorded = await metering.record(policy, late)
    today = await metering.record(policy, a_usage(input_tokens=10, output_tokens=0))

    assert (recorded.receipt.cost_usd_picos, recorded.receipt.org_day) == (70, yesterday)
    assert recorded.receipt.pricing_source == "pricing-cache:yesterday"
    assert today.receipt.cost_usd_picos == 10 * 3_000_000


async def test_an_organisations_total_is_as_old_as_the_oldest_part_of_it(
    metering: Metering, clock: ShiftedClock, store: Store
) -> None:
    """It is complete only up to where all of its apps are."""
    org_id, day, now_ms = new_org_id(), org_day("UTC", clock.now_ms()), clock.now_ms()
    expires = day_expires_at_epoch(day)
    for app, age_ms in (("one", 5_000), ("three", 9_000), ("two", 7_000)):
        account = Account(f"ORG#{org_id}#APP#{app}", PREMIUM, day)
        await store.put(marker_put(account, 8, expires))
        await store.put(total_put(account, Total.of(alike(1), now_ms - age_ms), expires))
    # Of the organisation's own there is nothing, as of never: nobody has aggregated yet.
    found = await metering.read_org_totals(org_id, [], day)
    assert found.total == {PREMIUM: Total.of(alike(3), now_ms - 9_000)}


async def test_accounts_are_read_together_up_to_what_one_request_holds(
    clock: ShiftedClock, store: Store, meter: StoreMeter
) -> None:
    """100 keys are one read; with one more, the second account is read by itself."""
    for reads, counts in ((1, (49, 49)), (2, (49, 50))):
        clock.shift_ms += 7 * DAY_MS  # no day of the round before is looked at any more
        day = org_day("UTC", clock.now_ms())
        expires = day_expires_at_epoch(day)
        await store.update(checkpoint_update(clock.now_ms(), closable_tick(clock.now_ms())))
        for number, count in enumerate(counts):
            account = Account(f"ORG#{number}", PREMIUM, day)
            await store.put(marker_put(account, count, expires))
        meter.clear()
        report = await Aggregator(store, clock).run_once()
        assert report.accounts == 2
        assert meter.calls["batch_get"] == reads


class SinglePages(FaultyStore):
    """A store whose pages have one item each."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        return await super().query(replace(query, limit=1), consistent=consistent)


async def test_two_shard_counts_of_an_account_may_be_on_different_pages(
    new_metering: MeteringMaker, clock: ShiftedClock, store: Store
) -> None:
    """The larger one counts, in whatever order they come."""
    account = Account(f"ORG#{new_org_id()}", PREMIUM, org_day("UTC", clock.now_ms()))
    expires = day_expires_at_epoch(account.day)
    for count in (8, 16, 64):  # by their sort keys 16 comes first, and 8 last
        await store.put(marker_put(account, count, expires))
    for shard in (0, 63):
        one = Counters(requests=1)
        await store.update(counter_update(account, shard, one, clock.now_epoch(), expires))
    pages = SinglePages(store)
    await Aggregator(pages, clock).run_once()
    for live in (True, False):
        totals = await new_metering(pages, clock).read_totals(
            account.scope_key, [PREMIUM], account.day, live=live
        )
        assert totals[PREMIUM].requests == 2
