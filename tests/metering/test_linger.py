"""A record may wait on purpose, so that more of them share a write."""

import asyncio

import pytest

from metering.conftest import CATALOGUE, a_policy, a_usage
from minting import minted
from pricekeeper.metering import Metering
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter
from stores import ShiftedClock


@pytest.mark.parametrize("linger_ms", [0, 50])
async def test_records_share_a_write_if_the_first_one_lingers(
    store: Store, clock: ShiftedClock, meter: StoreMeter, linger_ms: int
) -> None:
    """Five of one page, each in a later turn of the event loop than the one before."""
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE), linger_ms=linger_ms)
    await metering.record(a_policy(), a_usage(minted(clock.now_ms())))  # the prices are known now
    policy, made_ms, before = a_policy(), clock.now_ms(), meter.calls["update"]
    recording = []
    for _ in range(5):
        recording.append(asyncio.create_task(metering.record(policy, a_usage(minted(made_ms)))))
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.gather(*recording)
    writes = meter.calls["update"] - before
    assert writes == 1 if linger_ms else writes > 1
    await metering.close()
