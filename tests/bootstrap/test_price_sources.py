"""From the name of a price source to the source."""

from pathlib import Path

from pricekeeper.bootstrap import price_source
from pricekeeper.pricing.sources.aws_price_list import AwsPriceList, offer_urls
from pricekeeper.pricing.sources.genai import GenaiPrices
from pricekeeper.settings import parse_price_location

OFFERS = Path(__file__).parent.parent / "pricing" / "data"


async def test_a_package_a_region_or_files_of_a_region() -> None:
    """The names that the documentation gives; the files are really read."""
    assert isinstance(price_source(parse_price_location("genai-prices")), GenaiPrices)
    assert isinstance(price_source(parse_price_location("aws:eu-central-1")), AwsPriceList)
    files = ",".join(str(path) for path in sorted(OFFERS.glob("*.json")))
    source = price_source(parse_price_location(f"aws:us-east-1:{files}"))
    assert isinstance(source, AwsPriceList)
    assert await source.load()


def test_a_region_alone_means_the_public_price_list() -> None:
    """Over HTTPS, and of that region."""
    urls = offer_urls("eu-central-1")
    assert all(url.startswith("https://") and "/eu-central-1/" in url for url in urls)
