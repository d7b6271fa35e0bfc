"""The maximum cost of a call before it is made. No I/O, no clock.

An authorization reserves it: the bound of the prompt and the longest answer, at the highest prices
that could apply:

- of the requested tier and of the default one, which may serve the call instead;
- of every long-context step that such a prompt can reach;
- for each token of the prompt, the highest of: uncached, read from the cache, and written to it as
  the call states.

The cost is linear in the answer's length, so a division gives the longest that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from pricekeeper.bedrock import GUARDRAIL, CacheWrite
from pricekeeper.errors import InvalidValueError, UnpricedUsageError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.cost import TOKENS_MAX, TokenUsage, highest_rates, served_variant
from pricekeeper.pricing.prices import Component, Prices, PriceTable, RateCard, Rates, Variant

_USE_CHARS_MAX: Final = 80
_WRITES: Final = {
    CacheWrite.NONE: (),
    CacheWrite.FIVE_MINUTES: (Component.CACHE_WRITE_5M,),
    CacheWrite.ONE_HOUR: (Component.CACHE_WRITE_5M, Component.CACHE_WRITE_1H),
}


class WorstCase(msgspec.Struct, frozen=True):
    """The maximum cost of a call, as a function of the length of its answer."""

    prompt_usd_picos: int
    output_usd_picos_per_token: int

    def cost_usd_picos(self, output_tokens: int) -> int:
        return self.prompt_usd_picos + output_tokens * self.output_usd_picos_per_token

    def output_tokens_within(self, usd_picos: int) -> int:
        """The longest answer within that cost; negative if there is none."""
        left = usd_picos - self.prompt_usd_picos
        if left < 0:
            return -1
        if self.output_usd_picos_per_token == 0:
            return left
        return left // self.output_usd_picos_per_token


class WorstRates(msgspec.Struct, frozen=True):
    """The highest prices for a kind of call, in pico-dollars per token."""

    prompt_usd_picos: int
    output_usd_picos: int
    from_tokens: int
    until_tokens: int
    """Valid for prompts longer than the first and up to the second."""

    def covers(self, input_tokens: int) -> bool:
        return self.from_tokens < input_tokens <= self.until_tokens

    def of(self, input_tokens: int) -> WorstCase:
        return WorstCase(input_tokens * self.prompt_usd_picos, self.output_usd_picos)


def check_covered(model: Model, uses: Iterable[str], window_tokens: int) -> None:
    """Raise for costs that the reservation would not cover.

    These are billed features without a price in the deployment file, and a longer window than the
    file states.
    """
    for use in uses:
        if not any(unit == use or unit.startswith(f"{use}_") for unit in model.units):
            unit = f"{use}_text_unit:content" if use == GUARDRAIL else use
            raise UnpricedUsageError(
                model.label,
                "uses",
                f"Bedrock bills {use[:_USE_CHARS_MAX]} beside tokens, and the deployment file has "
                "no price for it",
                f"add models.{model.label}.units.{unit[:_USE_CHARS_MAX]} to the file, or leave it "
                "out of the call",
            )
    if window_tokens > model.context_window_tokens:
        raise InvalidValueError(
            "window_tokens",
            f"the call asks for a window of {window_tokens} tokens, and the deployment file states "
            f"{model.context_window_tokens}; raise models.{model.label}.context_window_tokens and "
            "state the long-context prices, or leave the beta out of the call",
        )


def worst_rates(
    model: Model,
    prices: Prices,
    input_tokens: int,
    *,
    cache_write: CacheWrite = CacheWrite.NONE,
    service_tier: str | None = None,
    batch: bool = False,
) -> WorstRates:
    """The highest prices for a prompt of that length, with their range.

    Raises `UnpricedUsageError` if a kind of tokens that it may use has no known price.
    """
    usage = TokenUsage(
        input_tokens=input_tokens, output_tokens=0, service_tier=service_tier, batch=batch
    )
    variant = served_variant(model, usage)
    asked = None if variant is None else prices.table.card(variant)
    if asked is None:
        rates = [highest_rates(prices.table, 0), highest_rates(prices.table, input_tokens)]
    else:
        cards = [asked] if variant is Variant.BATCH else [asked, prices.table.default]
        rates = [one for card in cards for one in _reachable(card, input_tokens)]
    edges = _edges(prices.table)
    return WorstRates(
        max((_dearest_prompt(model, one, cache_write) for one in rates), default=0),
        max(_price(model, one, Component.OUTPUT) for one in rates),
        max((edge for edge in edges if edge < input_tokens), default=-1),
        min((edge for edge in edges if edge >= input_tokens), default=TOKENS_MAX),
    )


def _edges(table: PriceTable) -> set[int]:
    cards = (table.card(variant) for variant in Variant)
    return {step.over_input_tokens for card in cards if card for step in card.long_context}


def _reachable(card: RateCard, input_tokens: int) -> list[Rates]:
    steps = [step for step in card.long_context if input_tokens > step.over_input_tokens]
    return [card, *steps]


def _dearest_prompt(model: Model, rates: Rates, cache_write: CacheWrite) -> int:
    written = [_price(model, rates, component) for component in _WRITES[cache_write]]
    read = rates.of(Component.CACHE_READ) or 0
    return max(_price(model, rates, Component.INPUT), read, *written)


def _price(model: Model, rates: Rates, component: Component) -> int:
    price = rates.of(component)
    if price is None:
        raise UnpricedUsageError(
            model.label,
            component.tokens_field,
            f"'{model.label}' has no price for these tokens, so nothing can be held for them",
            f"add models.{model.label}.default_pricing.{component.price_field} to the "
            "deployment file",
        )
    return price
