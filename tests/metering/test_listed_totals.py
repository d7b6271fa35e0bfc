"""Partitions with totals are listed as long as the totals in them."""

from metering.conftest import a_policy
from pricekeeper.metering.items import RETENTION_DAYS, day_expires_at_epoch, partitions_query
from pricekeeper.metering.ranges import RangeReader
from pricekeeper.metering.totals import StoredTotals
from pricekeeper.storage import Store
from stores import ShiftedClock


async def test_an_older_day_does_not_shorten_the_list(store: Store) -> None:
    """A late record of yesterday comes after today's, from a process that knows nothing of it."""
    org, pk = a_policy().org_id, "ORG#x#LABEL#premium"
    for day in ("20990111", "20990110", "20990112", "20990109"):
        writer = StoredTotals(store, ShiftedClock(), RETENTION_DAYS)
        await writer.enter_partition(org, pk, day, "has_days")
    (item,) = (await store.query(partitions_query(org))).items
    assert item["expires_at_epoch"] == day_expires_at_epoch("20990112")


async def test_a_partition_says_what_it_holds(store: Store) -> None:
    """A reader of days need not look where there are hours alone."""
    org, reader = a_policy().org_id, RangeReader(store, ShiftedClock())
    writer = StoredTotals(store, ShiftedClock(), RETENTION_DAYS)
    await writer.enter_partition(org, f"ORG#{org}#APP#a#LABEL#premium", "20990110", "has_hours")
    (found,) = await reader.read_partitions(org)
    assert (found.has_days, found.has_hours) == (False, True)
    await writer.enter_partition(org, f"ORG#{org}#APP#a#LABEL#premium", "20990110", "has_days")
    (found,) = await reader.read_partitions(org)
    assert (found.has_days, found.has_hours) == (True, True)
