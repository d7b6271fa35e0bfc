"""Prices as values: integer micro-dollars per million tokens.

One token at one micro-dollar per million costs one pico-dollar (1e-12), so prices times tokens are
exact. Only this module rounds a price, from a fraction or a source's decimal: up to the next
integer (`ceil_price`), once, before usage is multiplied.

An unknown price is ``None`` and is never read as zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec
from msgspec.structs import replace

PERMILLE: Final = 1000
MICROS_PER_USD: Final = 1_000_000
TOKENS_PER_PRICE: Final = 1_000_000

_VERSION_LENGTH: Final = 16
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Component(StrEnum):
    """The kinds of tokens with their own price."""

    INPUT = "input"
    OUTPUT = "output"
    CACHE_READ = "cache_read"
    CACHE_WRITE_5M = "cache_write_5m"
    CACHE_WRITE_1H = "cache_write_1h"

    def __init__(self, name: str) -> None:
        self.tokens_field = f"{name}_tokens"
        self.price_field = f"{name}_price_usd_micros_per_1m"


COMPONENTS: Final = tuple(Component)


class Variant(StrEnum):
    """The ways of serving a request that may have their own prices.

    The first four are Bedrock's service tiers in its own spelling.
    """

    DEFAULT = "default"
    PRIORITY = "priority"
    FLEX = "flex"
    RESERVED = "reserved"
    BATCH = "batch"


class Rates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The price of each kind of token, in micro-dollars per million."""

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
        price: int | None = getattr(self, str(component))
        return price

    @property
    def prices(self) -> tuple[int | None, ...]:
        return (self.input, self.output, self.cache_read, self.cache_write_5m, self.cache_write_1h)


class Step(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rates of a whole request whose prompt has over ``over_input_tokens`` tokens."""

    over_input_tokens: int


class RateCard(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rates of one variant, with its long-context steps in ascending order."""

    long_context: tuple[Step, ...] = ()

    def at(self, prompt_tokens: int) -> Rates:
        """The rates for a prompt of that length, cached tokens included."""
        applicable: Rates = self
        for step in self.long_context:
            if prompt_tokens <= step.over_input_tokens:
                break
            applicable = step
        return applicable


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All known prices of one model. A variant without a card has no prices."""

    default: RateCard
    priority: RateCard | None = None
    flex: RateCard | None = None
    reserved: RateCard | None = None
    batch: RateCard | None = None

    def card(self, variant: Variant) -> RateCard | None:
        card: RateCard | None = getattr(self, str(variant))
        return card


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices in force for one model on one day.

    Equal ``version`` digests are equal prices. ``source`` is ``config`` or
    ``pricing-cache:<source>``.
    """

    table: PriceTable
    source: str
    version: str

    @classmethod
    def of(cls, table: PriceTable, source: str) -> Prices:
        return cls(table=table, source=source, version=digest(table))


def digest(table: PriceTable) -> str:
    """Equal for equal prices, in every process."""
    return hashlib.sha256(_canonical(table)).hexdigest()[:_VERSION_LENGTH]


def ceil_price(numerator: int, denominator: int) -> int:
    """The fraction rounded up to a whole price."""
    return -(-numerator // denominator)


def usd_price(usd: str | Decimal, per_tokens: int) -> int:
    """The price of a source's decimal dollars per number of tokens, or `ValueError`."""
    try:
        exact = Fraction(usd) * MICROS_PER_USD * TOKENS_PER_PRICE / per_tokens
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{usd!r} is no price") from error
    if exact < 0:
        raise ValueError(f"{usd!r} is negative")
    return ceil_price(exact.numerator, exact.denominator)


def scaled(card: RateCard, multiplier_permille: int) -> RateCard:
    """The card with every known price multiplied."""
    steps = (replace(one, **_scaled(one, multiplier_permille)) for one in card.long_context)
    return replace(card, **_scaled(card, multiplier_permille), long_context=tuple(steps))


def laid_over(below: RateCard, above: RateCard) -> RateCard:
    """The upper card, with its gaps filled from the lower one.

    If it has steps, only their gaps are filled, from the lower step with the same threshold.
    """
    lower = {step.over_input_tokens: step for step in below.long_context}
    steps = tuple(
        replace(step, **_filled(lower.get(step.over_input_tokens, Rates()), step))
        for step in above.long_context
    )
    return replace(above, **_filled(below, above), long_context=steps or below.long_context)


def flattened(table: PriceTable) -> dict[str, int]:
    """Every known price by its name in reports, such as ``flex.over_200000.output``."""
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


def _scaled(rates: Rates, multiplier_permille: int) -> dict[str, int | None]:
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
