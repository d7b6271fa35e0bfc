"""Prices from the installed `genai-prices` package: no copy of it, no network."""

import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pricekeeper.clock import ManualClock
from pricekeeper.errors import PriceSourceError
from pricekeeper.pricing import load_catalogue
from pricekeeper.pricing.prices import PriceTable
from pricekeeper.pricing.quotes import PriceList, Quote, RegionalQuote, Unmatched
from pricekeeper.pricing.refresh import check
from pricekeeper.pricing.sources.genai import GenaiPrices
from pricing.conftest import a_model, a_step, card

genai_prices = pytest.importorskip("genai_prices", reason="the extra 'prices' is not installed")

DAY = date(2026, 11, 15)
NOON_MS = 1_794_744_000_000  # of that day
EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"


def regional(quote: Quote) -> PriceTable:
    """The prices of a model that may cost something else in another region."""
    assert isinstance(quote, RegionalQuote)
    return quote.table


@pytest.fixture
async def prices() -> PriceList:
    return await GenaiPrices().load()


def test_a_price_with_both_cache_durations(prices: PriceList) -> None:
    """Decimal dollars per million tokens become integer micro-dollars."""
    model = a_model(bedrock_model_id="us.anthropic.claude-haiku-4-5-20251001-v1:0")

    assert regional(prices.quote(model, DAY)) == PriceTable(
        default=card(1_100_000, 5_500_000, 110_000, 1_375_000, 2_200_000)
    )
    assert prices.source == f"genai-prices-{genai_prices.__version__}"


def test_a_price_with_a_step(prices: PriceList) -> None:
    """Over the threshold, as we have it."""
    quote = prices.quote(a_model(bedrock_model_id="us.openai.gpt-6-sol"), DAY)

    assert regional(quote).default.long_context == (
        a_step(272_000, 4_400_000, 16_500_000, 440_000, 5_500_000),
    )


def test_a_global_profile_has_the_global_price(prices: PriceList) -> None:
    """The package would answer a substring; we take the model at its own rate, or none."""
    nearby = prices.quote(a_model(bedrock_model_id="us.anthropic.claude-sonnet-5-5"), DAY)
    world = prices.quote(a_model(bedrock_model_id="global.anthropic.claude-sonnet-5-5"), DAY)

    assert regional(nearby).default.input == 2_200_000
    assert regional(world).default.input == 2_000_000


@pytest.mark.parametrize(
    ("configured", "listed"),
    [
        ("anthropic.claude-opus-4-5-20251101-v1:0", "regional.anthropic.claude-opus-4-5-v1:0"),
        ("eu.anthropic.claude-sonnet-5", "regional.anthropic.claude-sonnet-5-v1:0"),
        ("anthropic.claude-opus-5-5-v1:0", "regional.anthropic.claude-opus-5-5"),
        ("openai.gpt-oss-120b-1:0", "openai.gpt-oss-120b-1:0"),
    ],
)
def test_a_date_or_first_version_that_one_side_leaves_out(
    prices: PriceList, configured: str, listed: str
) -> None:
    """The ids differ in spelling only."""
    model = a_model(bedrock_model_id=configured)

    assert not isinstance(prices.quote(model, DAY), Unmatched)
    assert listed not in prices.unused_names((model,))


@pytest.mark.parametrize(
    ("model_id", "reason"),
    [
        ("anthropic.claude-3-5-sonnet-20250101-v2:0", "not in the list"),
        ("anthropic.claude-3-5-sonnet-20241022-v3:0", "not in the list"),
        ("anthropic.claude-opus-5-55", "not in the list"),
        ("anthropic.claude-opus-4-5x", "not in the list"),
        ("global.anthropic.claude-3-5-sonnet-20241022-v2:0", "not in the list"),
        ("cohere.command-r-v1:0", "not in the list"),
        ("us-gov.anthropic.claude-haiku-4-5-20251001-v1:0", "commercial regions only"),
        ("amazon.titan-embed-text-v2:0", "no input or no output price"),
    ],
)
def test_what_is_not_that_very_model_is_unmatched(
    prices: PriceList, model_id: str, reason: str
) -> None:
    """Another date, version, rate or longer name is another model, even if the package finds it."""
    quote = prices.quote(a_model(bedrock_model_id=model_id), DAY)

    assert isinstance(quote, Unmatched)
    assert reason in quote.reason


def test_a_price_is_the_one_of_its_day(prices: PriceList) -> None:
    """The package has dated prices, so each day is asked for by itself."""
    model = a_model(bedrock_model_id="global.openai.gpt-5.6-sol")

    seen = {regional(prices.quote(model, day)).default.input for day in (date(2026, 7, 1), DAY)}

    assert len(seen) == 2


@pytest.mark.parametrize("file", [None, EXAMPLE], ids=["built-in", "example"])
async def test_our_own_files_have_the_prices_of_the_package(file: Path | None) -> None:
    """The defaults were not made up: every one of them is in the list, at that price."""
    report = await check(ManualClock(NOON_MS), load_catalogue(file), GenaiPrices())

    assert report.differing == ()
    assert report.unmatched == ()
    assert [one for one in report.left_alone if one.differing] == []
    seen = {*report.agreeing, *(one.label for one in report.left_alone)}
    assert seen == set(load_catalogue(file).labels)


async def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typed error, and the fix."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)

    with pytest.raises(PriceSourceError, match=r"pip install 'bedrock-price-keeper\[prices\]'"):
        await GenaiPrices().load()


def test_the_request_path_never_imports_the_package() -> None:
    """Nor anything else that only a refresh needs."""
    program = """
import sys
import pricekeeper.pricing
from pricekeeper.pricing.sources.genai import GenaiPrices
pricekeeper.pricing.load_catalogue()
print([name for name in ("genai_prices", "pydantic", "httpx2", "aiohttp") if name in sys.modules])
"""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


LIST = """[{"id": "aws", "name": "AWS", "api_pattern": "x", "models": [
  {"id": "acme.model-v1:0", "match": {"equals": "acme.model"},
   "prices": {"input_mtok": 1.5, "output_mtok": 6}}]}]"""


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """A mirror of the package's list, on this machine."""

    async def answer(request: web.Request) -> web.Response:
        texts = {"/list": LIST, "/other": "[]", "/broken": "{"}
        text = texts.get(request.path)
        return web.Response(text=text) if text else web.Response(status=500)

    app = web.Application()
    app.router.add_get("/{name}", answer)
    running = TestServer(app)
    async with running:
        yield running


async def test_the_newest_list_can_be_downloaded(server: TestServer) -> None:
    """Instead of the one that came with the package."""
    prices = await GenaiPrices(update=True, mirror_url=str(server.make_url("/list"))).load()

    assert prices.quote(a_model(bedrock_model_id="acme.model-v1:0"), DAY) == PriceTable(
        default=card(1_500_000, 6_000_000)
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nothing", "can't be updated: .*500"),
        ("/broken", "can't be updated"),
        ("/other", "has no provider 'aws'"),
    ],
)
async def test_a_download_that_fails_is_told(server: TestServer, path: str, message: str) -> None:
    """The old list is not quietly used instead."""
    source = GenaiPrices(update=True, mirror_url=str(server.make_url(path)))

    with pytest.raises(PriceSourceError, match=message):
        await source.load()
