"""A recreated organisation may have more lanes: its records are read once."""

from dataclasses import replace

from metering.conftest import PREMIUM, a_policy, a_usage
from minting import minted
from pricekeeper.days import org_day
from pricekeeper.metering import Aggregator, Metering
from pricekeeper.storage import Store
from stores import ShiftedClock


async def test_a_region_of_two_widths_is_read_once(
    store: Store, metering: Metering, clock: ShiftedClock
) -> None:
    """The total has both records, and each once."""
    before = a_policy()
    after = replace(before, agg_shard_count=16)
    at_ms = clock.now_ms()
    for policy in (before, after):
        for _ in range(4):
            await metering.record(policy, a_usage(minted(at_ms)))
    await Aggregator(store, clock).run_once()
    day = org_day("UTC", at_ms)
    totals = await metering.read_totals(before.scope_key, [PREMIUM], day)
    assert totals[PREMIUM].requests == 8
