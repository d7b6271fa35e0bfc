"""Rebuilding the totals of a day from the journal, of one organisation or of all."""

from dataclasses import replace

from metering.conftest import APP, PREMIUM, a_policy, a_usage
from minting import minted
from pricekeeper.days import org_day
from pricekeeper.metering import Aggregator, Metering
from pricekeeper.storage import Delete, Item, Key, Query, Store
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.ticks import TICK_MS
from stores import ShiftedClock


async def read_totals(store: Store, org_id: str) -> dict[str, Item]:
    page = await store.query(Query(DAILY_TOTAL, f"ORG#{org_id}#APP#{APP}#LABEL#{PREMIUM}"))
    return {item["SK"]: {**item, "rev": 0, "as_of_ms": 0} for item in page.items}


async def lose(store: Store, org_id: str) -> None:
    """Take every total of the organisation away."""
    page = await store.query(Query(DAILY_TOTAL, f"ORG#{org_id}#APP#{APP}#LABEL#{PREMIUM}"))
    for item in page.items:
        await store.delete(Delete(DAILY_TOTAL, key_of(item)))


def key_of(item: Item) -> Key:
    return Key(item["PK"], item["SK"])


async def test_lost_totals_of_a_day_come_back(
    store: Store, metering: Metering, clock: ShiftedClock
) -> None:
    """Days, hours and tags; totals of others and of other days do not change."""
    policies = [a_policy(tag_keys=("team",)) for _ in range(2)]
    day = org_day("UTC", clock.now_ms())
    for policy in policies:
        for value in ("red", "blue", "red"):
            await metering.record(policy, a_usage(minted(clock.now_ms()), tags={"team": value}))
    aggregator = Aggregator(store, clock)
    clock.shift_ms += 5 * TICK_MS
    await aggregator.run_once()
    before = [await read_totals(store, policy.org_id) for policy in policies]
    assert [len(totals) for totals in before] == [4, 4]
    assert (await aggregator.rebuild_day(day)).changes == ()
    for policy in policies:
        await lose(store, policy.org_id)
    mine, other = (policy.org_id for policy in policies)
    report = await aggregator.rebuild_day(day, mine)
    assert (report.orgs, report.failed, len(report.changes)) == (1, 0, 4)
    assert {change.org_id for change in report.changes} == {mine}
    assert await read_totals(store, other) == {}
    report = await aggregator.rebuild_day(day)
    assert (report.orgs, {change.org_id for change in report.changes}) == (2, {other})
    after = [await read_totals(store, policy.org_id) for policy in policies]
    sums = [
        [{sk: (item["requests"], item["cost_usd_picos"]) for sk, item in totals.items()}
         for totals in found]
        for found in (before, after)
    ]  # fmt: skip
    assert sums[0] == sums[1]
    assert (await aggregator.rebuild_day("20200101")).changes == ()


async def test_a_rebuild_of_an_open_day_counts_nothing_twice(
    store: Store, metering: Metering, clock: ShiftedClock
) -> None:
    """The next fold continues from the rebuilt totals, and misses nothing."""
    policy = replace(a_policy(), tag_keys=("team",))
    aggregator = Aggregator(store, clock)
    day = org_day("UTC", clock.now_ms())
    for number in range(1, 5):
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        await aggregator.rebuild_day(day)
        await metering.record(policy, a_usage(minted(clock.now_ms())))
        await aggregator.run_once()
        total = (await metering.read_totals(policy.scope_key, [PREMIUM], day))[PREMIUM]
        assert total.requests == 2 * number
        clock.shift_ms += TICK_MS
        # The open tick is closed by now: that is written, and is no change.
        assert (await aggregator.rebuild_day(day)).changes == ()
