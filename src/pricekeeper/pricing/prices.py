"""Prices as values: integer micro-dollars per million tokens, and how they combine.

One token at one micro-dollar per million costs exactly one pico-dollar (1e-12), so integer
prices times integer tokens lose nothing. Only this module ever rounds a price, when it makes an
integer of a fraction of another price or of a source's decimal: up, to the next micro-dollar per
million tokens (`ceil_price`), once, before any usage is multiplied.

A price that is not known is ``None``. Nothing here or elsewhere reads that as zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec

PERMILLE: Final = 1000
MICROS_PER_USD: Final = 1_000_000
TOKENS_PER_PRICE: Final = 1_000_000

_VERSION_LENGTH: Final = 16
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Component(StrEnum):
    """The kinds of tokens that have a price of their own."""

    INPUT = "input"
    OUTPUT = "output"
    CACHE_READ = "cache_read"
    CACHE_WRITE_5M = "cache_write_5m"
    CACHE_WRITE_1H = "cache_write_1h"

    def __init__(self, name: str) -> None:
        self.tokens_field = f"{name}_tokens"
        """What a usage record calls their count."""
        self.price_field = f"{name}_price_usd_micros_per_1m"
        """What the file, the stored item and the API call their price."""


COMPONENTS: Final = tuple(Component)


class Variant(StrEnum):
    """The ways a request can be served that may have prices of their own.

    The first four are Bedrock's service tiers as its responses spell them.
    """

    DEFAULT = "default"
    PRIORITY = "priority"
    FLEX = "flex"
    RESERVED = "reserved"
    BATCH = "batch"


class Rates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each kind of token costs, in micro-dollars per million of them."""

    input: int | None = msgspec.field(default=None, name=Component.INPUT.price_field)
    output: int | None = msgspec.field(default=None, name=Component.OUTPUT.price_field)
    cache_read: int | None = msgspec.field(default=None, name=Component.CACHE_READ.price_field)
    cache_write_5m: int | None = msgspec.field(
        default=None, name=Component.CACHE_WRITE_5M.price_field
    )
    cache_write_1h: int | None = msgspec.field(
        default=None, name=Component.CACHE_WRITE_1H.price_field
    )

    def of(self, component: Component) -> int | None:
        """The price of that kind of token, if it is known."""
        price: int | None = getattr(self, component.value)
        return price


class Step(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a whole request costs if its prompt has more than that many tokens."""

    over_input_tokens: int


class RateCard(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rates of one variant, with its long-context steps from the lowest to the highest."""

    long_context: tuple[Step, ...] = ()

    def at(self, prompt_tokens: int) -> Rates:
        """The rates of a request whose prompt has that many tokens, cached ones included."""
        applicable: Rates = self
        for step in self.long_context:
            if prompt_tokens <= step.over_input_tokens:
                break
            applicable = step
        return applicable


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every price that is known of one model. A variant without a card is not priced."""

    default: RateCard
    priority: RateCard | None = None
    flex: RateCard | None = None
    reserved: RateCard | None = None
    batch: RateCard | None = None

    def card(self, variant: Variant) -> RateCard | None:
        """The card of that variant, if it is priced."""
        if variant is Variant.DEFAULT:
            return self.default
        card: RateCard | None = getattr(self, variant.value)
        return card


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices in force for one model on one day.

    ``version`` is a digest of the prices themselves: the same version is the same price,
    wherever it came from. ``source`` says where: ``config`` or ``pricing-cache:<source>``.
    """

    table: PriceTable
    source: str
    version: str

    @classmethod
    def of(cls, table: PriceTable, source: str) -> Prices:
        """These prices, under the version that their content gives them."""
        return cls(table=table, source=source, version=digest(table))


def digest(table: PriceTable) -> str:
    """Equal for equal prices, in every process."""
    return hashlib.sha256(_canonical(table)).hexdigest()[:_VERSION_LENGTH]


def ceil_price(numerator: int, denominator: int) -> int:
    """The price that a fraction becomes: never less than it, by less than one micro-dollar."""
    return -(-numerator // denominator)


def usd_price(usd: str | Decimal, per_tokens: int) -> int:
    """A source's decimal dollars per so many tokens, as a price; raises `ValueError`."""
    try:
        exact = Fraction(usd) * MICROS_PER_USD * TOKENS_PER_PRICE / per_tokens
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{usd!r} is no price") from error
    if exact < 0:
        raise ValueError(f"{usd!r} is negative")
    return ceil_price(exact.numerator, exact.denominator)


def scaled(card: RateCard, multiplier_permille: int) -> RateCard:
    """The card with every known price multiplied; what is unknown stays unknown."""
    return RateCard(
        **_scaled_rates(card, multiplier_permille),
        long_context=tuple(
            Step(
                over_input_tokens=step.over_input_tokens, **_scaled_rates(step, multiplier_permille)
            )
            for step in card.long_context
        ),
    )


def laid_over(below: RateCard, above: RateCard) -> RateCard:
    """The card above, with what it does not say taken from the one below.

    Steps count as one statement: a card that has any has all of them, and only their gaps
    are filled, from the step below with the same threshold.
    """
    steps = {step.over_input_tokens: step for step in below.long_context}
    return RateCard(
        **_filled(below, above),
        long_context=tuple(
            Step(
                over_input_tokens=step.over_input_tokens,
                **_filled(steps.get(step.over_input_tokens, Rates()), step),
            )
            for step in above.long_context
        )
        or below.long_context,
    )


def flattened(table: PriceTable) -> dict[str, int]:
    """Every known price by the name that reports use, such as ``flex.over_200000.output``."""
    return {
        f"{variant}.{at}{component}": price
        for variant in Variant
        if (card := table.card(variant)) is not None
        for at, rates in _levels(card)
        for component in COMPONENTS
        if (price := rates.of(component)) is not None
    }


def _levels(card: RateCard) -> Iterator[tuple[str, Rates]]:
    yield "", card
    for step in card.long_context:
        yield f"over_{step.over_input_tokens}.", step


def _scaled_rates(rates: Rates, multiplier_permille: int) -> dict[str, int | None]:
    return {
        component.value: None
        if (price := rates.of(component)) is None
        else ceil_price(price * multiplier_permille, PERMILLE)
        for component in COMPONENTS
    }


def _filled(below: Rates, above: Rates) -> dict[str, int | None]:
    return {
        component.value: below.of(component) if (price := above.of(component)) is None else price
        for component in COMPONENTS
    }
