"""Ids without a time: where their records are, and what a lost or repeated moment does."""

import asyncio
import uuid
from collections import Counter

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import LABELS, PREMIUM, MeteringMaker, a_policy, a_usage
from minting import minted
from pricekeeper.errors import OutcomeUnknownError, StoreUnavailableError, UnreadableItemError
from pricekeeper.metering import Outcome
from pricekeeper.metering.journal import address_at, address_of, lanes_of
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.moments import moment_key
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
