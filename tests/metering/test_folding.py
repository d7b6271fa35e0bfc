"""Folding into totals that others write too: nothing counts twice, and no total goes back."""

import asyncio

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.conftest import PREMIUM, STANDARD, QuickClock, a_policy, a_usage, stored, today
from metering.test_aggregator import ForgedStore, account_puts
from metering.test_posting import clock, memory, metering, new_instance
from minting import minted
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConditionFailedError,
    StoreError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.metering import Aggregator, Metering
from pricekeeper.metering import aggregator as aggregator_module
from pricekeeper.metering.counters import Account
from pricekeeper.metering.folding import REPAIR_PAUSE_MS
from pricekeeper.metering.items import day_expires_at_epoch, total_key
from pricekeeper.metering.journal_items import (
    REPAIR,
    Repair,
    page_key,
    repair_put,
    repairs_query,
)
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS, region_at

__all__ = ["clock", "memory", "metering"]


async def test_two_aggregators_at_once_are_as_good_as_one() -> None:
    """In any order of their reads and writes, while records are posted."""
    for seed in range(30):
        turns, clock = Interleaving(seed), QuickClock(1_768_000_000_000)
        memory = MemoryStore(clock)
        wire = FaultyStore(memory, turns, Faults())
        policy, day = a_policy(), today(clock)
        writer = new_instance(memory, clock)

        async def post(
            writer: Metering = writer, policy: Policy = policy, clock: QuickClock = clock
        ) -> None:
            for _ in range(6):
                await writer.record(policy, a_usage(minted(clock.now_ms())))
                clock.advance_ms(TICK_MS // 3)
                await asyncio.sleep(0)

        await post()
        runs = [Aggregator(wire, clock).run_once() for _ in range(2)]
        await asyncio.gather(turns.run(*runs), post())
        await Aggregator(memory, clock).run_once()
        assert (await stored(memory, policy, day)).requests == 12
        await writer.close()


async def test_who_was_slower_does_not_write_over_a_later_total(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """It has read a total that was there; before it writes, another run has moved it on."""
    day = today(clock)
    for _ in range(2):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        await Aggregator(memory, clock).run_once()
    await metering.record(policy, a_usage(minted(clock.now_ms())))
    slow = ForgedStore(memory)

    async def overtake(operation: Put) -> None:
        if operation.table is DAILY_TOTAL:
            slow.before_put = None
            await metering.record(policy, a_usage(minted(clock.now_ms())))
            await Aggregator(memory, clock).run_once()

    slow.before_put = overtake
    await Aggregator(slow, clock).run_once()
    assert (await stored(memory, policy, day)).requests == 4
    (put, *_) = account_puts(slow)
    assert put.item["requests"] == 3
    with pytest.raises(ConditionFailedError):
        await memory.put(put)


class RefusedPuts(FaultyStore):
    """Refuses so many puts of the totals of days of one account, or of all."""

    def __init__(self, store: Store, error: StoreError, left: int, partition: str = "") -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.left = left
        self._error = error
        self._partition = partition

    async def put(self, operation: Put) -> None:
        is_day = operation.table is DAILY_TOTAL and str(operation.key.sk).startswith("DAY#")
        if self.left and is_day and operation.key.pk.startswith(self._partition):
            self.left -= 1
            raise self._error
        await super().put(operation)


async def test_one_that_fails_for_hours_keeps_the_others_from_nothing(
    metering: Metering, memory: MemoryStore, clock: QuickClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond as many ticks as are summed at once; once it can be written, it has all."""
    monkeypatch.setattr(aggregator_module, "TICKS_AT_ONCE", 3)
    failing, other = a_policy(), a_policy()
    day = today(clock)
    wire = RefusedPuts(memory, StoreUnavailableError("down"), 10**6, failing.scope_key)
    for number in range(1, 13):
        for policy in (failing, other):
            await metering.record(policy, a_usage(minted(clock.now_ms())))
        assert (await Aggregator(wire, clock).run_once()).failed == 1
        assert (await stored(memory, other, day)).requests == number
        clock.advance_ms(TICK_MS)
    assert (await Aggregator(memory, clock).run_once()).failed == 0
    for policy in (failing, other):
        assert (await stored(memory, policy, day)).requests == 12


@pytest.mark.parametrize("ahead_ms", [10 * 60_000, 50 * 60_000, 6 * 3_600_000])
async def test_a_run_by_a_clock_that_is_ahead_hides_nothing_for_good(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy, ahead_ms: int
) -> None:
    """It closes ticks that have not begun; the next run by the right clock makes that good."""
    for minute in range(12):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        if minute == 3:
            wrong = ManualClock(clock.now_ms() + ahead_ms)
            await Aggregator(memory, wrong).run_once()
        else:
            await Aggregator(memory, clock).run_once()
        clock.advance_ms(60_000)
    await Aggregator(memory, clock).run_once()
    day = today(clock)
    totals = await metering.read_totals(policy.scope_key, [PREMIUM], day)
    assert totals[PREMIUM].requests == 12


async def test_one_lost_race_does_not_keep_a_day_from_being_made_anew(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """The put that was refused is made again; the others stand."""
    for label in (PREMIUM, STANDARD):
        await metering.record(policy, a_usage(minted(clock.now_ms()), model_label=label))
    lost = RefusedPuts(memory, ConditionFailedError(None), 1)
    day = today(clock)
    report = await Aggregator(lost, clock).rebuild_day(day)
    assert (report.failed, lost.left) == (0, 0)
    totals = await metering.read_totals(policy.scope_key, [PREMIUM, STANDARD], day)
    assert [total.requests for total in totals.values()] == [1, 1]


async def test_an_unreadable_account_takes_nobody_along(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """Another account of its organisation lost a race in the same run; it is read again."""
    day = today(clock)
    bad, good = (Account(policy.scope_key, label, day) for label in (PREMIUM, STANDARD))
    no_total = {"input_tokens": 1, "output_tokens": 1, "requests": 1, "cost_usd_micros": 1}
    key = total_key(bad)[1]
    await memory.put(Put(DAILY_TOTAL, {"PK": key.pk, "SK": key.sk, **no_total}))
    for label in (PREMIUM, STANDARD):
        await metering.record(policy, a_usage(minted(clock.now_ms()), model_label=label))
    clock.advance_ms(4 * TICK_MS)  # the run closes what it reads: no later one would find it
    lost = RefusedPuts(memory, ConditionFailedError(None), 1, good.partition)
    report = await Aggregator(lost, clock).run_once()
    assert report.unreadable
    assert (await stored(memory, policy, day, STANDARD)).requests == 1


async def test_a_repair_of_no_day_ends_no_run(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """It is reported, and the others are repaired."""
    day = today(clock)
    for name in (f"{policy.org_id}#99999999", "nothing"):
        await memory.put(Put(USAGE_AGG_SHARDED, {"PK": REPAIR, "SK": name}))
    await metering.record(policy, a_usage(minted(clock.now_ms())))
    assert (await Aggregator(memory, clock).run_once()).failed == 0
    assert (await stored(memory, policy, day)).requests == 1


async def test_a_day_is_repaired_every_ten_minutes_at_most(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """However often it is asked for: a repair reads all of the day again."""
    day = today(clock)
    await metering.record(policy, a_usage(minted(clock.now_ms())))
    aggregator, asked = Aggregator(memory, clock), Repair(policy.org_id, day)
    is_open = [False]
    for number, wait_ms in enumerate((0, REPAIR_PAUSE_MS - 1, 1)):
        clock.advance_ms(wait_ms)
        await memory.put(repair_put(asked, str(number), day_expires_at_epoch(day)))
        await aggregator.run_once()
        is_open.append(bool((await memory.query(repairs_query())).items))
    assert is_open == [False, False, True, False]


async def test_a_total_lacks_a_damaged_page_until_that_is_mended(
    metering: Metering, memory: MemoryStore, clock: QuickClock, policy: Policy
) -> None:
    """Later records are folded into it, and still it is not read as if it had all."""
    day = today(clock)
    page = page_key(policy.org_id, region_at(clock.now_ms()), 0, "0strange").attributes
    await memory.put(Put(USAGE_AGG_SHARDED, {**page, "n": "many"}))
    for _ in range(3):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        await Aggregator(memory, clock).run_once()
        with pytest.raises(UnreadableItemError):
            await stored(memory, policy, day)
        clock.advance_ms(4 * TICK_MS)
    await memory.put(Put(USAGE_AGG_SHARDED, {**page, "n": 0}))
    await Aggregator(memory, clock).run_once()
    assert (await stored(memory, policy, day)).requests == 3
