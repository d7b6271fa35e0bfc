"""Selecting a model, on every store: the answer, the scopes, and what an operator can do."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from attribution import BY
from pricekeeper.errors import FrozenError, QuotaExceededError, UnknownModelLabelError
from pricekeeper.metering import Metering, Usage
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import Reason
from pricekeeper.tenants import Freeze, QuotaScope
from selection.conftest import CATALOGUE, NOON_MS, GatedStore, World
from selection.policies import ECONOMY, PREMIUM, QUOTAS, STANDARD, TURBO, policy

MIDNIGHT_MS = NOON_MS + 12 * 3_600_000
BEYOND_ANY_CACHE_MS = 5_000


async def test_a_normal_day(world: World) -> None:
    """The first model, with all fields of the answer."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 123})

    decision = await world.instance().select(mine)

    assert (decision.label, decision.choice.reason) == (PREMIUM, Reason.NORMAL)
    assert decision.model is not None
    assert decision.model.bedrock_model_id == "anthropic.claude-premium-20300101-v1:0"
    assert decision.prices is not None
    assert decision.prices.source == "config"
    assert decision.choice.chosen is not None
    assert decision.choice.chosen.spend_usd_micros == 123
    assert decision.choice.chosen.quota_pct_hundredths == 12_30
    assert decision.org_day == "20300115"
    assert decision.checked_at_ms == NOON_MS
    assert decision.resets_at_ms == MIDNIGHT_MS
    assert await world.sticky_item(mine) == {}


async def test_a_frozen_client_gets_no_model(world: World) -> None:
    """Neither from the cache nor by a forced check; its numbers are still shown."""
    mine, selection = policy(client=world.app), world.instance()
    await world.spend(mine, {PREMIUM: 123})
    assert (await selection.select(mine)).label == PREMIUM
    frozen = replace(mine, freeze=Freeze("APP", "leaked", 7))

    for force_check in (False, True):
        with pytest.raises(FrozenError, match="the app is frozen: leaked"):
            await selection.select(frozen, force_check=force_check)

    assert (await selection.assess(frozen)).label == PREMIUM
    assert (await selection.select(mine)).label == PREMIUM


async def test_a_flip_is_recorded_as_the_schema_says(world: World) -> None:
    """The item has the attributes of the schema document, and the labels that were given up."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})

    decision = await world.instance().select(mine)

    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert decision.choice.sticky_fallback_active
    assert await world.sticky_item(mine) == {
        "PK": f"ORG#{world.app.org_id}#APP#{world.app.app_id}",
        "SK": "DAY#20300115",
        "active_model_label": "standard",
        "active_model_index": 1,
        "reason": "QUOTA_EXCEEDED",
        "previous_model_label": "premium",
        "activated_at_epoch": NOON_MS // 1000,
        "given_up_model_labels": frozenset({"premium"}),
        "given_up_quota.premium": 1_000,
        "expires_at_epoch": MIDNIGHT_MS // 1000 + 35 * 86_400,
    }


async def test_a_flip_holds_for_everybody_until_midnight(world: World) -> None:
    """Another instance follows it, for any totals that it sees."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    await world.instance().select(mine)

    decision = await world.instance().select(mine)
    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.STICKY_FALLBACK)

    world.clock.advance_ms(MIDNIGHT_MS - world.clock.now_ms() - 1)
    assert (await world.instance().select(mine)).label == STANDARD
    world.clock.advance_ms(1)
    decision = await world.instances[0].select(mine)
    assert (decision.label, decision.choice.reason) == (PREMIUM, Reason.NORMAL)
    assert decision.org_day == "20300116"


async def test_a_higher_quota_brings_a_label_back(world: World) -> None:
    """At every instance that knows of it, and the same one as before does not."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    await world.instance().select(mine)

    raised = policy(client=world.app, quotas={**QUOTAS, PREMIUM: 1_001})
    for instance in (*world.instances, world.instance()):
        assert (await instance.select(raised)).label == PREMIUM
        assert (await instance.select(mine)).label == STANDARD


async def test_when_all_is_spent_the_error_says_how_much_and_until_when(world: World) -> None:
    """It names every label, and the next local midnight."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000, STANDARD: 600, ECONOMY: 200})
    instance = world.instance()

    with pytest.raises(QuotaExceededError, match="premium is exhausted") as caught:
        await instance.select(mine)

    assert caught.value.models == {"premium": 100_00, "standard": 120_00, "economy": 100_00}
    assert caught.value.resets_at_ms == MIDNIGHT_MS
    assert (await instance.assess(mine)).label is None
    assert instance.meter.decisions == {"EXHAUSTED": 1}


async def test_without_sticky_fallback_nothing_is_written(world: World) -> None:
    """It follows the totals, and a raised quota counts at once."""
    free = policy(client=world.app, sticky=False)
    await world.spend(free, {PREMIUM: 1_000})

    assert (await world.instance().select(free)).label == STANDARD
    assert await world.sticky_item(free) == {}
    raised = replace(free, quotas={**QUOTAS, PREMIUM: 1_001})
    assert (await world.instance().select(raised)).label == PREMIUM


# -- scopes --------------------------------------------------------------------------------


async def test_under_org_scope_all_apps_share_one_fallback(world: World) -> None:
    """What one world.app finds exceeded, the other no longer uses."""
    one = policy(client=world.app, scope=QuotaScope.ORG)
    other = policy(client=world.other_app, scope=QuotaScope.ORG)
    await world.spend(one, {PREMIUM: 1_000})
    await world.instance().select(one)

    assert (await world.instance().select(other)).choice.reason is Reason.STICKY_FALLBACK
    assert (await world.sticky_item(one))["PK"] == f"ORG#{world.org.org_id}"


async def test_under_app_scope_every_app_is_on_its_own(world: World) -> None:
    """One world.app's spend and fallback are nothing to the other."""
    await world.spend(policy(client=world.app), {PREMIUM: 1_000})

    assert (await world.instance().select(policy(client=world.app))).label == STANDARD
    assert (await world.instance().select(policy(client=world.other_app))).label == PREMIUM


async def test_apps_with_different_orders_share_what_was_given_up(world: World) -> None:
    """Each goes its own way through the labels that are left, and every step is recorded."""
    one = policy(client=world.app, scope=QuotaScope.ORG)
    other = policy(
        client=world.other_app, scope=QuotaScope.ORG, ordering=(TURBO, STANDARD, ECONOMY)
    )
    await world.spend(one, {PREMIUM: 1_000, TURBO: 100})
    assert (await world.instance().select(one)).label == STANDARD
    assert (await world.instance().select(other)).label == STANDARD

    await world.spend(one, {STANDARD: 500})
    assert (await world.instance().select(other)).label == ECONOMY
    decision = await world.instance().select(one)
    assert (decision.label, decision.choice.reason) == (ECONOMY, Reason.STICKY_FALLBACK)
    item = await world.sticky_item(one)
    assert item["given_up_model_labels"] == {"premium", "turbo", "standard"}
    assert item["active_model_label"] == "economy"
    assert world.flips() == 3


# -- overrides -----------------------------------------------------------------------------


async def test_an_override_counts_at_once_here_and_soon_elsewhere(world: World) -> None:
    """It may go back to a label that was given up."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    here, elsewhere = world.instance(), world.instance()
    await here.select(mine)
    await elsewhere.select(mine)

    await here.set_override(mine, PREMIUM, BY)

    decision = await here.select(mine)
    assert (decision.label, decision.choice.reason) == (PREMIUM, Reason.MANUAL_OVERRIDE)
    assert decision.choice.sticky_fallback_active
    world.clock.advance_ms(BEYOND_ANY_CACHE_MS)
    assert (await elsewhere.select(mine)).label == PREMIUM


async def test_after_an_override_the_automatic_decision_resumes_where_it_was(world: World) -> None:
    """Never behind the furthest flip of the day."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    here = world.instance()
    await here.select(mine)
    await here.set_override(mine, PREMIUM, BY)

    assert await here.clear_override(mine, BY)

    decision = await here.select(mine)
    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.STICKY_FALLBACK)
    assert not await here.clear_override(mine, BY)


async def test_a_flip_and_an_override_do_not_destroy_each_other(world: World) -> None:
    """Each has its own attributes: a flip under an override is still there when it is cleared."""
    mine = policy(client=world.app)
    gate = GatedStore(world.store)
    here, unaware = world.instance(), world.instance(gate)
    await world.spend(mine, {PREMIUM: 1_000})
    flipping = asyncio.create_task(unaware.select(mine))
    await gate.reached.wait()
    await here.set_override(mine, ECONOMY, BY)
    gate.opened.set()

    assert (await flipping).label == STANDARD
    assert (await here.select(mine)).label == ECONOMY
    await here.clear_override(mine, BY)
    assert (await here.select(mine)).choice.reason is Reason.STICKY_FALLBACK


async def test_an_override_without_a_flip_leaves_the_first_flip_possible(world: World) -> None:
    """An item with nothing but an override in it counts as no record."""
    mine = policy(client=world.app)
    here = world.instance()
    await here.set_override(mine, ECONOMY, BY)
    await here.clear_override(mine, BY)
    await world.spend(mine, {PREMIUM: 1_000})

    decision = await here.select(mine)

    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert world.flips() == 1


async def test_an_override_ends_with_the_day(world: World) -> None:
    """The next day is decided by its own totals."""
    mine = policy(client=world.app)
    here = world.instance()
    await here.set_override(mine, ECONOMY, BY)

    world.clock.advance_ms(MIDNIGHT_MS - world.clock.now_ms() - 1)
    assert (await here.select(mine)).label == ECONOMY
    world.clock.advance_ms(1)
    assert (await here.select(mine)).label == PREMIUM


@pytest.mark.parametrize("scope", list(QuotaScope))
async def test_an_organisations_override_is_for_all_its_apps_that_have_none(
    world: World, scope: QuotaScope
) -> None:
    """The more particular one counts first, under either scope."""
    whole, one = policy(client=world.org, scope=scope), policy(client=world.app, scope=scope)
    other = policy(client=world.other_app, scope=scope)
    here = world.instance()
    assert [(await here.select(each)).label for each in (one, other)] == [PREMIUM, PREMIUM]

    await here.set_override(whole, STANDARD, BY)
    assert [(await here.select(each)).label for each in (one, other)] == [STANDARD, STANDARD]
    await here.set_override(one, ECONOMY, BY)
    assert [(await here.select(each)).label for each in (one, other)] == [ECONOMY, STANDARD]
    await here.clear_override(whole, BY)
    assert [(await here.select(each)).label for each in (one, other)] == [ECONOMY, PREMIUM]


async def test_an_override_names_a_label_of_the_ordering_that_has_a_model(world: World) -> None:
    """Others the world.app has never been allowed, or the deployment can't call."""
    mine = policy(client=world.app, ordering=("lost", PREMIUM, STANDARD))
    here = world.instance()

    for label in ("lost", ECONOMY, "unheard-of"):
        with pytest.raises(UnknownModelLabelError) as caught:
            await here.set_override(mine, label, BY)
    assert caught.value.valid_labels == ("lost", "premium", "standard")
    assert await world.sticky_item(mine) == {}


async def test_clearing_what_another_instance_has_cleared_counts_here_at_once(world: World) -> None:
    """Though there was nothing left to clear."""
    mine = policy(client=world.app)
    here, elsewhere = world.instance(), world.instance()
    await here.set_override(mine, ECONOMY, BY)
    assert (await here.select(mine)).label == ECONOMY
    await elsewhere.clear_override(mine, BY)

    assert not await here.clear_override(mine, BY)

    assert (await here.select(mine)).label == PREMIUM


async def test_an_override_whose_label_left_the_ordering_binds_nobody(world: World) -> None:
    """The automatic decision continues."""
    here = world.instance()
    await here.set_override(policy(client=world.app), PREMIUM, BY)

    decision = await here.select(policy(client=world.app, ordering=(STANDARD, ECONOMY)))

    assert (decision.label, decision.choice.reason) == (STANDARD, Reason.NORMAL)


# -- looking closely, and telling ------------------------------------------------------------


async def test_force_check_sums_the_counters_and_flips(world: World) -> None:
    """Usage that no aggregator has seen counts, for this caller and, by the flip, for all."""
    mine = policy(client=world.app, quotas={**QUOTAS, PREMIUM: 30})
    here, elsewhere = world.instance(), world.instance()
    assert (await here.select(mine)).label == PREMIUM
    metering = Metering(world.store, world.clock, PriceBook(world.store, world.clock, CATALOGUE))
    usage = Usage(
        request_id=str(uuid.uuid4()), model_label=PREMIUM, input_tokens=10, output_tokens=0
    )
    await metering.record(mine, usage)
    await metering.close()

    assert (await here.select(mine)).label == PREMIUM
    decision = await here.select(mine, force_check=True)
    assert (decision.label, decision.live) == (STANDARD, True)
    assert decision.choice.quotas[0].spend_usd_micros == 30
    assert (await here.select(mine)).label == STANDARD
    assert (await elsewhere.select(mine)).choice.reason is Reason.STICKY_FALLBACK


async def test_a_change_is_told_once(world: World) -> None:
    """Not at every request, and a day that begins as usual is no news."""
    mine = policy(client=world.app)
    here = world.instance()
    with capture_logs() as logs:
        await here.select(mine)
        await world.spend(mine, {PREMIUM: 1_000})
        for _ in range(3):
            world.clock.advance_ms(BEYOND_ANY_CACHE_MS)
            await here.select(mine)
        world.clock.advance_ms(MIDNIGHT_MS - world.clock.now_ms())
        await here.select(mine)

    assert [(log["event"], log["from_label"], log["to_label"]) for log in logs] == [
        ("sticky_flip", PREMIUM, STANDARD),
        ("selection_changed", PREMIUM, STANDARD),
        ("selection_changed", STANDARD, PREMIUM),
    ]
    assert "premium is exhausted: 100.00 % of its quota is spent" in logs[1]["explanation"]


async def test_an_override_is_told_even_if_the_label_stays(world: World) -> None:
    """From now on another rule decides."""
    mine = policy(client=world.app)
    here = world.instance()
    await here.select(mine)

    with capture_logs() as logs:
        await here.set_override(mine, PREMIUM, BY)
        await here.select(mine)

    logs = [log for log in logs if log["event"] != "audit"]
    assert [log["event"] for log in logs] == ["override_set", "selection_changed"]
    assert logs[1]["reason"] == "MANUAL_OVERRIDE"


async def test_an_instance_that_starts_on_a_fallback_says_so(world: World) -> None:
    """Its log alone explains what it recommends."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    await world.instance().select(mine)

    with capture_logs() as logs:
        await world.instance().select(mine)

    assert [(log["event"], log["reason"]) for log in logs] == [
        ("selection_changed", "STICKY_FALLBACK")
    ]
