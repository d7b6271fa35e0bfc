"""Prices as values: how they are scaled, laid over each other, and told apart."""

import hashlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.pricing import Prices
from pricekeeper.pricing.catalogue import VariantPricing
from pricekeeper.pricing.prices import (
    PriceTable,
    RateCard,
    Step,
    ceil_price,
    digest,
    flattened,
    laid_over,
    scaled,
    usd_price,
)
from pricing.conftest import CARD, a_model, a_step, card


@given(st.integers(0, 10**10), st.integers(1, 100_000))
def test_a_fraction_is_rounded_up_by_less_than_one(price: int, permille: int) -> None:
    """Never less than the exact fraction, and less than a micro-dollar per million above it."""
    rounded = ceil_price(price * permille, 1000)

    assert 0 <= rounded * 1000 - price * permille < 1000


def test_scaling_multiplies_every_known_price() -> None:
    """Steps as well; what is unknown stays unknown, and a threshold is not a price."""
    stated = card(3_000_000, 15_000_001, steps=(a_step(200_000, 6_000_000, 22_500_000),))

    assert scaled(stated, 500) == card(
        1_500_000, 7_500_001, steps=(a_step(200_000, 3_000_000, 11_250_000),)
    )


def test_laying_over_fills_only_the_gaps() -> None:
    """What the upper card says counts; what it does not say is taken from below."""
    above = RateCard(input=1, cache_read=0)

    assert laid_over(CARD, above) == card(1, 15_000_000, 0, 3_750_000, 6_000_000)


def test_steps_are_one_statement() -> None:
    """A card with steps replaces all of them; only gaps within the same step are filled."""
    below = RateCard(long_context=(a_step(100_000, 1, 2, 3), a_step(200_000, 4, 5)))
    above = RateCard(long_context=(a_step(100_000, 10, 20), a_step(272_000, 30, 40)))

    assert laid_over(below, above).long_context == (
        a_step(100_000, 10, 20, 3),
        a_step(272_000, 30, 40),
    )
    assert laid_over(below, card(9)).long_context == below.long_context


def test_a_multiplier_follows_the_price_that_was_stated() -> None:
    """Half of the default is half of what the default is now, unless the source says it itself."""
    model = a_model(
        flex=VariantPricing(multiplier_permille=500), batch=VariantPricing(pricing=card(7, 8))
    )
    stated = PriceTable(default=card(2_000_000, 10_000_000), flex=RateCard(output=1))

    table = model.table(stated)

    assert table.default == card(2_000_000, 10_000_000, 300_000, 3_750_000, 6_000_000)
    assert table.flex is not None
    assert (table.flex.input, table.flex.output, table.flex.cache_read) == (1_000_000, 1, 150_000)
    assert table.batch == card(7, 8)
    assert table.priority is None


def test_a_variant_that_only_the_source_knows_is_priced() -> None:
    """Nothing is below it, so it is as the source says."""
    stated = PriceTable(default=RateCard(), priority=card(5, 6))

    assert a_model().table(stated).priority == card(5, 6)


def test_the_version_is_the_content() -> None:
    """The same prices have one version from any source, and no other prices have it."""
    table = a_model().table()

    assert Prices.of(table, "config").version == Prices.of(table, "pricing-cache:x").version
    seen = {digest(table)}
    for changed in (
        PriceTable(default=card(3_000_001, 15_000_000)),
        PriceTable(default=card(3_000_000, 15_000_000)),
        PriceTable(default=CARD, batch=CARD),
        PriceTable(default=CARD, flex=CARD),
    ):
        assert digest(changed) not in seen
        seen.add(digest(changed))


def test_the_version_does_not_change_between_releases() -> None:
    """It is kept in receipts, so how it is computed is part of the promise."""
    table = PriceTable(default=card(3_000_000, 15_000_000))

    text = (
        b'{"default":{"input_price_usd_micros_per_1m":3000000,'
        b'"output_price_usd_micros_per_1m":15000000}}'
    )
    assert digest(table) == hashlib.sha256(text).hexdigest()[:16] == "60f657e92b9a020e"


def test_reports_name_each_price() -> None:
    """Variant, step and kind of token."""
    table = PriceTable(
        default=card(1, 2), flex=RateCard(long_context=(Step(over_input_tokens=200_000, output=3),))
    )

    assert flattened(table) == {
        "default.input": 1,
        "default.output": 2,
        "flex.over_200000.output": 3,
    }


@pytest.mark.parametrize(
    ("usd", "per_tokens", "micros"),
    [
        ("0.0030000000", 1_000, 3_000_000),
        ("0.0000087500", 1_000, 8_750),
        ("0.000126175", 1_000, 126_175),
        ("5.5", 1_000_000, 5_500_000),
        (Decimal("0.1375"), 1_000_000, 137_500),
        ("0", 1_000, 0),
        ("0.0000000005", 1_000, 1),
    ],
)
def test_a_sources_dollars_become_micros_per_million(
    usd: str | Decimal, per_tokens: int, micros: int
) -> None:
    """Exactly, and what is finer than a micro-dollar per million is rounded up."""
    assert usd_price(usd, per_tokens) == micros


@pytest.mark.parametrize("usd", ["", "free", "-1", "nan", "inf", "1/0", Decimal("NaN")])
def test_what_is_no_price_is_refused(usd: str | Decimal) -> None:
    """Nothing is made of it."""
    with pytest.raises(ValueError, match=r"is no price|is negative"):
        usd_price(usd, 1_000)
