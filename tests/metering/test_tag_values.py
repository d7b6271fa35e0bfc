"""The first values of a tag have totals of their own, the others share one, for good."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from metering.conftest import MeteringMaker, a_policy, a_usage
from minting import minted
from pricekeeper.metering import Aggregator
from pricekeeper.metering.aggregation_report import Tally
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.facets import Facet, tag_sort_key
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.metering.tag_values import OTHER, VALUES_MAX, TagValues, tag_values_key
from pricekeeper.storage import Query, Set, Store, Update
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS
from stores import ShiftedClock

DAY = "20990110"


def sums(org_id: str, values: list[str], day: str = DAY) -> dict[Facet, dict[int, Counters]]:
    pk = f"ORG#{org_id}#APP#api#LABEL#premium"
    return {
        Facet(org_id, day, pk, tag_sort_key("team", day, 7, value)): {1: Counters(requests=1)}
        for value in values
    }


def requests_by_value(found: Mapping[Facet, dict[int, Counters]]) -> dict[str, int]:
    return {
        facet.tag.value: sum(part.requests for part in parts.values())
        for facet, parts in found.items()
        if facet.tag is not None
    }


def limiter(store: Store, values_max: int = 3) -> TagValues:
    return TagValues(store, RETENTION_DAYS, FoldMeter(), values_max=values_max)


async def test_values_beyond_the_first_count_as_one(store: Store) -> None:
    """Also for another aggregator that has seen others, in any order."""
    org = a_policy().org_id
    first = await limiter(store).register_values(sums(org, ["c", "a", "b", "d", "e"]), Tally())
    assert requests_by_value(first) == {"c": 1, "a": 1, "b": 1, OTHER: 2}
    again = await limiter(store).register_values(sums(org, ["e", "f", "a", ""]), Tally())
    assert requests_by_value(again) == {OTHER: 2, "a": 1, "": 1}


async def test_each_day_and_organisation_has_its_own(store: Store) -> None:
    """What is over on one day is not on the next."""
    org, values = a_policy().org_id, limiter(store)
    await values.register_values(sums(org, ["a", "b", "c", "d"]), Tally())
    tomorrow = await values.register_values(sums(org, ["d"], "20990111"), Tally())
    assert requests_by_value(tomorrow) == {"d": 1}
    other = await values.register_values(sums(a_policy().org_id, ["d"]), Tally())
    assert requests_by_value(other) == {"d": 1}


async def test_aggregators_at_one_time_agree(store: Store) -> None:
    """No more values than there may be, and each has one heading for all of them."""
    org = a_policy().org_id
    names = [[f"{number}-{one}" for one in range(4)] for number in range(4)]
    several = [limiter(store, 6) for _ in names]
    first = await asyncio.gather(
        *(
            one.register_values(sums(org, mine), Tally())
            for one, mine in zip(several, names, strict=True)
        )
    )
    everything = sums(org, [value for mine in names for value in mine])
    answers = [
        await one.register_values(everything, Tally()) for one in [*several, limiter(store, 6)]
    ]
    assert all(answer == answers[0] for answer in answers)
    assert all(found.keys() <= answers[0].keys() for found in first)
    assert len(requests_by_value(answers[0])) == 7
    assert sum(requests_by_value(answers[0]).values()) == 16


async def test_one_key_of_a_day_is_reported_once(store: Store) -> None:
    """However often it is folded."""
    org, meter = a_policy().org_id, FoldMeter()
    values = TagValues(store, RETENTION_DAYS, meter, values_max=1)
    for _ in range(3):
        await values.register_values(sums(org, ["a", "b", "c"]), Tally())
    assert meter.tags_over == 1
    await values.register_values(sums(org, ["a", "b"], "20990111"), Tally())
    assert meter.tags_over == 2


async def test_values_that_cannot_be_read_hold_up_nothing_else(store: Store) -> None:
    """The totals of that tag are omitted; the account's and the hour's are written."""
    org = a_policy().org_id
    await limiter(store).register_values(sums(org, ["a"]), Tally())
    key = tag_values_key(org, "team", DAY)
    await store.update(Update(USAGE_AGG_SHARDED, key, (Set("hashes", "strange"),)))
    account = Facet(org, DAY, f"ORG#{org}#LABEL#premium", f"DAY#{DAY}")
    tally = Tally()
    found = await limiter(store).register_values(
        {**sums(org, ["a", "b"]), account: {1: Counters(requests=2)}}, tally
    )
    assert found == {account: {1: Counters(requests=2)}}
    assert (tally.unreadable, tally.failed) == (1, 0)


async def read_totals(store: Store, policy: Policy) -> dict[str, int]:
    found: dict[str, int] = {}
    query = Query(DAILY_TOTAL, f"ORG#{policy.org_id}#APP#api#LABEL#premium", prefix="TAG#team#")
    while True:
        page = await store.query(query)
        for item in page.items:
            value = item["SK"].split("#", 4)[4]
            found[value] = found.get(value, 0) + item["requests"]
        if not page.after:
            return found
        query = Query(query.table, query.pk, prefix=query.prefix, after=page.after)


async def record(
    new_metering: MeteringMaker,
    store: Store,
    clock: ShiftedClock,
    policy: Policy,
    values: list[str],
) -> None:
    metering = new_metering(store, clock)
    for start in range(0, len(values), 100):
        usages = [
            a_usage(minted(clock.now_ms()), tags={"team": value})
            for value in values[start : start + 100]
        ]
        await metering.record_many(policy, usages)


@pytest.mark.parametrize("repeats", [1, 2])
async def test_a_thousand_values_a_day(
    store: Store, clock: ShiftedClock, new_metering: MeteringMaker, repeats: int
) -> None:
    """Counted while ticks are open, by aggregators that know nothing of each other."""
    policy: Any = a_policy(tag_keys=("team",))
    await record(new_metering, store, clock, policy, [f"v{n}" for n in range(VALUES_MAX - 5)])
    for _ in range(repeats):
        await Aggregator(store, clock).run_once()
    await record(new_metering, store, clock, policy, [f"v{n}" for n in range(990, 1010)])
    for _ in range(repeats):
        await Aggregator(store, clock).run_once()
        clock.shift_ms += TICK_MS
    aggregator = Aggregator(store, clock)
    await record(new_metering, store, clock, policy, ["v1", "v1009", "new"])
    report = await aggregator.run_once()
    assert not report.failed
    found = await read_totals(store, policy)
    assert len(found) == VALUES_MAX + 1
    assert sum(found.values()) == VALUES_MAX - 5 + 20 + 3
    assert (found["v1"], found["v992"], "new" in found) == (2, 2, False)
    assert found[OTHER] == 10 + 1 + ("v1009" not in found)
    assert aggregator.meter.tags_over == 1
