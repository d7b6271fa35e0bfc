"""Reading totals: as aggregated in one read, or live."""

from metering.conftest import (
    LABELS,
    PREMIUM,
    STANDARD,
    MeteringMaker,
    World,
    a_policy,
    a_usage,
    today,
)
from minting import minted
from pricekeeper.metering import Aggregator, Metering
from pricekeeper.metering.counters import Account
from pricekeeper.metering.known_totals import REFRESH_MS
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy, QuotaScope
from pricekeeper.values import AppId
from stores import ShiftedClock


async def test_totals_are_one_read_and_as_old_as_they_say(world: World, meter: StoreMeter) -> None:
    """What came after the aggregation is not in them, and what came before is."""
    await world.record()
    before_ms = world.clock.now_ms()
    await world.aggregate()
    await world.record()
    meter.clear()
    totals = await world.metering.read_totals(world.policy.scope_key, LABELS, today(world.clock))

    assert meter.calls == {"batch_get": 1}
    assert list(totals) == list(LABELS)
    assert [total.requests for total in totals.values()] == [1, 0, 0]
    assert all(total.as_of_ms >= before_ms for total in totals.values())


async def test_a_quiet_scope_is_as_fresh_as_the_last_aggregation(world: World) -> None:
    """A run that found nothing new wrote nothing, but it looked."""
    await world.record()
    await world.aggregate()
    world.clock.shift_ms += 600_000
    later_ms = world.clock.now_ms()
    await world.aggregate()
    (total,) = (
        await world.metering.read_totals(world.policy.scope_key, [PREMIUM], today(world.clock))
    ).values()
    assert total.requests == 1
    assert total.as_of_ms >= later_ms


async def test_a_day_without_usage_is_nothing(metering: Metering, policy: Policy) -> None:
    """Not an error."""
    for live in (False, True):
        totals = await metering.read_totals(policy.scope_key, LABELS, "20200101", live=live)
        assert [total.requests for total in totals.values()] == [0, 0, 0]


async def test_an_organisation_is_the_sum_of_its_apps_and_lists_them(world: World) -> None:
    """Only its own; also on labels not asked for."""
    one = a_policy(AppId("one"))
    two = a_policy(AppId("two"), org_id=one.org_id)
    for policy, label in ((one, PREMIUM), (two, PREMIUM), (two, PREMIUM), (two, STANDARD)):
        await world.metering.record(policy, a_usage(model_label=label))
    await world.metering.record(a_policy(), a_usage())
    await world.aggregate()
    found = await world.metering.reader.read_org(one.org_id, [PREMIUM], today(world.clock))
    assert {label: total.requests for label, total in found.total.items()} == {
        PREMIUM: 3,
        STANDARD: 1,
    }
    assert {
        app: {label: total.requests for label, total in totals.items()}
        for app, totals in found.apps.items()
    } == {"one": {PREMIUM: 1}, "two": {PREMIUM: 2, STANDARD: 1}}


async def test_a_change_of_the_quota_scope_during_the_day_loses_nothing(world: World) -> None:
    """Both the organisation's and its apps' records are its own."""
    before = a_policy(quota_scope=QuotaScope.ORG)
    after = a_policy(quota_scope=QuotaScope.APP, org_id=before.org_id)
    for policy in (before, before, after):
        await world.metering.record(policy, a_usage())
    await world.aggregate()
    found = await world.metering.reader.read_org(before.org_id, LABELS, today(world.clock))
    assert found.total[PREMIUM].requests == 3
    assert found.total[STANDARD].requests == 0
    assert [totals[PREMIUM].requests for totals in found.apps.values()] == [1]


async def test_an_organisation_made_anew_with_more_shards_keeps_what_it_had(world: World) -> None:
    """It reads as many lanes as were ever used, and none of them twice."""
    few = a_policy(agg_shard_count=8)
    many = a_policy(agg_shard_count=64, org_id=few.org_id)
    for _ in range(20):
        await world.metering.record(few, a_usage(minted(world.clock.now_ms())))
        await world.metering.record(many, a_usage(minted(world.clock.now_ms())))
        await world.metering.record(many, a_usage())
    await world.aggregate()
    for live in (True, False):
        totals = await world.metering.read_totals(
            few.scope_key, [PREMIUM], today(world.clock), live=live
        )
        assert totals[PREMIUM].requests == 60


async def test_the_answers_total_catches_up_with_the_other_instances(
    world: World, new_metering: MeteringMaker
) -> None:
    """A newer total is read beside the answers now and then, and never for each of them."""
    other = new_metering(world.store, world.clock)
    await world.record()
    for _ in range(3):
        await other.record(world.policy, a_usage())
    assert (await world.record()).daily_total.requests == 2  # type: ignore[union-attr]
    await world.aggregate()

    fresh = new_metering(world.store, world.clock)  # has nothing to be stale
    assert (await fresh.record(world.policy, a_usage())).daily_total.requests == 6  # type: ignore[union-attr]


async def test_a_stale_total_is_read_again_beside_the_answer(
    world: World, new_metering: MeteringMaker
) -> None:
    """The record that finds it stale does not wait; those after the read have the newer one."""

    class Later(ShiftedClock):
        __slots__ = ()

        def monotonic_ms(self) -> int:
            return super().monotonic_ms() + self.shift_ms

    later = Later()
    later.shift_ms = world.clock.shift_ms
    metering, other = new_metering(world.store, later), new_metering(world.store, later)
    await metering.record(world.policy, a_usage())
    for _ in range(3):
        await other.record(world.policy, a_usage())
    await Aggregator(world.store, later).run_once()
    later.shift_ms += REFRESH_MS
    stale = (await metering.record(world.policy, a_usage())).daily_total
    await metering.close()  # waits for the read
    assert stale is not None
    assert stale.requests in (2, 5)
    running = metering._totals.total(Account(world.policy.scope_key, PREMIUM, today(later)))
    assert running is not None
    assert running.requests == 5


async def test_a_clock_that_is_ahead_makes_no_total_complete_in_the_future(
    world: World, new_metering: MeteringMaker
) -> None:
    """An answer contains its own record even if the aggregator's clock is ahead."""
    await new_metering(world.store, world.clock).record(world.policy, a_usage())
    ahead = ShiftedClock()
    ahead.shift_ms = world.clock.shift_ms + 600_000
    await Aggregator(world.store, ahead).run_once()
    metering = new_metering(world.store, world.clock)
    for requests in (2, 3):
        total = (await metering.record(world.policy, a_usage())).daily_total
        assert total is not None
        assert total.requests == requests
        assert total.as_of_ms <= world.clock.now_ms()


async def test_one_read_serves_all_who_have_no_total_yet(world: World, meter: StoreMeter) -> None:
    """A batch on three labels asks for three totals at once."""
    usages = [a_usage(model_label=label) for label in LABELS]
    answers = await world.metering.record_many(world.policy, usages)
    assert meter.calls["batch_get"] == 1
    assert [getattr(answer, "daily_total").requests for answer in answers] == [1, 1, 1]  # noqa: B009
