"""From when on the journal is used: one moment for everybody, and receipts for what is older."""

import asyncio

import pytest

from metering.conftest import CATALOGUE, a_policy, a_usage
from minting import minted
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering import Metering, Outcome, agree_on_start
from pricekeeper.metering.items import CHECKPOINT, checkpoint_update
from pricekeeper.metering.journal_start import ROLLOUT_MS
from pricekeeper.metering.receipt import receipt_key
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from stores import ShiftedClock


async def test_a_new_store_uses_the_journal_at_once(store: Store, clock: ShiftedClock) -> None:
    now_ms = clock.now_ms()
    assert now_ms <= await agree_on_start(store, clock) <= clock.now_ms()


async def test_a_store_that_was_used_waits_until_every_instance_is_replaced(
    store: Store, clock: ShiftedClock
) -> None:
    now_ms = clock.now_ms()
    await store.update(checkpoint_update(now_ms, 0))
    assert CHECKPOINT[1].pk == "AGGREGATOR"
    assert await agree_on_start(store, clock) >= now_ms + ROLLOUT_MS


async def test_all_instances_agree_whoever_comes_first(store: Store, clock: ShiftedClock) -> None:
    agreed = await asyncio.gather(*(agree_on_start(store, clock) for _ in range(5)))
    clock.shift_ms += 3_600_000
    assert {*agreed, await agree_on_start(store, clock)} == {agreed[0]}


async def test_ids_from_before_have_receipts_and_are_known_by_them(
    store: Store, clock: ShiftedClock
) -> None:
    """An instance of the version before finds them there, and so do we after the moment."""
    now_ms = clock.now_ms()
    metering = Metering(
        store, clock, PriceBook(store, clock, CATALOGUE), journal_from_ms=now_ms + 60_000
    )
    policy = a_policy()
    older, newer = a_usage(minted(now_ms)), a_usage(minted(now_ms + 60_000))
    for usage, has_receipt in ((older, True), (newer, False)):
        first = await metering.record(policy, usage)
        again = await metering.record(policy, usage)
        assert (first.outcome, again.outcome) == (Outcome.ACCEPTED, Outcome.DUPLICATE)
        receipt = await store.get(*receipt_key(policy.org_id, usage.request_id))
        assert (receipt is not None) is has_receipt
    await metering.close()


async def test_an_id_that_is_too_old_is_refused_also_from_before_the_journal(
    store: Store, clock: ShiftedClock
) -> None:
    """By its own time, whichever way it would be counted: no other rule may take it for new."""
    now_ms = clock.now_ms()
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE), journal_from_ms=now_ms)
    for made_ms in (now_ms - 25 * 3_600_000, now_ms + 6 * 60_000):
        with pytest.raises(InvalidValueError, match="request_id"):
            await metering.record(a_policy(), a_usage(minted(made_ms)))
    await metering.close()
