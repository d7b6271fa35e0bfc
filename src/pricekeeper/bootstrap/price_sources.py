"""Makes the price source that settings or a command name."""

from __future__ import annotations

from pricekeeper.pricing import PriceSource
from pricekeeper.settings import AwsPriceLocation, PriceLocation


def price_source(location: PriceLocation) -> PriceSource:
    """The source there; what it needs is imported here, since few processes do."""
    if isinstance(location, AwsPriceLocation):
        from pricekeeper.pricing.sources.aws_price_list import AwsPriceList, offer_urls  # noqa: PLC0415

        return AwsPriceList(location.sources or offer_urls(location.region), location.region)
    from pricekeeper.pricing.sources.genai import GenaiPrices  # noqa: PLC0415

    return GenaiPrices()
