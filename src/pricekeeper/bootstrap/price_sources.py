"""From the name of a price source, as settings and commands give it, to the source itself."""

from __future__ import annotations

from typing import Final

from pricekeeper.errors import SettingsError
from pricekeeper.pricing import PriceSource
from pricekeeper.settings import PRICE_SOURCE

_AWS: Final = "aws:"
_FORMS: Final = "use genai-prices, aws:REGION, or aws:REGION:FILE_OR_URL[,FILE_OR_URL...]"


def price_source(text: str) -> PriceSource:
    """The source of that name; what it needs is imported here, since few processes do."""
    if text == "genai-prices":
        from pricekeeper.pricing.sources.genai import GenaiPrices  # noqa: PLC0415

        return GenaiPrices()
    if text.startswith(_AWS):
        from pricekeeper.pricing.sources.aws_price_list import AwsPriceList, offer_urls  # noqa: PLC0415

        region, _, places = text.removeprefix(_AWS).partition(":")
        if region:
            locations = places.split(",") if places else offer_urls(region)
            return AwsPriceList(locations, region)
    raise SettingsError(PRICE_SOURCE, f"{text!r} is no source; {_FORMS}")
