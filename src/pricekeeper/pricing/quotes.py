"""What a source of prices is, and what it may answer.

A source is loaded once per refresh, which is when it may do I/O, and then asked about each
model and day, which is pure. It answers with what it knows and never with what is likely: a
model that it can't match for certain is `Unmatched`, with the reason. A price that may be another
region's is `RegionalQuote`: it is shown, and never written.
"""

from __future__ import annotations

from datetime import date
from typing import Protocol, TypeAlias

import msgspec

from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.prices import PriceTable


class Unmatched(msgspec.Struct, frozen=True):
    """The source has no certain price for a model; ``reason`` says why, and what would help."""

    reason: str


class RegionalQuote(msgspec.Struct, frozen=True):
    """Prices of some region, which may not be the one that the model is called in."""

    table: PriceTable
    reason: str


Quote: TypeAlias = PriceTable | RegionalQuote | Unmatched
"""What a source states about a model; in a table, ``None`` is what it does not state."""


class PriceList(Protocol):
    """What a source said when it was asked."""

    @property
    def source(self) -> str:
        """The source and its version, as it is written beside each price."""
        ...

    def quote(self, model: Model, day: date) -> Quote:
        """The prices of that model on that day."""
        ...

    def unused_names(self, models: tuple[Model, ...]) -> tuple[str, ...]:
        """The source's names of those of its models that are not among these."""
        ...


class PriceSource(Protocol):
    """Something that can be asked for prices."""

    async def load(self) -> PriceList:
        """Ask it; raises `PriceSourceError` if it can't be read or understood."""
        ...
