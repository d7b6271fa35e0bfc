"""The sources of prices, besides the deployment file.

Importing this is cheap: what only a refresh needs is imported when a source is loaded.
"""

from pricekeeper.pricing.sources.aws_price_list import AwsPriceList, offer_urls
from pricekeeper.pricing.sources.genai import GenaiPrices

__all__ = ["AwsPriceList", "GenaiPrices", "offer_urls"]
