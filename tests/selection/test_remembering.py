"""What is cached, for how long, and what a command expires."""

import asyncio
import uuid
from datetime import date

import pytest

from attribution import BY
from pricekeeper.metering import Usage
from pricekeeper.pricing.items import StatedPrices, price_item
from pricekeeper.pricing.prices import PriceTable, RateCard
from pricekeeper.selection.fallback import LabelRole, Reason, StickyState, choose
from pricekeeper.storage import Put
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import StoreMeter
from selection.conftest import CATALOGUE, NOON_MS, GatedStore, SettableClock, World
from selection.policies import ECONOMY, LABELS, PREMIUM, QUOTAS, STANDARD, policy

STALENESS_MS = 5_000


async def test_age_is_counted_from_when_the_reads_began(world: World) -> None:
    """A decision that took four seconds is four seconds old when it is made."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    gate = GatedStore(world.store)
    instance = world.instance(gate)
    deciding = asyncio.create_task(instance.select(mine))
    await gate.reached.wait()
    world.clock.advance_ms(STALENESS_MS - 1)
    gate.opened.set()
    slow = await deciding

    assert await instance.select(mine) is slow
    world.clock.advance_ms(1)
    assert await instance.select(mine) is not slow


async def test_what_this_process_has_seen_spent_is_not_recommended(world: World) -> None:
    """Also while the decision is cached and no aggregation has run."""
    mine = policy(client=world.app)
    instance = world.instance()
    first = await instance.select(mine)
    usage = Usage(
        request_id=str(uuid.uuid4()), model_label=PREMIUM, input_tokens=0, output_tokens=100_000
    )
    await world.meterings[-1].record(mine, usage)  # far more than the quota
    world.clock.advance_ms(1_000)
    assert first.label == PREMIUM
    assert (await instance.select(mine)).label == STANDARD


async def test_a_command_about_one_app_leaves_the_others_warm(
    world: World, meter: StoreMeter
) -> None:
    """Only the affected decisions are made again."""
    one, other = policy(client=world.app), policy(client=world.other_app)
    instance = world.instance()
    first = await instance.select(other)
    await instance.select(one)
    await instance.set_override(one, ECONOMY, BY)
    meter.clear()

    assert await instance.select(other) is first
    assert not meter.calls
    assert (await instance.select(one)).label == ECONOMY


async def test_a_cleared_override_leaves_the_fallback_as_it_was(world: World) -> None:
    """Every attribute of it; only the number of commands stays behind."""
    mine = policy(client=world.app)
    await world.spend(mine, {PREMIUM: 1_000})
    instance = world.instance()
    await instance.select(mine)
    before = await world.sticky_item(mine)

    await instance.set_override(mine, PREMIUM, BY)
    await instance.clear_override(mine, BY)

    assert await world.sticky_item(mine) == {**before, "override_version": 2}


async def test_an_override_alone_is_kept_as_long_as_a_fallback(world: World) -> None:
    """But for its history, which is kept as long as that of a fallback."""
    mine = policy(client=world.app)
    override = await world.instance().set_override(mine, ECONOMY, BY)

    assert await world.sticky_item(mine) == {
        "PK": mine.scope_key,
        "SK": "DAY#20300115",
        "override_model_label": ECONOMY,
        "override_activated_at_epoch": override.activated_at_epoch,
        "override_version": 1,
        "override_incarnation": mine.incarnation,
        "expires_at_epoch": NOON_MS // 1000 + 12 * 3600 + 35 * 86_400,
    }


def test_a_quota_taken_away_is_what_is_told_of_a_label_that_was_given_up() -> None:
    """It has no quota now."""
    sticky = StickyState(STANDARD, 1, PREMIUM, 0, frozenset({PREMIUM}))
    choice = choose(policy(quotas={**QUOTAS, PREMIUM: 0}), LABELS, {PREMIUM: 1_000}, sticky)

    assert choice.quotas[0].role is LabelRole.DISABLED
    assert (choice.label, choice.reason) == (STANDARD, Reason.NORMAL)
    assert choice.sticky_fallback_active


@pytest.mark.parametrize(
    ("zone", "now", "day"),
    [
        ("Pacific/Kiritimati", "2030-07-01T12:00:00Z", date(2030, 7, 2)),
        ("Etc/GMT+12", "2030-08-02T06:00:00Z", date(2030, 8, 1)),
    ],
)
async def test_the_prices_told_are_those_of_the_organisations_day(
    world: World, clock: SettableClock, zone: str, now: str, day: date
) -> None:
    """In the far east it is tomorrow, in the far west still yesterday."""
    clock.set(now)
    mine = policy(client=world.app, timezone=zone, ordering=(ECONOMY,))
    stated = StatedPrices(
        table=PriceTable(default=RateCard(input=7, output=11)),
        source=zone,
        fetched_at_epoch=world.clock.now_ms() // 1000,
    )
    await world.store.put(Put(PRICING_CACHE, price_item(CATALOGUE.model(ECONOMY), day, stated)))

    decision = await world.instance().select(mine)

    assert decision.prices is not None
    assert decision.prices.source == f"pricing-cache:{zone}"
