"""The price book: the prices in force for a model on a day.

PricingCache precedes the deployment file. Prices are cached for at most a minute.

It fails closed: if PricingCache can't be read, the store's error is raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.pricing.catalogue import Catalogue, Model
from pricekeeper.pricing.items import FILE, price_key, stated_prices
from pricekeeper.pricing.prices import Prices
from pricekeeper.pricing.quotes import PriceSource
from pricekeeper.pricing.refresh import check, publish_file, refresh
from pricekeeper.pricing.regions import combined_prices, knows_regions
from pricekeeper.pricing.reports import CheckReport, RefreshReport
from pricekeeper.storage import Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import Family, counted
from pricekeeper.values import ModelLabel

_UNKNOWN: Final = Family(
    "pricekeeper_price_unknown",
    "Calls and usage records that were refused, because a price is not known.",
    ("label",),
)


@dataclass(slots=True)
class PricingMeter:
    """What one instance could not price."""

    unpriced: Counter[str] = counted(_UNKNOWN, factory=Counter)


STALENESS_MS_MAX: Final = 60_000
ENTRIES_MAX: Final = 4_096
"""Labels times days; usage is accepted for three days: enough for a thousand labels."""


class _CachedPrices(NamedTuple):
    prices: Prices
    asked_at_ms: int


class PriceBook:
    """Finds the price of a model, and refreshes PricingCache on request."""

    def __init__(self, store: Store, clock: Clock, catalogue: Catalogue) -> None:
        self._store = store
        self._clock = clock
        self.catalogue = catalogue
        self.meter = PricingMeter()
        self.meter.unpriced.update(dict.fromkeys(map(str, catalogue.labels), 0))
        self._entries: BoundedCache[tuple[str, date], _CachedPrices] = BoundedCache(ENTRIES_MAX)
        self._reads: SingleFlight[tuple[str, date], Prices] = SingleFlight("pricekeeper-prices")
        self._times_forgotten = 0

    async def find_prices(self, model: Model, day: date) -> Prices:
        """The prices in force on that day, at most a minute old."""
        known = self.recall_prices(model, day)
        if known is not None:
            return known
        key = (model.bedrock_model_id, day)
        return await self._reads.run(key, lambda: self._read(model, day))

    def recall_prices(self, model: Model, day: date) -> Prices | None:
        entry = self._entries.peek((model.bedrock_model_id, day))
        if entry and self._clock.monotonic_ms() - entry.asked_at_ms < STALENESS_MS_MAX:
            return entry.prices
        return None

    async def refresh(
        self, source: PriceSource, *, accept_suspicious: Collection[ModelLabel] = ()
    ) -> RefreshReport:
        """Fill PricingCache from the source; the new prices are in force here at once."""
        report = await refresh(
            self._store, self._clock, self.catalogue, source, accept_suspicious=accept_suspicious
        )
        self.forget()
        return report

    async def publish_file(self) -> int:
        """Write the file's prices to PricingCache where no source states any."""
        return await publish_file(self._store, self._clock, self.catalogue)

    async def check(self, source: PriceSource) -> CheckReport:
        return await check(self._clock, self.catalogue, source)

    def forget(self) -> None:
        """Clear the cache; reads under way are not cached either."""
        self._times_forgotten += 1
        self._entries.clear()
        self._reads.detach_all()

    async def _read(self, model: Model, day: date) -> Prices:
        asked_at_ms = self._clock.monotonic_ms()
        times_forgotten = self._times_forgotten
        item = await self._store.get(PRICING_CACHE, price_key(model, day))
        if item is None or item.get("source") == FILE:
            prices = Prices.of(model.table(), "config")
        else:
            stated = stated_prices(model, item)
            table = combined_prices(model, stated.source, stated.table)
            unused = table != model.table(stated.table)
            unused = unused or (not knows_regions(stated.source) and table == model.table())
            prices = Prices.of(table, "config" if unused else f"pricing-cache:{stated.source}")
        if times_forgotten == self._times_forgotten:
            self._entries.put((model.bedrock_model_id, day), _CachedPrices(prices, asked_at_ms))
        return prices
