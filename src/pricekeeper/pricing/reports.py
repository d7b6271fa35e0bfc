"""What a refresh did and what a check found, as values that a command or a job can show."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import msgspec

from pricekeeper.values import ModelLabel


class PriceChange(msgspec.Struct, frozen=True):
    """One price before and after, in micro-dollars per million tokens; ``None``: not known."""

    price: str
    old: int | None
    new: int | None


class OfModel(msgspec.Struct, frozen=True):
    """What became of one model."""

    label: ModelLabel
    bedrock_model_id: str


class DayUpdate(OfModel, frozen=True):
    """An item that was written. ``changes`` is empty if it says what was in force before."""

    day: date
    changes: tuple[PriceChange, ...]


class RefusedPrices(OfModel, frozen=True):
    """A model whose prices were not believed, and the changes that made them suspicious."""

    suspicious: tuple[PriceChange, ...]


class UnmatchedModel(OfModel, frozen=True):
    """A configured model that the source has no certain price for."""

    reason: str


class LeftAlone(OfModel, frozen=True):
    """A model whose prices stayed as they are, because the source may mean another region.

    ``differing`` is where the file and the source differ: ``old`` is the file's, ``new`` the
    source's.
    """

    reason: str
    differing: tuple[PriceChange, ...]


class RefreshReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a refresh did. Every configured model is in exactly one of the first five."""

    source: str
    updated: tuple[DayUpdate, ...]
    unchanged: tuple[ModelLabel, ...]
    """Nothing was written: the items or the file said so already, or another instance asked
    later."""
    unmatched: tuple[UnmatchedModel, ...]
    left_alone: tuple[LeftAlone, ...]
    refused: tuple[RefusedPrices, ...]
    unused_names: tuple[str, ...]
    """What the source lists and no configured model is."""


class PriceDifference(OfModel, frozen=True):
    """A model whose prices differ: ``old`` is the file's, ``new`` the source's."""

    changes: tuple[PriceChange, ...]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the deployment file compares with a source. What the source does not say is left out."""

    source: str
    agreeing: tuple[ModelLabel, ...]
    differing: tuple[PriceDifference, ...]
    unmatched: tuple[UnmatchedModel, ...]
    left_alone: tuple[LeftAlone, ...]
    unused_names: tuple[str, ...]


def changes_between(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[PriceChange, ...]:
    """What is different in the new prices, in their order; then what they lack."""
    return tuple(
        PriceChange(price, old.get(price), new.get(price))
        for price in {**new, **old}
        if old.get(price) != new.get(price)
    )
