"""Ids without a time: where their records are, and what a lost or repeated moment does."""

import asyncio
import uuid
from collections import Counter

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import (
    CATALOGUE,
    LABELS,
    PREMIUM,
    MeteringMaker,
    a_policy,
    a_usage,
    stored,
    told,
)
from minting import minted
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError, UnreadableItemError
from pricekeeper.metering import Aggregator, Metering, Outcome
from pricekeeper.metering.journal import address_at, address_of, lanes_of
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.moments import MOMENTS_AT_ONCE, moment_key
from pricekeeper.metering.usage import MOMENT_LIFE_SECS
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Item, Put, Store, Update
from pricekeeper.storage.tables import REQUEST_DEDUP
from stores import ShiftedClock

RECORDS = 96


def new_id() -> str:
    return str(uuid.uuid4())


@pytest.mark.parametrize("shards", [8, 64])
async def test_records_are_spread_over_all_lanes(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock, shards: int
) -> None:
    """As many as those of ids with a time; the answer says in which lane each is."""
    policy, lanes = a_policy(agg_shard_count=shards), lanes_of(shards)
    metering = new_metering(store, clock)
    answers = []
    for _ in range(RECORDS):
        answers.append(await metering.record(policy, a_usage(new_id())))
        clock.shift_ms += 16
    told = {one.request_id: one.receipt.shard_id for one in answers}
    regions = {address_at(one.request_id, one.receipt.accepted_at_ms).region for one in answers}
    found = {}
    for region in regions:
        posting = PostedRegion(policy.org_id, region, lanes)
        async for record in JournalReader(store).read_records([posting]):
            found[record.request_id] = record.receipt.shard_id
    assert found == told
    spread = Counter(told.values())
    assert spread.keys() == set(range(lanes))
    assert max(spread.values()) <= 3 * RECORDS // lanes


async def test_the_lane_of_an_id_with_a_time_is_told_too(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """In the first answer and in a duplicate's."""
    policy, metering = a_policy(agg_shard_count=64), new_metering(store, clock)
    for _ in range(8):
        request_id = minted(clock.now_ms())
        address = address_of(request_id)
        assert address is not None
        for outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE):
            answer = await metering.record(policy, a_usage(request_id))
            assert answer.outcome is outcome
            assert answer.receipt.shard_id == address.lane(8)
        clock.shift_ms += 16


async def test_an_id_is_counted_once_by_any_number_of_instances(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """At once, and minutes later."""
    policy, usage = a_policy(agg_shard_count=64), a_usage(new_id())
    instances = [new_metering(store, clock) for _ in range(4)]
    answers = await asyncio.gather(*(one.record(policy, usage) for one in instances))
    clock.shift_ms += 3_600_000
    answers.append(await new_metering(store, clock).record(policy, usage))
    assert Counter(one.outcome for one in answers) == {Outcome.ACCEPTED: 1, Outcome.DUPLICATE: 4}
    assert len({one.receipt.accepted_at_ms for one in answers}) == 1


class _MomentOnly(FaultyStore):
    """The process dies after the moment: no page can be written."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())

    async def update(self, operation: Update) -> Item:
        if operation.table is REQUEST_DEDUP:
            return await super().update(operation)
        raise StoreUnavailableError(f"scripted: gone before {operation.key.pk}")


async def test_a_moment_alone_counts_nothing_and_the_next_sending_counts(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """On the page of the moment, also in a later region."""
    policy, usage = a_policy(), a_usage(new_id())
    with pytest.raises(StoreUnavailableError):
        await new_metering(_MomentOnly(store), clock).record(policy, usage)
    minted = await store.get(*moment_key(policy.org_id, usage.request_id))
    assert minted is not None
    clock.shift_ms += 200_000
    metering = new_metering(store, clock)
    first, again = await metering.record(policy, usage), await metering.record(policy, usage)
    assert (first.outcome, again.outcome) == (Outcome.ACCEPTED, Outcome.DUPLICATE)
    totals = await metering.read_totals(policy.scope_key, LABELS, first.receipt.org_day, live=True)
    assert totals[PREMIUM].requests == 1


class _ReplyOfMomentLost(FaultyStore):
    def __init__(self, store: Store, times: int) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.times = times

    async def put(self, operation: Put) -> None:
        if operation.table is not REQUEST_DEDUP:
            await self._store.put(operation)
            return
        try:
            await self._store.put(operation)
        finally:
            self.times -= 1
            if self.times >= 0:
                raise OutcomeUnknownError("scripted: the reply was lost")


async def test_a_lost_reply_to_a_moment_is_asked_again(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """Its own moment is found there, and the record is accepted, not a duplicate."""
    metering = new_metering(_ReplyOfMomentLost(store, 2), clock)
    answer = await metering.record(a_policy(), a_usage(new_id()))
    assert answer.outcome is Outcome.ACCEPTED


async def test_a_damaged_moment_is_no_new_one(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """The record may be counted, so it is not counted again."""
    policy, usage = a_policy(), a_usage(new_id())
    _, key = moment_key(policy.org_id, usage.request_id)
    await store.put(Put(REQUEST_DEDUP, {"PK": key.pk, "minted_ms": "noon"}))
    with pytest.raises(UnreadableItemError):
        await new_metering(store, clock).record(policy, usage)


def test_no_id_with_a_time_has_the_place_of_one_without() -> None:
    """The digit of the variant is 8 to b in the first, and 0 in the other."""
    for _ in range(100):
        digits = address_at(new_id(), 1_768_000_000_123).digits
        assert len(digits) == 31
        rest = f"{digits[12:15]}-{digits[15:19]}-{digits[19:]}"
        assert address_of(f"{digits[:8]}-{digits[8:12]}-7{rest}") is None


NEARLY_A_LIFE_MS = MOMENT_LIFE_SECS * 1000 - 2 * 3_600_000


async def test_a_record_is_remembered_from_its_counting_on(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """A moment of a failed sending is old by then, and must not end before its record's time."""
    policy, usage = a_policy(), a_usage(new_id())
    with pytest.raises(StoreUnavailableError):
        await new_metering(_MomentOnly(store), clock).record(policy, usage)
    clock.shift_ms += NEARLY_A_LIFE_MS
    metering = new_metering(store, clock)
    first = await metering.record(policy, usage)
    clock.shift_ms += NEARLY_A_LIFE_MS
    again = await metering.record(policy, usage)
    assert (first.outcome, again.outcome) == (Outcome.ACCEPTED, Outcome.DUPLICATE)


async def test_a_record_on_a_page_older_than_all_that_are_kept_counts(
    store: Store, clock: ShiftedClock
) -> None:
    """A caller repeated it for longer than that: its page is kept from the sending on."""
    policy, usage, prices = a_policy(), a_usage(new_id()), PriceBook(store, clock, CATALOGUE)
    for _ in range(3):
        failing = Metering(_MomentOnly(store), clock, prices, retention_days=1)
        with pytest.raises(StoreUnavailableError):
            await failing.record(policy, usage)
        clock.shift_ms += NEARLY_A_LIFE_MS
    metering = Metering(store, clock, prices, retention_days=1)
    answer = await metering.record(policy, usage)
    await Aggregator(store, clock, retention_days=1).run_once()
    assert (await stored(store, policy, answer.receipt.org_day)).requests == 1
    await metering.close()


class _OnePageFails(FaultyStore):
    """Updates of pages of one region have no outcome, all others are refused."""

    def __init__(self, store: Store, region: str) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._region = f"#J#{region}#"

    async def update(self, operation: Update) -> Item:
        if self._region in operation.key.pk:
            raise OutcomeUnknownError("scripted: no reply")
        raise StoreUnavailableError("scripted: refused")


@pytest.mark.parametrize("old_first", [True, False])
async def test_each_record_gets_the_failure_of_its_own_page(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock, *, old_first: bool
) -> None:
    """Records of a batch whose moments differ: one may be counted, the other is certainly not."""
    policy, old, new = a_policy(), a_usage(new_id()), a_usage(new_id())
    with pytest.raises(StoreUnavailableError):
        await new_metering(_MomentOnly(store), clock).record(policy, old)
    item = await store.get(*moment_key(policy.org_id, old.request_id))
    assert item is not None
    clock.shift_ms += 200_000
    metering = new_metering(
        _OnePageFails(store, address_at(old.request_id, item["minted_ms"]).region), clock
    )
    batch = [old, new] if old_first else [new, old]
    answers = await metering.record_many(policy, batch)
    codes = {one.request_id: told(one) for one in answers}
    assert codes == {
        old.request_id: OutcomeUnknownError.code,
        new.request_id: StoreUnavailableError.code,
    }


class _Crowd(FaultyStore):
    """Notes whose moments are written, and how many at once."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.order: list[str] = []
        self.at_once = self.at_once_max = 0

    async def put(self, operation: Put) -> None:
        if operation.table is not REQUEST_DEDUP:
            await self._store.put(operation)
            return
        self.order.append(operation.key.pk.split("#")[1])
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(0)
        try:
            await self._store.put(operation)
        finally:
            self.at_once -= 1


async def test_batches_leave_connections_to_others_and_take_turns(
    new_metering: MeteringMaker, store: Store, clock: ShiftedClock
) -> None:
    """Else a batch of a hundred moments takes all connections to the store."""
    crowd, (busy, quiet) = _Crowd(store), (a_policy(), a_policy())
    metering = new_metering(crowd, clock)
    await asyncio.gather(
        metering.record_many(busy, [a_usage(new_id()) for _ in range(100)]),
        metering.record(quiet, a_usage(new_id())),
    )
    assert crowd.at_once_max == MOMENTS_AT_ONCE
    assert crowd.order.index(quiet.org_id) <= 2 * MOMENTS_AT_ONCE
