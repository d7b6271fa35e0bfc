"""Live sums: everything that was acknowledged is in them, to the pico-dollar, and cheaply so."""

import asyncio
import contextlib
import re
import uuid
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from memory_store import MemoryStore
from metering.conftest import CATALOGUE, LABELS, a_policy, a_usage
from minting import either, minted
from pricekeeper.clock import Clock, ManualClock, SystemClock
from pricekeeper.days import org_day
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.metering import Aggregator, Metering
from pricekeeper.metering import live as live_module
from pricekeeper.metering.breakdown import Grouping, parse_grouping
from pricekeeper.metering.facets import hour_of
from pricekeeper.metering.live import LiveSums
from pricekeeper.metering.ranges import DayRange, RangeReader, SpendTable
from pricekeeper.pricing import PriceBook
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Page, Put, Query, Store, open_store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy, QuotaScope
from pricekeeper.ticks import TICK_MS, partition_of, region_at
from pricekeeper.values import AppId
from slowness import slow

COSTS = (Path(__file__).parents[2] / "docs" / "costs.md").read_text("utf-8")
SPAN = DayRange("20000101", "20991231")
HOUR_MS = 3_600_000
FINE = parse_grouping("app,label,day,hour")


async def read(
    store: Store, clock: Clock, live: LiveSums, policy: Policy, grouping: Grouping = FINE
) -> SpendTable:
    """What an organisation has spent, now."""
    orgs = [policy.org_id]
    reading = await live.read(orgs, grouping.tag_key)
    return await RangeReader(store, clock).read_spend(orgs, None, SPAN, grouping, live=reading)


def picos(spend: SpendTable) -> dict[tuple[str, ...], int]:
    return {row.group: row.counters.cost_usd_picos for row in spend.rows}


def live_of(store: Store, clock: Clock) -> LiveSums:
    return LiveSums(store, clock, retention_days=90, in_flight_ms=10_000)


async def test_what_was_acknowledged_is_in_it_at_once(
    store: Store, metering: Metering, clock: Clock
) -> None:
    """Before any aggregation and after, from every instance."""
    policy = a_policy()
    elsewhere = live_of(store, clock)
    for count in range(1, 4):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        await metering.record(policy, a_usage())
        for live in (metering.live, live_of(store, clock)):
            spend = await read(store, clock, live, policy)
            assert spend.total.requests == 2 * count
            assert spend.as_of_ms <= clock.now_ms()
        await Aggregator(store, clock).run_once()
        spend = await read(store, clock, metering.live, policy)
        assert spend.total.requests == 2 * count
    assert (await read(store, clock, elsewhere, policy)).total.requests == 6


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scope", [QuotaScope.APP, QuotaScope.ORG])
async def test_it_is_what_the_records_add_up_to_whatever_happens(
    seed: int, scope: QuotaScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of two processes, fresh ids and old ones, with folds and hours in between.

    Read by a process that counts, by one that only looks and remembers, and by one that has to
    forget: each time everything that was acknowledged before ``as_of`` is in it, in every cell.
    """
    random, clock = Random(seed), ManualClock(1_768_000_000_000)
    store = MemoryStore(clock)
    processes = [Metering(store, clock, PriceBook(store, clock, CATALOGUE)) for _ in range(2)]
    watching, forgetful = live_of(store, clock), live_of(store, clock)
    org = a_policy().org_id
    policies = [
        a_policy(AppId(name), org_id=org, quota_scope=scope, tag_keys=("team",))
        for name in ("web", "batch")
    ]
    expected: Counter[tuple[str, ...]] = Counter()
    by_team: Counter[str] = Counter()
    for _ in range(60):
        event = random.random()
        if event < 0.55:
            policy, label = random.choice(policies), random.choice(LABELS)
            made_ms = clock.now_ms() - random.choice((0, 0, 0, 5_000, 70_000, 20 * HOUR_MS))
            happened_ms = made_ms - random.choice((0, 1_000))
            team = random.choice(("red", "blue", ""))
            usage = a_usage(
                either(made_ms, random),
                model_label=label,
                timestamp_ms=happened_ms,
                tags={"team": team} if team else {},
                input_tokens=random.randrange(2_000),
            )
            recorded = await random.choice(processes).record(policy, usage)
            cost = recorded.receipt.cost_usd_picos
            day = org_day("UTC", happened_ms)
            app = str(policy.app_id)
            expected[app, label, day, f"{hour_of(happened_ms):07d}"] += cost
            by_team[team] += cost
        elif event < 0.8:
            clock.advance_ms(random.choice((300, 1_000, 20_000, TICK_MS, 3 * TICK_MS)))
        elif event < 0.9:
            await Aggregator(store, clock).run_once()
        else:
            clock.advance_ms(live_module.REUSE_MS)
            monkeypatch.setattr(live_module, "PAGES_MAX", random.choice((1, 100_000)))
            for live in (processes[0].live, watching, forgetful):
                spend = await read(store, clock, live, policies[0])
                assert picos(spend) == expected
                assert spend.as_of_ms == clock.now_ms()
                tags = await read(store, clock, live, policies[0], parse_grouping("tag:team"))
                assert picos(tags) == {(team,): cost for team, cost in by_team.items()}
    assert sum(expected.values())


async def test_what_has_not_changed_is_not_parsed_again(clock: ManualClock) -> None:
    """Pages of the same weight and regions without new records are skipped."""
    store, policy = MemoryStore(clock), a_policy()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    for _ in range(4):
        for _ in range(50):
            await metering.record(policy, a_usage(minted(clock.now_ms())))
            clock.advance_ms(100)
        clock.advance_ms(TICK_MS)
    live = live_of(store, clock)
    seen: list[int] = []
    for _ in range(3):
        clock.advance_ms(live_module.REUSE_MS)
        await live.read([policy.org_id])
        (tail,) = live._tails.values()
        seen.append(tail.work_us)
    first, second, third = seen
    assert first == 200 * (live_module.PAGE_US + live_module.RECORD_US)
    assert (second, third) == (first, first), "nothing was posted in the last seconds"
    await metering.record(policy, a_usage(minted(clock.now_ms())))
    clock.advance_ms(live_module.REUSE_MS)
    await live.read([policy.org_id])
    assert tail.work_us - third == live_module.PAGE_US + live_module.RECORD_US


async def test_who_asks_all_the_time_takes_a_part_of_the_processor(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading that was much work is used for longer, though more has been counted."""
    monkeypatch.setattr(live_module, "RECORD_US", 100_000)
    store, policy = CountingStore(clock), a_policy()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    for _ in range(10):
        await metering.record(policy, a_usage())
    await metering.live.read([policy.org_id])
    calls = store.reads
    await metering.record(policy, a_usage())
    clock.advance_ms(8 * 10 * 100 - 1)
    await metering.live.read([policy.org_id])
    assert store.reads == calls
    clock.advance_ms(100)
    await metering.live.read([policy.org_id])
    assert store.reads > calls


async def test_a_page_that_can_not_be_read_concerns_its_organisation_alone(
    clock: ManualClock,
) -> None:
    """Its live part is left out, and the answer says how old it is."""
    store = MemoryStore(clock)
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    strange, other = a_policy(), a_policy()
    for policy in (strange, other):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
    page = partition_of(strange.org_id, region_at(clock.now_ms()), 0)
    (item,) = (await store.query(Query(USAGE_AGG_SHARDED, page))).items
    await store.put(Put(USAGE_AGG_SHARDED, {**item, "n": "?"}))
    orgs = [strange.org_id, other.org_id]
    reading = await metering.live.read(orgs)
    assert (list(reading.lacking), list(reading.found)) == ([strange.org_id], [other.org_id])
    reader = RangeReader(store, clock)
    both = await reader.read_spend(orgs, None, SPAN, Grouping(), live=reading)
    assert (both.total.requests, both.as_of_ms) == (1, 0)
    alone = await reader.read_spend([other.org_id], None, SPAN, Grouping(), live=reading)
    assert (alone.total.requests, alone.as_of_ms) == (1, clock.now_ms())


async def test_a_reading_that_fails_half_way_leaves_nothing_wrong(clock: ManualClock) -> None:
    """The next one is exact."""
    store, policy = FailingStore(clock), a_policy()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    for count in range(1, 30):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        store.left = count % 7
        clock.advance_ms(live_module.REUSE_MS)
        with contextlib.suppress(StoreUnavailableError):
            await metering.live.read([policy.org_id])
        store.left = 10**6
        clock.advance_ms(live_module.REUSE_MS)
        spend = await read(store, clock, metering.live, policy)
        assert spend.total.requests == count
    await metering.close()


class CountingStore(MemoryStore):
    """Counts what is read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.reads = 0

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().query(query, consistent=consistent)


class FailingStore(MemoryStore):
    """Answers so many queries, and then no more."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.left = 10**6

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailableError("no more")
        return await super().query(query, consistent=consistent)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now_ms() // TICK_MS * TICK_MS + 20_000)


@pytest.mark.parametrize("rate", [10, *slow(100)])
async def test_reading_again_costs_what_was_posted_in_the_last_region(
    dynoxide: str, clock: ManualClock, rate: int
) -> None:
    """Read units of a refresh, for an organisation of so many records a second, as documented."""
    told = re.search(rf"spend of now, {rate} records a second \| 0 \| (\d+) \|", COSTS)
    idle = re.search(r"spend of now, nothing posted \| 0 \| (\d+) \|", COSTS)
    assert told is not None
    assert idle is not None
    meter = StoreMeter()
    location = DynamoDbLocation("us-east-1", f"live-{uuid.uuid4().hex[:8]}-", dynoxide)
    store = await open_store(location, clock=SystemClock(), meter=meter)  # whose pauses pass
    await store.create_tables()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    policy = a_policy()
    for _ in range(40):
        ids = [minted(clock.now_ms() + number * 1000 // rate) for number in range(rate)]
        clock.advance_ms(1_000)
        await asyncio.gather(*(metering.record(policy, a_usage(one)) for one in ids))
    live = live_of(store, clock)
    await live.read([policy.org_id])
    clock.advance_ms(live_module.REUSE_MS)
    meter.clear()
    await live.read([policy.org_id])
    units, written = sum(meter.read_half_units.values()) / 2, meter.write_half_units.total()
    clock.advance_ms(2 * TICK_MS)
    await live.read([policy.org_id])
    clock.advance_ms(live_module.REUSE_MS)
    meter.clear()
    await live.read([policy.org_id])
    quiet = sum(meter.read_half_units.values()) / 2
    await metering.close()
    await store.close()
    assert (int(told[1]) * 0.8 <= units <= int(told[1]), written) == (True, 0), units
    assert quiet <= int(idle[1])
