"""The list of partitions: as long as the totals in them, and with totals of other programs."""

from metering.conftest import DAY_MS, a_policy
from pricekeeper.days import org_day
from pricekeeper.metering import Account, Aggregator
from pricekeeper.metering.account_list import AccountList
from pricekeeper.metering.items import (
    CHECKPOINT,
    RETENTION_DAYS,
    day_expires_at_epoch,
    partitions_query,
)
from pricekeeper.metering.ranges import RangeReader
from pricekeeper.metering.shards import counter_key
from pricekeeper.storage import Add, Put, Set, Store, Update
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from stores import ShiftedClock


async def test_an_older_day_does_not_shorten_the_list(store: Store) -> None:
    """A late record of yesterday comes after today's, from a process that knows nothing of it."""
    org, pk = a_policy().org_id, "ORG#x#LABEL#premium"
    for day in ("20990111", "20990110", "20990112", "20990109"):
        await AccountList(store, RETENTION_DAYS).add(org, pk, day, "has_days")
    (item,) = (await store.query(partitions_query(org))).items
    assert item["expires_at_epoch"] == day_expires_at_epoch("20990112")


async def test_a_partition_says_what_it_holds(store: Store) -> None:
    """Whoever wants days need not look where there are hours alone."""
    org, reader = a_policy().org_id, RangeReader(store, ShiftedClock())
    accounts = AccountList(store, RETENTION_DAYS)
    await accounts.add(org, f"ORG#{org}#APP#a#LABEL#premium", "20990110", "has_hours")
    (found,) = await reader.read_partitions(org)
    assert (found.has_days, found.has_hours) == (False, True)
    await accounts.add(org, f"ORG#{org}#APP#a#LABEL#premium", "20990110", "has_days")
    (found,) = await reader.read_partitions(org)
    assert (found.has_days, found.has_hours) == (True, True)


async def test_the_first_run_lists_what_the_version_before_counted(
    store: Store, clock: ShiftedClock
) -> None:
    """Also on days that its last run had done with, a moment ago."""
    policy = a_policy()
    day = org_day("UTC", clock.now_ms() - 40 * DAY_MS)
    account = Account(policy.scope_key, "premium", day)
    expires = day_expires_at_epoch(day)
    marker = f"{policy.scope_key}#LABEL#premium#SH#8"
    index = {"PK": f"ACTIVE#{day}", "SK": marker, "expires_at_epoch": expires}
    await store.put(Put(USAGE_AGG_SHARDED, index))
    actions = (Add("requests", 3), Add("cost_usd_picos", 9), Set("expires_at_epoch", expires))
    await store.update(Update(USAGE_AGG_SHARDED, counter_key(account, 2), actions))
    table, key = CHECKPOINT
    checkpoint = {"PK": key.pk, "SK": key.sk, "began_at_ms": clock.now_ms() - 60_000}
    await store.put(Put(table, checkpoint))
    await Aggregator(store, clock).run_once()
    reader = RangeReader(store, clock)
    partitions = await reader.read_partitions(policy.org_id)
    totals = await reader.read_days(partitions, day, day, 0)
    assert {one: total.requests for one, total in totals.items()} == {account: 3}
