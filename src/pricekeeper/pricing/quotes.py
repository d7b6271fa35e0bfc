"""The interface of a price source, and its possible answers.

A source is loaded once per refresh, and then asked about each model and day without I/O. It never
guesses: a model without a certain match is `Unmatched`, with the reason. A price of perhaps another
region is a `RegionalQuote`: shown, but never written.
"""

from __future__ import annotations

from datetime import date
from typing import Protocol, TypeAlias

import msgspec

from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.prices import PriceTable


class Unmatched(msgspec.Struct, frozen=True):
    """No certain price; ``reason`` says why, and what would help."""

    reason: str


class RegionalQuote(msgspec.Struct, frozen=True):
    """Prices of some region, which may not be the called one."""

    table: PriceTable
    reason: str


Quote: TypeAlias = PriceTable | RegionalQuote | Unmatched
"""A source's answer about a model; in a table, ``None`` is unstated."""


class PriceList(Protocol):
    """A loaded source."""

    @property
    def source(self) -> str:
        """The source and its version, stored with each price."""
        ...

    def quote(self, model: Model, day: date) -> Quote: ...

    def unused_names(self, models: tuple[Model, ...]) -> tuple[str, ...]: ...


class PriceSource(Protocol):
    """A source that can be loaded."""

    async def load(self) -> PriceList: ...
