"""What a usage costs, to the pico-dollar: examples worked out by hand, and what always holds."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidValueError, UnpricedUsageError
from pricekeeper.pricing import (
    PICOS_PER_MICRO,
    TOKENS_MAX,
    Model,
    Prices,
    TokenUsage,
    charge,
    split_micros,
)
from pricekeeper.pricing.catalogue import VariantPricing
from pricekeeper.pricing.prices import RateCard, Variant
from pricing.conftest import CARD, a_model, a_step, card

LONG = a_step(200_000, 6_000_000, 22_500_000, 600_000, 7_500_000, 12_000_000)
SONNET = a_model(
    default_pricing=card(3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000, steps=(LONG,)),
    priority=VariantPricing(multiplier_permille=1750),
    flex=VariantPricing(multiplier_permille=500),
    batch=VariantPricing(multiplier_permille=500),
    reserved=VariantPricing(
        pricing=card(2_500_000, 12_500_000, steps=(a_step(200_000, 5_000_000, 18_750_000),))
    ),
)
NOVA = a_model(
    bedrock_model_id="amazon.nova-micro-v1:0",
    default_pricing=card(35_000, 140_000, 8_750, 0),
    priority=VariantPricing(multiplier_permille=1750),
    flex=VariantPricing(multiplier_permille=500),
)
GPT = a_model(
    bedrock_model_id="openai.gpt-6-sol",
    input_includes_cache_tokens=True,
    default_pricing=card(
        2_200_000,
        11_000_000,
        220_000,
        2_750_000,
        steps=(a_step(272_000, 4_400_000, 16_500_000, 440_000, 5_500_000),),
    ),
)
STEPS = a_model(
    bedrock_model_id="anthropic.claude-haiku-5-5",
    default_pricing=card(
        110_000,
        550_000,
        steps=(a_step(100_000, 550_000, 2_750_000), a_step(200_000, 1_100_000, 5_500_000)),
    ),
)
PLAIN = a_model(default_pricing=CARD)
MILLION, BILLION = 1_000_000, 1_000_000_000


def use(
    tokens_in: int = 0, out: int = 0, read: int = 0, w5m: int = 0, w1h: int = 0, **how: Any
) -> TokenUsage:
    return TokenUsage(
        input_tokens=tokens_in,
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_5m_tokens=w5m,
        cache_write_1h_tokens=w1h,
        **how,
    )


def prices_of(model: Model) -> Prices:
    return Prices.of(model.table(), "config")


def cost(model: Model, usage: TokenUsage) -> int:
    return charge(model, prices_of(model), usage).cost_usd_picos


EXAMPLES = {
    # The plain price: tokens times micro-dollars per million are pico-dollars.
    "nothing": (SONNET, use(), "0"),
    "1 in": (SONNET, use(1), "0.000003"),
    "1 out": (SONNET, use(0, 1), "0.000015"),
    "1 in, 1 out": (SONNET, use(1, 1), "0.000018"),
    "a chat turn": (SONNET, use(1000, 500), "0.0105"),
    "a million out": (SONNET, use(1, MILLION), "15.000003"),
    "10^9 out": (SONNET, use(0, BILLION), "15000"),
    # The cache: reads, and writes of two durations.
    "1 read": (SONNET, use(read=1), "0.0000003"),
    "1 write 5m": (SONNET, use(w5m=1), "0.00000375"),
    "1 write 1h": (SONNET, use(w1h=1), "0.000006"),
    "2048 write 5m": (SONNET, use(w5m=2048), "0.00768"),
    "2048 write 1h": (SONNET, use(w1h=2048), "0.012288"),
    "mostly cached": (SONNET, use(500, read=100_000), "0.0315"),
    "every kind": (SONNET, use(10, 20, 30, 40, 50), "0.000789"),
    "10^9 read": (PLAIN, use(read=BILLION), "300"),
    # Long context: over the threshold, the whole request costs more, output too.
    "at the threshold": (SONNET, use(200_000), "0.6"),
    "one over it": (SONNET, use(200_001), "1.200006"),
    "a million in": (SONNET, use(MILLION), "6"),
    "10^9 in": (SONNET, use(BILLION), "6000"),
    "10^9 in and out": (SONNET, use(BILLION, BILLION), "28500"),
    "long, with output": (SONNET, use(200_001, 1000), "1.222506"),
    "a cached prompt at it": (SONNET, use(read=200_000), "0.06"),
    "over by a cache read": (SONNET, use(1, read=200_000), "0.120006"),
    "over by a 5m write": (SONNET, use(199_999, w5m=2), "1.200009"),
    "over by a 1h write": (SONNET, use(150_000, w1h=50_001), "1.500012"),
    "two steps, below": (STEPS, use(100_000), "0.011"),
    "two steps, first": (STEPS, use(100_001), "0.05500055"),
    "two steps, first still": (STEPS, use(200_000), "0.11"),
    "two steps, second": (STEPS, use(200_001), "0.2200011"),
    # Batch: half of everything.
    "batch": (SONNET, use(1000, 500, batch=True), "0.00525"),
    "batch, 1 read": (SONNET, use(read=1, batch=True), "0.00000015"),
    "batch, 1h write": (SONNET, use(w1h=4, batch=True), "0.000012"),
    "batch, long": (SONNET, use(300_000, batch=True), "0.9"),
    # Service tiers: 1.75 times, half, and prices of their own.
    "default, said": (SONNET, use(1000, 500, service_tier="default"), "0.0105"),
    "priority": (SONNET, use(1000, 500, service_tier="priority"), "0.018375"),
    "priority, 1 read": (SONNET, use(read=1, service_tier="priority"), "0.000000525"),
    "priority, 1h write": (SONNET, use(w1h=10, service_tier="priority"), "0.000105"),
    "priority, long": (SONNET, use(200_001, service_tier="priority"), "2.1000105"),
    "flex": (SONNET, use(1000, 500, service_tier="flex"), "0.00525"),
    "flex, 1 out": (SONNET, use(0, 1, service_tier="flex"), "0.0000075"),
    "reserved": (SONNET, use(1000, 500, service_tier="reserved"), "0.00875"),
    "reserved, long": (SONNET, use(200_001, service_tier="reserved"), "1.000005"),
    # Prices so small that one request is a fraction of a micro-dollar.
    "nova, 1 in": (NOVA, use(1), "0.000000035"),
    "nova, 1 read": (NOVA, use(read=1), "0.00000000875"),
    "nova, free write": (NOVA, use(w5m=10_000), "0"),
    "nova, millions": (NOVA, use(MILLION, MILLION), "0.175"),
    "nova, flex": (NOVA, use(3, read=1, service_tier="flex"), "0.000000056875"),
    # 8,750 * 1.75 = 15,312.5 micro-dollars per million, rounded up once, to 15,313.
    "nova, priority, 2 read": (NOVA, use(read=2, service_tier="priority"), "0.000000030626"),
    # A model that reports cached tokens as part of its input.
    "gpt, uncached": (GPT, use(1000, 10), "0.00231"),
    "gpt, part cached": (GPT, use(1000, read=600), "0.001012"),
    "gpt, all cached": (GPT, use(600, read=600), "0.000132"),
    "gpt, read and written": (GPT, use(1000, 10, 600, 100), "0.001177"),
    "gpt, at the threshold": (GPT, use(272_000, read=100_000), "0.4004"),
    "gpt, one over it": (GPT, use(272_001, read=100_000), "0.8008044"),
}


@pytest.mark.parametrize(("model", "usage", "usd"), EXAMPLES.values(), ids=EXAMPLES)
def test_a_price_worked_out_by_hand(model: Model, usage: TokenUsage, usd: str) -> None:
    """The cost is the amount in dollars, to the pico-dollar."""
    assert cost(model, usage) == Decimal(usd) * 10**12


def test_a_charge_says_by_which_prices() -> None:
    """The receipt can keep the variant, the rates and their version."""
    prices = prices_of(SONNET)

    charged = charge(SONNET, prices, use(200_001))

    assert charged.variant is Variant.DEFAULT
    assert charged.rates is LONG
    assert charged.pricing_version == prices.version


TOKENS = st.integers(0, 50_000)
USAGES = st.builds(use, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)


@given(st.lists(USAGES, max_size=20))
def test_many_small_requests_sum_to_one_big_one(usages: list[TokenUsage]) -> None:
    """Nothing is rounded per request, so how the tokens were cut up does not matter."""
    model = a_model(default_pricing=RateCard(**dict.fromkeys(RATE_NAMES, 8_751), long_context=()))
    big = use(*(sum(usage.counts[number] for usage in usages) for number in range(5)))

    assert sum(cost(model, usage) for usage in usages) == cost(model, big)


RATE_NAMES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


def test_a_million_tiny_requests_are_one_big_one_when_shown() -> None:
    """Each costs 0.035 of a micro-dollar, which would vanish if each were rounded."""
    each = cost(NOVA, use(1))

    assert split_micros(each) == (0, 35_000)
    assert split_micros(MILLION * each) == split_micros(cost(NOVA, use(MILLION))) == (35_000, 0)


@given(st.integers(0, 10**30))
def test_showing_loses_nothing(picos: int) -> None:
    """Micro-dollars and remainder are the whole amount, and the remainder is less than one."""
    micros, remainder = split_micros(picos)

    assert micros * PICOS_PER_MICRO + remainder == picos
    assert 0 <= remainder < PICOS_PER_MICRO


@pytest.mark.parametrize(
    ("usage", "field", "fix"),
    [
        (use(1, read=1), "cache_read_tokens", "default_pricing.cache_read_price_usd_micros_per_1m"),
        (use(1, w5m=1), "cache_write_5m_tokens", "default_pricing.cache_write_5m_price"),
        (use(1, w1h=1), "cache_write_1h_tokens", "default_pricing.cache_write_1h_price"),
        (use(read=1, service_tier="flex"), "cache_read_tokens", "tiers.flex.pricing.cache_"),
        (use(read=1, service_tier="turbo"), "cache_read_tokens", "default_pricing.cache_read_"),
        (use(1, service_tier="flex", batch=True), "service_tier", "but not both"),
        (use(1, service_tier="turbo", batch=True), "service_tier", "but not both"),
        (use(100_001, read=1), "cache_read_tokens", "default_pricing.long_context.cache_read"),
    ],
)
def test_what_has_no_price_is_refused(usage: TokenUsage, field: str, fix: str) -> None:
    """Never zero and never another price: the error names the field, and what to write where."""
    model = a_model(
        default_pricing=card(1_000_000, 2_000_000, steps=(a_step(100_000, 2_000_000, 4_000_000),)),
        flex=VariantPricing(pricing=card(500_000, 1_000_000)),
    )

    with pytest.raises(UnpricedUsageError) as caught:
        cost(model, usage)

    assert caught.value.field == field
    assert caught.value.label == "premium"
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("served", "variant"),
    [
        ({"service_tier": "priority"}, Variant.PRIORITY),
        ({"service_tier": "turbo"}, None),
        ({"service_tier": "DEFAULT"}, None),
        ({"batch": True}, Variant.BATCH),
    ],
)
def test_what_was_served_without_a_price_costs_the_highest(
    served: dict[str, Any], variant: Variant | None
) -> None:
    """Of each kind of tokens, and for a prompt of that length: flex reads cost most here."""
    model = a_model(
        default_pricing=card(
            1_000_000, 2_000_000, 100_000, steps=(a_step(100_000, 4_000_000, 8_000_000),)
        ),
        flex=VariantPricing(pricing=card(500_000, 3_000_000, 200_000)),
    )
    prices = prices_of(model)

    charged = charge(model, prices, use(10, 20, read=5, **served))
    long = charge(model, prices, use(100_001, 1, **served))

    assert charged.cost_usd_picos == 10 * 1_000_000 + 20 * 3_000_000 + 5 * 200_000
    assert long.cost_usd_picos == 100_001 * 4_000_000 + 8_000_000
    assert (charged.price_estimated, charged.variant) == (True, variant)


def test_a_known_price_is_not_estimated() -> None:
    """Also if others are higher."""
    assert not charge(SONNET, prices_of(SONNET), use(1, service_tier="flex")).price_estimated


def test_a_multiple_of_an_unknown_price_is_unknown() -> None:
    """And what helps is to say the default price."""
    model = a_model(
        default_pricing=card(1_000_000, 2_000_000), batch=VariantPricing(multiplier_permille=500)
    )

    with pytest.raises(UnpricedUsageError) as caught:
        cost(model, use(1, read=1, batch=True))

    assert "models.premium.default_pricing.cache_read_price" in caught.value.fix


def test_a_kind_of_tokens_that_was_not_used_needs_no_price() -> None:
    """No cache price is asked for when nothing was cached."""
    model = a_model(default_pricing=card(1_000_000, 2_000_000))

    assert cost(model, use(2, 3)) == 2 * 1_000_000 + 3 * 2_000_000


def test_cache_tokens_can_not_exceed_an_input_that_includes_them() -> None:
    """Such a record contradicts itself; the rest would be negative."""
    with pytest.raises(InvalidValueError, match=r"input_tokens: .* 599 is less than the 600"):
        cost(GPT, use(599, read=600))


@pytest.mark.parametrize("bad", [-1, TOKENS_MAX + 1, 1.0, True, "1", None])
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cache_write_1h_tokens"])
def test_an_impossible_count_is_refused(field: str, bad: Any) -> None:
    """Counts are whole numbers from nothing to a billion."""
    counts: dict[str, Any] = {"input_tokens": 1, "output_tokens": 1, field: bad}

    with pytest.raises(InvalidValueError) as caught:
        TokenUsage(**counts)

    assert caught.value.field == field


def test_the_schema_documents_example() -> None:
    """Three dollars in, fifteen out, per million tokens."""
    assert split_micros(cost(PLAIN, use(MILLION, MILLION))) == (18_000_000, 0)
