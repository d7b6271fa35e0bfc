"""The exact cost of a usage, in pico-dollars.

``tokens * micro-dollars per million tokens`` is a whole number of pico-dollars (1e-12 dollar), so
nothing is divided. Costs are split into micro-dollars only for display.

The price is that of the served tier, which the response states. A tier (or batch) without prices is
charged at the model's highest prices and marked as estimated: Bedrock bills it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.errors import InvalidValueError, UnpricedUsageError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.prices import COMPONENTS, Component, Prices, PriceTable, Rates, Variant

PICOS_PER_MICRO: Final = 1_000_000
TOKENS_MAX: Final = 1_000_000_000

_TIERS: Final = {
    variant.value: variant
    for variant in (Variant.DEFAULT, Variant.PRIORITY, Variant.FLEX, Variant.RESERVED)
}


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one request as Bedrock reported them, and how it was served."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    service_tier: str | None = None
    batch: bool = False

    def __post_init__(self) -> None:
        for number, tokens in enumerate(self.counts):
            if type(tokens) is not int or not 0 <= tokens <= TOKENS_MAX:
                raise InvalidValueError(
                    COMPONENTS[number].tokens_field,
                    f"must be a whole number from 0 to {TOKENS_MAX}",
                )

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        return (
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_5m_tokens,
            self.cache_write_1h_tokens,
        )

    def tokens(self, component: Component) -> int:
        tokens: int = getattr(self, component.tokens_field)
        return tokens

    @property
    def cache_tokens(self) -> int:
        return self.cache_read_tokens + self.cache_write_5m_tokens + self.cache_write_1h_tokens


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a usage and the prices applied.

    ``variant`` is ``None`` for an unknown tier. ``price_estimated``: it has no prices, so the
    highest were used.
    """

    cost_usd_picos: int
    variant: Variant | None
    rates: Rates
    pricing_version: str
    price_estimated: bool = False


def charge(model: Model, prices: Prices, usage: TokenUsage) -> Charge:
    """The exact cost, or its upper bound if the served variant has no prices.

    Raises `UnpricedUsageError` if a kind of tokens has no known price.
    """
    variant = served_variant(model, usage)
    card = None if variant is None else prices.table.card(variant)
    fresh_tokens, prompt_tokens = _prompt(model, usage)
    rates = highest_rates(prices.table, prompt_tokens) if card is None else card.at(prompt_tokens)
    cost_usd_picos, prices_by_kind = 0, rates.prices
    for number, tokens in enumerate((fresh_tokens, *usage.counts[1:])):
        if not tokens:
            continue
        price = prices_by_kind[number]
        if price is None:
            missing_in = Variant.DEFAULT if card is None or variant is None else variant
            stepped = card is not None and rates is not card
            raise _unpriced_component(model, missing_in, COMPONENTS[number], stepped=stepped)
        cost_usd_picos += tokens * price
    return Charge(
        cost_usd_picos=cost_usd_picos,
        variant=variant,
        rates=rates,
        pricing_version=prices.version,
        price_estimated=card is None,
    )


def split_micros(cost_usd_picos: int) -> tuple[int, int]:
    """Whole micro-dollars and the remaining pico-dollars, for display."""
    return divmod(cost_usd_picos, PICOS_PER_MICRO)


def highest_rates(table: PriceTable, prompt_tokens: int) -> Rates:
    """The highest price of each kind of tokens among all variants, for such a prompt."""
    cards = (table.card(variant) for variant in Variant)
    rates = [card.at(prompt_tokens) for card in cards if card is not None]
    return Rates(
        **{
            component.value: max(
                (price for one in rates if (price := one.of(component)) is not None), default=None
            )
            for component in COMPONENTS
        }
    )


def served_variant(model: Model, usage: TokenUsage) -> Variant | None:
    """How the request was served; ``None`` for an unknown tier."""
    tier = _TIERS.get(usage.service_tier or Variant.DEFAULT)
    if not usage.batch:
        return tier
    if tier is not Variant.DEFAULT:
        raise UnpricedUsageError(
            model.label,
            "service_tier",
            f"batch inference has no {usage.service_tier} tier",
            "report batch, or the tier, but not both",
        )
    return Variant.BATCH


def _prompt(model: Model, usage: TokenUsage) -> tuple[int, int]:
    """The uncached input tokens, and the length of the whole prompt."""
    if not model.input_includes_cache_tokens:
        return usage.input_tokens, usage.input_tokens + usage.cache_tokens
    fresh_tokens = usage.input_tokens - usage.cache_tokens
    if fresh_tokens < 0:
        raise InvalidValueError(
            "input_tokens",
            f"'{model.label}' reports cache tokens as part of its input tokens, "
            f"but {usage.input_tokens} is less than the {usage.cache_tokens} cache tokens",
        )
    return fresh_tokens, usage.input_tokens


def _unpriced_component(
    model: Model, variant: Variant, component: Component, *, stepped: bool
) -> UnpricedUsageError:
    path = "batch.pricing" if variant is Variant.BATCH else f"service_tiers.{variant}.pricing"
    if variant is Variant.DEFAULT or model.is_multiple(variant):
        path = "default_pricing"
    if stepped:
        path += ".long_context"
    return UnpricedUsageError(
        model.label,
        component.tokens_field,
        f"'{model.label}' has no {variant} price for these tokens",
        f"add models.{model.label}.{path}.{component.price_field} to the deployment file",
    )
