"""The most that a call can cost: never less than what any usage within its bounds is charged."""

from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.bedrock import CacheWrite
from pricekeeper.pricing import Prices, TokenUsage, charge, worst_rates
from pricekeeper.pricing.prices import PriceTable, RateCard, Step
from pricing.conftest import a_model

KINDS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
PRICE = st.integers(0, 9)
TIERS = st.sampled_from((None, "priority", "flex", "unheard-of"))


def cards(*steps: int) -> st.SearchStrategy[RateCard]:
    prices = dict.fromkeys(KINDS, PRICE)
    step = st.fixed_dictionaries(prices)
    return st.builds(
        lambda base, beyond: RateCard(
            **base,
            long_context=tuple(
                Step(over_input_tokens=over, **one) for over, one in zip(steps, beyond, strict=True)
            ),
        ),
        step,
        st.lists(step, min_size=len(steps), max_size=len(steps)),
    )


tables = st.builds(
    PriceTable, default=cards(100, 200), priority=cards(150) | st.none(), flex=st.none()
)


@given(
    tables,
    st.integers(0, 250),
    st.integers(0, 9),
    st.sampled_from(CacheWrite),
    TIERS,
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_no_usage_within_its_bounds_costs_more(
    table: PriceTable,
    input_tokens: int,
    output_tokens: int,
    cache_write: CacheWrite,
    tier: str | None,
    read_pct: int,
    written_pct: int,
) -> None:
    """Any part of the prompt may be uncached, read from the cache or written to it."""
    model, prices = a_model(), Prices.of(table, "config")
    rates = worst_rates(model, prices, input_tokens, cache_write=cache_write, service_tier=tier)
    worst = rates.of(input_tokens)
    read = input_tokens * read_pct // 100
    left = input_tokens - read
    written = 0 if cache_write is CacheWrite.NONE else left * written_pct // 100
    for served in {tier, None}:
        usage = TokenUsage(
            input_tokens=left - written,
            output_tokens=output_tokens,
            cache_read_tokens=read,
            cache_write_5m_tokens=written,
            service_tier=served,
        )
        cost = charge(model, prices, usage).cost_usd_picos
        assert cost <= worst.cost_usd_picos(output_tokens)


@given(tables, st.integers(0, 250), st.integers(0, 250), TIERS, st.booleans())
def test_rates_are_the_same_for_every_prompt_that_they_cover(
    table: PriceTable, one: int, other: int, tier: str | None, batch: bool
) -> None:
    """So they can be cached; beyond a step they must be found again."""
    if batch:
        tier = None
    model, prices = a_model(), Prices.of(table, "config")
    rates = worst_rates(model, prices, one, service_tier=tier, batch=batch)
    assert rates.covers(one)
    if rates.covers(other):
        alone = worst_rates(model, prices, other, service_tier=tier, batch=batch)
        assert rates.of(other) == alone.of(other)
    else:
        low, high = sorted((one, other))
        assert any(low <= step < high for step in (100, 150, 200))
