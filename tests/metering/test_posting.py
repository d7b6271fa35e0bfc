"""Posting: where records are written, what a refusal says, and what is put down for repair."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from memory_store import MemoryStore
from metering.conftest import CATALOGUE, LABELS, PREMIUM, QuickClock, a_policy, a_usage, stored
from metering.scripted_store import ScriptedStore, reply_lost
from minting import minted
from pricekeeper.clock import LEAP_MS_MAX, ManualClock
from pricekeeper.errors import InvalidValueError, RequestIdReusedError, StoreUnavailableError
from pricekeeper.metering import Aggregator, Metering, Outcome, Recorded, org_day
from pricekeeper.metering.aggregator import closable_tick
from pricekeeper.metering.journal import (
    FULL_WEIGHT,
    PAGE_DIGITS,
    WRITE_WEIGHT_MAX,
    address_of,
    is_full,
    records_on,
)
from pricekeeper.metering.journal_items import REPAIR, page_key
from pricekeeper.metering.marking import ANSWER_MS_MAX, NONCE_BYTES, is_late
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX, Usage
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Item, Put, Store, Update
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import ITEM_BYTES_MAX, item_bytes
from pricekeeper.tags import TAG_BYTES_MAX, TAGS_MAX
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS, tick_of

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    """The beginning of a tick."""
    return QuickClock(1_768_000_000_000 // TICK_MS * TICK_MS)


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
async def metering(memory: MemoryStore, clock: ManualClock) -> AsyncIterator[Metering]:
    made = new_instance(memory, clock)
    yield made
    await made.close()


def new_instance(store: Store, clock: ManualClock) -> Metering:
    return Metering(store, clock, PriceBook(store, clock, CATALOGUE), randomness=Random())


def pages(memory: MemoryStore, policy: Policy) -> dict[str, Item]:
    """The pages of an organisation by their digits."""
    return {
        name: item
        for (_, pk), items in memory.partitions.items()
        if pk.startswith(f"ORG#{policy.org_id}#J#")
        for name, item in items.items()
    }


def repairs(memory: MemoryStore) -> list[str]:
    return sorted(memory.partitions.get((USAGE_AGG_SHARDED.name, REPAIR), {}))


def alike(epoch_ms: int, digits: int, count: int) -> list[str]:
    """Ids that have so many of their first digits in common, without dashes and version."""
    random = Random(digits)
    first = address_of(minted(epoch_ms, random))
    assert first is not None
    made: list[str] = []
    for _ in range(count):
        rest = f"{random.getrandbits(124):031x}"
        mixed = first.digits[:digits] + rest[digits:]
        whole = f"{mixed[:12]}7{mixed[12:15]}8{mixed[16:]}"
        made.append(f"{whole[:8]}-{whole[8:12]}-{whole[12:16]}-{whole[16:20]}-{whole[20:]}")
    return made


@pytest.mark.parametrize("digits", [PAGE_DIGITS, PAGE_DIGITS + 1, 15, 20])
async def test_a_full_page_never_changes_again_and_its_children_take_the_rest(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy, digits: int
) -> None:
    """With ids alike to any depth; every record is found again."""
    usages = [a_usage(request_id) for request_id in alike(clock.now_ms(), digits, 400)]
    seen: dict[str, Item] = {}
    for start in range(0, len(usages), 20):
        answers = await metering.record_many(policy, usages[start : start + 20])
        assert {one.outcome for one in answers if isinstance(one, Recorded)} == {Outcome.ACCEPTED}
        for name, page in pages(memory, policy).items():
            assert seen.get(name, page) == page, "a full page has changed"
            if is_full(page):
                seen[name] = page
    depths = {len(name) for name in pages(memory, policy)}
    assert min(depths) == PAGE_DIGITS
    assert max(depths) >= min(digits + 1, PAGE_DIGITS + 4)  # 64 or more on each level
    for instance in (metering, new_instance(memory, clock)):
        for start in range(0, len(usages), 100):
            again = await instance.record_many(policy, usages[start : start + 100])
            outcomes = {one.outcome for one in again if isinstance(one, Recorded)}
            assert outcomes == {Outcome.DUPLICATE}
    day = org_day("UTC", clock.now_ms())
    totals = await metering.read_totals(policy.scope_key, [PREMIUM], day, live=True)
    assert totals[PREMIUM].requests == len(usages)


async def test_a_hundred_records_with_all_the_tags_there_can_be(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """8 KiB each, of both kinds of ids: none is refused, and no item is too large."""
    for make_id in (lambda: minted(clock.now_ms()), lambda: None):
        usages = [
            a_usage(
                make_id(),
                tags={
                    f"{number:03}{tag:02}".ljust(TAG_BYTES_MAX, "k"): "v" * TAG_BYTES_MAX
                    for tag in range(TAGS_MAX)
                },
            )
            for number in range(100)
        ]
        answers = await metering.record_many(policy, usages)
        assert all(isinstance(answer, Recorded) for answer in answers)
    for page in pages(memory, policy).values():
        assert item_bytes(page) < ITEM_BYTES_MAX
        if not page["SK"].startswith("x"):
            assert page["n"] < FULL_WEIGHT + WRITE_WEIGHT_MAX


@pytest.mark.parametrize("hours", [0, 23, 25, 72])
async def test_a_record_on_a_page_is_a_duplicate_for_as_long_as_the_page_is(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy, hours: int
) -> None:
    """Also if its id is too old to be new; also on a child; another body is refused."""
    usages = [a_usage(request_id) for request_id in alike(clock.now_ms(), 14, 200)]
    for start in (0, 100):
        await metering.record_many(policy, usages[start : start + 100])
    clock.advance_ms(hours * HOUR_MS)
    for usage in (usages[0], usages[-1]):
        again = await metering.record(policy, usage)
        assert again.outcome is Outcome.DUPLICATE
        with pytest.raises(RequestIdReusedError):
            await metering.record(policy, a_usage(usage.request_id, output_tokens=1))


@pytest.mark.parametrize("away_ms", [-LATE_MS_MAX - 1, AHEAD_MS_MAX + 1])
async def test_the_id_alone_says_that_it_is_too_old_or_ahead(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy, away_ms: int
) -> None:
    """With any timestamp; nothing is written."""
    request_id = minted(clock.now_ms() + away_ms)
    for timestamp_ms in (None, clock.now_ms()):
        with pytest.raises(InvalidValueError, match="request_id"):
            await metering.record(policy, a_usage(request_id, timestamp_ms=timestamp_ms))
    assert pages(memory, policy) == {}
    inside = minted(clock.now_ms() + away_ms + (1 if away_ms < 0 else -1))
    assert (await metering.record(policy, a_usage(inside))).outcome is Outcome.ACCEPTED


async def passes(send: Callable[[], Awaitable[None]]) -> None:
    await send()


async def test_a_lost_reply_is_known_again_by_its_nonce(
    memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """Also on a child of its page; another sender's record is never taken for one's own."""
    wire = ScriptedStore(memory)
    metering, other = new_instance(wire, clock), new_instance(memory, clock)
    ids = alike(clock.now_ms(), 14, 150)
    await other.record_many(policy, [a_usage(request_id) for request_id in ids[:100]])
    wire.script.extend([passes, reply_lost])  # the full page refuses, and its child takes them
    usages = [a_usage(request_id) for request_id in ids[90:]]
    answers = await metering.record_many(policy, usages)
    told = [answer.outcome for answer in answers if isinstance(answer, Recorded)]
    assert told == [Outcome.DUPLICATE] * 10 + [Outcome.ACCEPTED] * 50
    nonces = {
        record.entry.nonce for page in pages(memory, policy).values() for record in records_on(page)
    }
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}
    await metering.close()
    await other.close()


def test_when_an_answer_is_late() -> None:
    """As long before the tick is closed as clocks and replies may take."""
    ended_ms = 6 * TICK_MS
    assert not is_late(ended_ms - TICK_MS, ended_ms + ANSWER_MS_MAX)
    assert is_late(ended_ms - 1, ended_ms + ANSWER_MS_MAX + 1)
    assert closable_tick(ended_ms + ANSWER_MS_MAX + LEAP_MS_MAX) < 5


class SlowWire(ScriptedStore):
    """A page's reply takes its time; puts of repairs may fail."""

    def __init__(self, memory: MemoryStore, clock: ManualClock, takes_ms: int) -> None:
        super().__init__(memory)
        self.clock = clock
        self.takes_ms = takes_ms
        self.repairs_fail = False

    async def update(self, operation: Update) -> Item:
        written = await super().update(operation)
        self.clock.advance_ms(self.takes_ms)
        return written

    async def put(self, operation: Put) -> None:
        if self.repairs_fail and operation.key.pk == REPAIR:
            raise StoreUnavailableError("scripted")
        await super().put(operation)


async def test_a_late_answer_is_put_down_for_repair_and_the_next_run_counts_it(
    memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """Its tick may have been closed without it: here the checkpoint has moved past it before."""
    wire = SlowWire(memory, clock, 3 * TICK_MS)
    metering = new_instance(wire, clock)
    day = org_day("UTC", clock.now_ms())
    ahead = ManualClock(clock.now_ms() + 4 * TICK_MS)
    await Aggregator(memory, ahead).run_once()  # before the record is there
    recorded = await metering.record(policy, a_usage(minted(clock.now_ms())))
    assert recorded.outcome is Outcome.ACCEPTED
    assert tick_of(recorded.receipt.accepted_at_ms) < tick_of(clock.now_ms()) - 2
    assert repairs(memory) == [f"{policy.org_id}#{day}"]
    clock.advance_ms(2 * TICK_MS)
    await Aggregator(memory, clock).run_once()
    assert (await stored(memory, policy, day)).requests == 1
    assert repairs(memory) == []
    await Aggregator(memory, clock).run_once()
    assert (await stored(memory, policy, day)).requests == 1
    await metering.close()


async def test_nobody_is_told_that_a_late_record_counts_before_its_repair_is_asked_for(
    memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """The outcome is unknown; a repetition requests the repair again."""
    wire = SlowWire(memory, clock, 3 * TICK_MS)
    metering = new_instance(wire, clock)
    wire.repairs_fail = True
    usage = a_usage(minted(clock.now_ms()))
    (answer,) = await metering.record_many(policy, [usage])
    assert not isinstance(answer, Recorded)
    assert answer.code == "OUTCOME_UNKNOWN"
    assert repairs(memory) == []
    wire.repairs_fail = False
    assert (await metering.record(policy, usage)).outcome is Outcome.DUPLICATE
    assert len(repairs(memory)) == 1
    await metering.close()


async def test_an_answer_in_time_asks_for_no_repair(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """Nor does a duplicate of a moment ago."""
    usage = a_usage(minted(clock.now_ms()))
    for _ in range(3):
        await metering.record(policy, usage)
    assert repairs(memory) == []


async def test_a_damaged_page_stops_nobody_else(
    metering: Metering, memory: MemoryStore, clock: ManualClock
) -> None:
    """Its organisation's other pages take records, and so do all others."""
    broken, other = a_policy(), a_policy()
    address = address_of(minted(clock.now_ms()))
    assert address is not None
    key = page_key(broken.org_id, address.region, 0, address.digits[:PAGE_DIGITS])
    await memory.put(Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, "n": "many"}))

    def at(offset_ms: int) -> Usage:
        return a_usage(minted(clock.now_ms() + offset_ms), model_label=LABELS[0])

    results = await asyncio.gather(
        metering.record(broken, at(0)),
        metering.record(broken, at(64)),
        metering.record(other, at(0)),
        return_exceptions=True,
    )
    assert [isinstance(one, Recorded) for one in results] == [False, True, True]


async def test_ticks_are_marked_once_by_a_process(
    metering: Metering, memory: MemoryStore, clock: ManualClock, policy: Policy
) -> None:
    """And again in the next one, before anything is written in it."""
    wire = ScriptedStore(memory)
    puts: list[str] = []

    async def put(operation: Put) -> None:
        puts.append(operation.key.pk)
        await memory.put(operation)

    wire.put = put  # type: ignore[method-assign]
    instance = new_instance(wire, clock)
    for _ in range(3):
        await instance.record(policy, a_usage(minted(clock.now_ms())))
    assert [pk[:5] for pk in puts] == ["TICKS", "TICK#"]
    clock.advance_ms(TICK_MS)
    await instance.record(policy, a_usage(minted(clock.now_ms())))
    await instance.record(a_policy(), a_usage(minted(clock.now_ms())))
    assert [pk[:5] for pk in puts[2:]] == ["TICKS", "TICK#", "TICK#"]
    await instance.close()
