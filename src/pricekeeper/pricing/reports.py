"""The results of refreshes and checks, for commands and jobs to show."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import msgspec

from pricekeeper.values import ModelLabel


class PriceChange(msgspec.Struct, frozen=True):
    """A price before and after, in micro-dollars per million tokens; ``None``: unknown."""

    price: str
    old: int | None
    new: int | None


class OfModel(msgspec.Struct, frozen=True):
    """The result for one model."""

    label: ModelLabel
    bedrock_model_id: str


class DayUpdate(OfModel, frozen=True):
    """A written item. ``changes`` is empty if it repeats the prices in force before."""

    day: date
    changes: tuple[PriceChange, ...]


class RefusedPrices(OfModel, frozen=True):
    """A model whose prices were not believed."""

    suspicious: tuple[PriceChange, ...]


class UnmatchedModel(OfModel, frozen=True):
    """A model without a certain price in the source."""

    reason: str


class LeftAlone(OfModel, frozen=True):
    """A model whose prices stayed, because the source may mean another region.

    ``differing``: ``old`` is the file's price, ``new`` the source's.
    """

    reason: str
    differing: tuple[PriceChange, ...]


class RefreshReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a refresh. Every configured model is in exactly one of the first five."""

    source: str
    updated: tuple[DayUpdate, ...]
    unchanged: tuple[ModelLabel, ...]
    """Nothing was written: already agreed, or another instance asked later."""
    unmatched: tuple[UnmatchedModel, ...]
    left_alone: tuple[LeftAlone, ...]
    refused: tuple[RefusedPrices, ...]
    unused_names: tuple[str, ...]


class PriceDifference(OfModel, frozen=True):
    """``old`` is the file's price, ``new`` the source's."""

    changes: tuple[PriceChange, ...]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the deployment file differs from a source, where that states a price."""

    source: str
    agreeing: tuple[ModelLabel, ...]
    differing: tuple[PriceDifference, ...]
    unmatched: tuple[UnmatchedModel, ...]
    left_alone: tuple[LeftAlone, ...]
    unused_names: tuple[str, ...]


def changes_between(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[PriceChange, ...]:
    """In the order of the new prices; then those that are missing there."""
    return tuple(
        PriceChange(price, old.get(price), new.get(price))
        for price in {**new, **old}
        if old.get(price) != new.get(price)
    )
