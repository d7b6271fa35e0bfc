"""A record may wait on purpose, so that more of them share a write."""

import asyncio

from metering.conftest import CATALOGUE, a_policy, a_usage
from minting import minted
from pricekeeper.metering import Metering
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter
from stores import ShiftedClock


async def spread_over_turns(metering: Metering, clock: ShiftedClock) -> None:
    """Five records of one page, each in a later turn of the event loop than the one before."""
    policy, made_ms = a_policy(), clock.now_ms()
    recording = []
    for _ in range(5):
        usage = a_usage(minted(made_ms))
        recording.append(asyncio.create_task(metering.record(policy, usage)))
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.gather(*recording)


async def test_records_that_come_while_one_lingers_share_its_write(
    store: Store, clock: ShiftedClock, meter: StoreMeter
) -> None:
    prices = PriceBook(store, clock, CATALOGUE)
    lingering = Metering(store, clock, prices, linger_ms=50)
    before = meter.calls["update"]
    await spread_over_turns(lingering, clock)
    assert meter.calls["update"] - before == 1
    await lingering.close()


async def test_nobody_waits_unless_it_is_asked_for(
    store: Store, clock: ShiftedClock, meter: StoreMeter
) -> None:
    prices = PriceBook(store, clock, CATALOGUE)
    prompt = Metering(store, clock, prices)
    await prompt.record(a_policy(), a_usage(minted(clock.now_ms())))  # the prices are known now
    before = meter.calls["update"]
    await spread_over_turns(prompt, clock)
    assert meter.calls["update"] - before > 1
    await prompt.close()
