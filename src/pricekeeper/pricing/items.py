"""Items of PricingCache: a source's statement about one model on one day.

The file's prices are laid under it when read, so a corrected file takes effect at once. Items in
the schema document's form are read, too. Where no source states a price, the item has the file's
prices, for readers: calls are priced by the file itself.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec

from pricekeeper.errors import UnpricedUsageError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.prices import (
    COMPONENTS,
    Component,
    PriceTable,
    RateCard,
    Rates,
    Step,
    digest,
    flattened,
)
from pricekeeper.storage import Item, Key, TypedItem
from pricekeeper.storage.tables import PRICING_CACHE

RETENTION_DAYS: Final = 3
"""From the start of the item's day in UTC: the last usage can arrive 12 hours (the westernmost
zone) and 24 hours (the oldest accepted usage) after its end.
"""

FILE: Final = "deployment-file"
"""The source of items that only repeat the file."""
_TIERS: Final = ("priority", "flex", "reserved")


class _StoredTiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    priority: RateCard | None = None
    flex: RateCard | None = None
    reserved: RateCard | None = None


class _StoredPrices(Rates, frozen=True, kw_only=True):
    long_context: tuple[Step, ...] = ()
    service_tiers: _StoredTiers = _StoredTiers()
    batch: RateCard | None = None
    source: str = "unnamed"
    fetched_at_epoch: int = 0


class StatedPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The statement of a source, and when it was asked."""

    table: PriceTable
    source: str
    fetched_at_epoch: int

    @property
    def version(self) -> str:
        return digest(self.table)


def price_key(model: Model, day: date) -> Key:
    """The key of that model and day."""
    return Key(model.bedrock_model_id, day.isoformat())


def price_item(model: Model, day: date, stated: StatedPrices) -> Item:
    """The item of that statement."""
    table = msgspec.to_builtins(stated.table)
    tiers = {tier: table[tier] for tier in _TIERS if tier in table}
    return {
        **price_key(model, day).attributes,
        "model_label": model.label,
        "tier": model.tier,
        "family": model.family,
        "description": model.description,
        **table["default"],
        **({"service_tiers": tiers} if tiers else {}),
        **({"batch": table["batch"]} if "batch" in table else {}),
        "source": stated.source,
        "version": stated.version,
        "fetched_at_epoch": stated.fetched_at_epoch,
        "expires_at_epoch": _expires_at_epoch(day),
    }


def stated_prices(model: Model, item: Item) -> StatedPrices:
    """The statement of an item; raises `UnpricedUsageError` if it is unreadable."""
    try:
        stored = msgspec.convert(item, _StoredPrices)
    except msgspec.ValidationError as error:
        raise _unreadable(model, item, str(error)) from error
    if stored.input is None or stored.output is None:
        missing = f"{Component.INPUT.price_field} and {Component.OUTPUT.price_field}"
        raise _unreadable(model, item, f"it must have {missing}")
    default = RateCard(
        **{component.value: stored.of(component) for component in COMPONENTS},
        long_context=stored.long_context,
    )
    tiers = {tier: getattr(stored.service_tiers, tier) for tier in _TIERS}
    stated = StatedPrices(
        table=PriceTable(default=default, **tiers, batch=stored.batch),
        source=stored.source,
        fetched_at_epoch=stored.fetched_at_epoch,
    )
    if min(flattened(stated.table).values()) < 0:
        raise _unreadable(model, item, "a price is negative")
    return stated


def _unreadable(model: Model, item: Item, reason: str) -> UnpricedUsageError:
    TypedItem(PRICING_CACHE, item).report_unreadable(reason)
    return UnpricedUsageError(
        model.label,
        "model_label",
        f"the PricingCache item {item['PK']} / {item['SK']} can't be used: {reason}",
        "refresh the prices, or delete the item to price by the deployment file",
    )


def _expires_at_epoch(day: date) -> int:
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int((midnight + timedelta(days=RETENTION_DAYS)).timestamp())
