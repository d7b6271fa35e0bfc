"""What only moves forward, and the moments at which something just counts or just does not."""

import asyncio

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import CATALOGUE, DAY_MS, PREMIUM, MeteringMaker, World, a_usage, new_org_id
from metering.test_aggregator import ForgedStore, Sleeper
from pricekeeper.days import date_of, day_start_ms
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.metering import AggregationReport, Aggregator, next_midnight_ms, org_day
from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters, Total
from pricekeeper.metering.items import CHECKPOINT, checkpoint_from, day_expires_at_epoch
from pricekeeper.pricing.items import StatedPrices, price_item
from pricekeeper.pricing.prices import PriceTable, RateCard
from pricekeeper.storage import Item, Put, Store, Update
from pricekeeper.storage.tables import PRICING_CACHE
from stores import ShiftedClock
from totals import listed_total_puts

ACCOUNT = Account("ORG#1", PREMIUM, "20260123")


def alike(number: int) -> Counters:
    """Every counter is that number."""
    return Counters.of_amounts([number] * len(COUNTER_NAMES))


async def test_a_run_that_began_earlier_does_not_move_the_checkpoint_back(world: World) -> None:
    """It was complete, but another one that began later was so before it."""
    await world.aggregate()
    before_ms = checkpoint_from(await world.store.get(*CHECKPOINT))
    behind = ShiftedClock()
    behind.shift_ms = world.clock.shift_ms - 30_000
    report = await Aggregator(world.store, behind).run_once()
    assert report.failed == 0
    assert checkpoint_from(await world.store.get(*CHECKPOINT)) == before_ms


async def test_a_run_is_complete_up_to_when_it_began(world: World) -> None:
    """Its totals may lack records that were acknowledged during the run."""
    await world.record()
    slow = ForgedStore(world.store)

    async def take_a_minute() -> None:
        world.clock.shift_ms += 60_000

    slow.after_read = take_a_minute
    report = await Aggregator(slow, world.clock).run_once()
    assert report.written == 1
    assert checkpoint_from(await world.store.get(*CHECKPOINT)) == report.began_at_ms


async def test_who_runs_at_every_interval_leaves_out_what_another_has_just_done(
    world: World,
) -> None:
    """So any number of instances cost little more than one."""
    sleeper = Sleeper(world.clock.now_ms())
    reports: asyncio.Queue[AggregationReport] = asyncio.Queue()
    running = asyncio.create_task(
        Aggregator(world.store, sleeper).run_forever(observe=reports.put_nowait)
    )
    await sleeper.asleep.wait()
    sleeper.advance_ms(sleeper.slept_ms[0] - 1)
    assert not (await Aggregator(world.store, sleeper).run_once()).skipped
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
async def test_a_lost_reply_to_the_checkpoint_spoils_no_run(world: World, applied: bool) -> None:
    """The totals are written; at worst the next run looks at the same days again."""
    await world.record()
    report = await Aggregator(ForgetfulStore(world.store, applied=applied), world.clock).run_once()
    assert (report.written, report.failed) == (1, 0)
    known_ms = checkpoint_from(await world.store.get(*CHECKPOINT))
    assert known_ms == (report.began_at_ms if applied else None)


async def test_a_checkpoint_far_ahead_hides_no_day(world: World) -> None:
    """A clock that was set wrong for a while, and ran complete, strands nothing afterwards."""
    await world.record()
    ahead = ShiftedClock()
    ahead.shift_ms = world.clock.shift_ms + 30 * DAY_MS
    await Aggregator(world.store, ahead).run_once()
    day = (await world.record()).receipt.org_day  # in a tick that was closed
    report = await world.aggregate()
    assert report.failed == 0
    assert (await world.stored(day)).requests == 2
    assert checkpoint_from(await world.store.get(*CHECKPOINT)) == report.began_at_ms
    # From then on it is as ever.
    world.clock.shift_ms += 60_000
    await world.record()
    await world.aggregate()
    assert (await world.stored(day)).requests == 3


async def test_a_total_that_was_read_again_is_as_fresh_as_that_read(world: World) -> None:
    """Not only as the first one, whose total could not be written."""
    day = (await world.record()).receipt.org_day
    forged = ForgedStore(world.store)

    async def lose(_: Put) -> None:
        forged.before_put = None
        world.clock.shift_ms += 60_000
        raise OutcomeUnknownError("injected")

    forged.before_put = lose
    report = await Aggregator(forged, world.clock).run_once()
    total = await world.stored(day)
    assert total.requests == 1
    assert total.as_of_ms >= report.began_at_ms + 60_000


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "UTC", "Pacific/Kiritimati"])
def test_a_day_is_kept_in_full_from_when_it_ended_in_its_own_zone(zone: str) -> None:
    """Also where it ends last, half a day after it did in Greenwich."""
    ended_ms = next_midnight_ms(zone, day_start_ms(zone, ACCOUNT.day))
    assert day_expires_at_epoch(ACCOUNT.day, 90) * 1000 >= ended_ms + 90 * DAY_MS


async def test_the_price_is_that_of_the_day_of_the_event(
    world: World, new_metering: MeteringMaker
) -> None:
    """Yesterday's usage has yesterday's price, though it is reported today."""
    metering = new_metering(world.store, world.clock)
    event_ms = world.clock.now_ms() - DAY_MS + 60_000
    late = a_usage(timestamp_ms=event_ms, input_tokens=10, output_tokens=0)
    stated = StatedPrices(
        table=PriceTable(default=RateCard(input=7, output=11)),
        source="yesterday",
        fetched_at_epoch=world.clock.now_epoch(),
    )
    yesterday = (
        await metering.record(world.policy, a_usage(timestamp_ms=event_ms))
    ).receipt.org_day
    item = price_item(CATALOGUE.model(PREMIUM), date_of(yesterday), stated)
    await world.store.put(Put(PRICING_CACHE, item))

    metering = new_metering(world.store, world.clock)  # has looked up nothing yet
    recorded = await metering.record(world.policy, late)
    today = await metering.record(world.policy, a_usage(input_tokens=10, output_tokens=0))

    assert (recorded.receipt.cost_usd_picos, recorded.receipt.org_day) == (70, yesterday)
    assert recorded.receipt.pricing_source == "pricing-cache:yesterday"
    assert today.receipt.cost_usd_picos == 10 * 3_000_000


async def test_an_organisations_total_is_as_old_as_the_oldest_part_of_it(world: World) -> None:
    """It is complete only up to where all of its apps are."""
    org_id, day, now_ms = new_org_id(), org_day("UTC", world.clock.now_ms()), world.clock.now_ms()
    expires = day_expires_at_epoch(day)
    for app, age_ms in (("one", 5_000), ("three", 9_000), ("two", 7_000)):
        account = Account(f"ORG#{org_id}#APP#{app}", PREMIUM, day)
        for put in listed_total_puts(account, Total.of(alike(1), now_ms - age_ms), expires):
            await world.store.put(put)
    # The organisation has no total of its own: nothing was aggregated.
    found = await world.metering.reader.read_org(org_id, [], day)
    assert found.total == {PREMIUM: Total.of(alike(3), now_ms - 9_000)}
