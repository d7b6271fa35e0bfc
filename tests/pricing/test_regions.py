"""Prices differ by region: a source that does not know the region may not change a stated price."""

import uuid
from datetime import date
from pathlib import Path

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.pricing import PriceBook
from pricekeeper.pricing.items import price_key
from pricekeeper.pricing.model_ids import GEOGRAPHIES
from pricekeeper.pricing.prices import Step
from pricekeeper.pricing.refresh import check, refresh
from pricekeeper.pricing.regions import knows_regions, region_mismatch
from pricekeeper.pricing.sources.aws_price_list import OFFERS, AwsPriceList
from pricekeeper.pricing.sources.genai import GenaiPrices
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricing.conftest import Quotes, a_catalogue, a_model, card, quoted

OFFER_FILES = [str(Path(__file__).parent / "data" / f"{offer}.json") for offer in OFFERS]
EU_NOVA_PRO = card(1_050_000, 4_200_000)


@pytest.mark.parametrize("model_id", ["eu.amazon.nova-pro-v1:0", "amazon.nova-pro-v1:0"])
async def test_a_stated_european_price_stays(
    store: Store, time: ManualClock, day: date, model_id: str
) -> None:
    """The package has the price of the United States only, 0.80 and 3.20 dollars."""
    pytest.importorskip("genai_prices", reason="the extra 'prices' is not installed")
    model = a_model(bedrock_model_id=model_id, default_pricing=EU_NOVA_PRO)
    book = PriceBook(store, time, a_catalogue(model))

    await book.refresh(GenaiPrices())

    prices = await book.find_prices(model, day)
    assert prices.table.default == EU_NOVA_PRO
    assert prices.source == "config"


async def test_a_refresh_says_what_it_left_alone_and_why(store: Store, time: ManualClock) -> None:
    """With what the source has instead; the same by a check, which writes nothing anyway."""
    pytest.importorskip("genai_prices", reason="the extra 'prices' is not installed")
    european = a_model(
        label="european", bedrock_model_id="eu.amazon.nova-pro-v1:0", default_pricing=EU_NOVA_PRO
    )
    bare = a_model(
        label="bare", bedrock_model_id="amazon.nova-pro-v1:0", default_pricing=EU_NOVA_PRO
    )
    profile = "arn:aws:bedrock:eu-west-1:111122223333:application-inference-profile/abcd"
    named = a_model(
        label="named",
        bedrock_model_id=profile,
        priced_as="amazon.nova-pro-v1:0",
        default_pricing=EU_NOVA_PRO,
    )
    listed = a_model(label="listed", bedrock_model_id="anthropic.claude-opus-5-5")
    catalogue = a_catalogue(european, bare, named, listed)

    refreshed = await refresh(store, time, catalogue, GenaiPrices())
    checked = await check(time, catalogue, GenaiPrices())

    assert refreshed.left_alone == checked.left_alone
    reasons = {str(one.label): one.reason for one in refreshed.left_alone}
    assert "eu. is billed at the rate of the region" in reasons["european"]
    assert "the file has other prices" in reasons["bare"]
    assert "names the region eu-west-1" in reasons["named"]
    assert "lists it with regional prices" in reasons["listed"]
    assert all("does not know regions" in reason for reason in reasons.values())
    assert [
        (change.price, change.old, change.new) for change in refreshed.left_alone[0].differing
    ] == [("default.input", 1_050_000, 800_000), ("default.output", 4_200_000, 3_200_000)]
    assert (refreshed.updated, checked.differing) == ((), ())


async def test_a_gap_is_filled_where_the_rest_agrees(
    store: Store, time: ManualClock, day: date
) -> None:
    """The file has no price for cached tokens; what it has is what the source has."""
    bare = a_model(
        bedrock_model_id=f"amazon.nova-{uuid.uuid4().hex}", default_pricing=card(800_000, 3_200_000)
    )
    book = PriceBook(store, time, a_catalogue(bare))
    source = Quotes(
        {"premium": quoted(input=800_000, output=3_200_000, cache_read=200_000)}, "genai-prices-9"
    )

    report = await book.refresh(source)

    prices = await book.find_prices(bare, day)
    assert prices.table.default.cache_read == 200_000
    assert prices.source == "pricing-cache:genai-prices-9"
    assert [update.label for update in report.updated] == ["premium"] * 3


async def test_nothing_is_written_where_there_is_no_gap(store: Store, time: ManualClock) -> None:
    """The file says all that the source says."""
    bare = a_model(bedrock_model_id=f"amazon.nova-{uuid.uuid4().hex}")
    source = Quotes({"premium": quoted()}, "genai-prices-9")

    report = await refresh(store, time, a_catalogue(bare), source)

    assert (report.updated, report.unchanged) == ((), ("premium",))


@pytest.mark.parametrize(
    ("prefix", "source"),
    [
        *((prefix, "genai-prices-0.2.1") for prefix in ("eu.", "us.", "apac.", "global.", "")),
        ("eu.", "aws-price-list-us-east-1-2026-09-30"),
    ],
)
async def test_what_was_stored_before_does_not_count_either(
    store: Store, time: ManualClock, day: date, prefix: str, source: str
) -> None:
    """An item of today that an earlier version wrote over a stated price is not believed."""
    model = a_model(
        bedrock_model_id=f"{prefix}amazon.nova-{uuid.uuid4().hex}", default_pricing=EU_NOVA_PRO
    )
    key = price_key(model, day)
    item = {
        "PK": key.pk,
        "SK": key.sk,
        "input_price_usd_micros_per_1m": 800_000,
        "output_price_usd_micros_per_1m": 3_200_000,
        "cache_read_price_usd_micros_per_1m": 200_000,
        "source": source,
    }
    await store.put(Put(PRICING_CACHE, item))

    prices = await PriceBook(store, time, a_catalogue(model)).find_prices(model, day)

    assert (prices.table.default, prices.source) == (EU_NOVA_PRO, "config")


async def test_steps_at_other_lengths_are_other_prices(store: Store, time: ManualClock) -> None:
    """Laid over the file they would replace its steps."""
    step = {"over_input_tokens": 200_000, "input": 6_000_000, "output": 22_500_000}
    theirs = {**step, "over_input_tokens": 272_000}
    bare = a_model(
        bedrock_model_id=f"amazon.nova-{uuid.uuid4().hex}",
        default_pricing=card(3_000_000, 15_000_000, steps=(Step(**step),)),
    )
    source = Quotes({"premium": quoted(long_context=(Step(**theirs),))}, "genai-prices-9")

    report = await refresh(store, time, a_catalogue(bare), source)

    assert [one.label for one in report.left_alone] == ["premium"]


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("genai-prices", False),
        ("genai-prices-0.2.1", False),
        ("genai-pricesless", True),
        ("aws-price-list-eu-west-1-2026-09-30", True),
        ("unnamed", True),
    ],
)
def test_which_sources_know_regions(source: str, *, known: bool) -> None:
    """By the name that is stored beside a price."""
    assert knows_regions(source) is known


@pytest.mark.parametrize(
    ("model_id", "region", "callable_there"),
    [
        ("eu.amazon.nova-pro-v1:0", "us-east-1", False),
        ("eu.amazon.nova-pro-v1:0", "eu-central-1", True),
        ("us.amazon.nova-pro-v1:0", "us-gov-west-1", False),
        ("us-gov.amazon.nova-pro-v1:0", "us-gov-west-1", True),
        ("us.amazon.nova-pro-v1:0", "ca-central-1", True),
        ("in.amazon.nova-pro-v1:0", "ap-southeast-1", False),
        ("apac.amazon.nova-pro-v1:0", "ap-southeast-1", True),
        ("global.amazon.nova-pro-v1:0", "sa-east-1", True),
        ("amazon.nova-pro-v1:0", "sa-east-1", True),
        ("arn:aws:bedrock:eu-west-1::foundation-model/amazon.nova-pro-v1:0", "eu-west-1", True),
        ("arn:aws:bedrock:eu-west-1::foundation-model/amazon.nova-pro-v1:0", "us-east-1", False),
    ],
)
def test_whose_price_a_list_of_one_region_has(
    model_id: str, region: str, *, callable_there: bool
) -> None:
    """A profile is billed where it is called, so a list of elsewhere says nothing about it."""
    mismatch = region_mismatch(a_model(bedrock_model_id=model_id), region)

    assert (mismatch is None) is callable_there


def test_every_geography_has_its_regions() -> None:
    """A prefix that is read but not known here would be a crash at the next refresh."""
    for geography in GEOGRAPHIES:
        region_mismatch(a_model(bedrock_model_id=f"{geography}.amazon.nova-pro-v1:0"), "eu-west-1")


async def test_a_list_of_another_region_leaves_a_profile_alone(
    store: Store, time: ManualClock
) -> None:
    """AWS's own list of us-east-1 has a price under that name, which is not the European one."""
    model = a_model(
        bedrock_model_id="eu.anthropic.claude-opus-5-5",
        price_list_names=frozenset({"Claude Opus 5.5"}),
    )

    report = await refresh(store, time, a_catalogue(model), AwsPriceList(OFFER_FILES, "us-east-1"))

    assert [one.reason for one in report.left_alone] == [
        "eu. is not called from us-east-1, whose prices the list has"
    ]
    assert report.updated == ()
