"""Prices from AWS's offer files: what is read, and what is not made up.

The files under ``data`` are small, but have the shape and the traps of the real ones.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from certificates import Certificate, make_certificate
from pricekeeper.errors import PriceSourceError
from pricekeeper.pricing import Model
from pricekeeper.pricing.prices import PriceTable
from pricekeeper.pricing.quotes import PriceList, Unmatched
from pricekeeper.pricing.sources import aws_price_list
from pricekeeper.pricing.sources.aws_price_list import OFFERS, AwsPriceList, offer_urls
from pricing.conftest import a_model, a_step, card

DATA = Path(__file__).parent / "data"
FILES = [str(DATA / f"{offer}.json") for offer in OFFERS]
DAY = date(2026, 11, 15)


def named(*names: str, **changes: Any) -> Model:
    return a_model(price_list_names=frozenset(names), **changes)


async def load(*files: str, region: str = "us-east-1") -> PriceList:
    return await AwsPriceList(files or FILES, region).load()


async def test_a_marketplace_model_per_million_tokens() -> None:
    """All five kinds of tokens and batch, in the region asked for, without the global rate."""
    prices = await load()
    opus = named("Claude Opus 5.5", bedrock_model_id="us.anthropic.claude-opus-5-5")

    assert prices.quote(opus, DAY) == PriceTable(
        default=card(4_400_000, 22_000_000, 220_000, 5_500_000, 8_800_000),
        batch=card(2_200_000, 11_000_000),
    )
    assert prices.source == "aws-price-list-us-east-1-2026-09-30"


async def test_a_global_profile_gets_the_global_rows_alone() -> None:
    """The same name, another rate, and no batch price borrowed from the region."""
    prices = await load()
    opus = named("Claude Opus 5.5", bedrock_model_id="global.anthropic.claude-opus-5-5")

    assert prices.quote(opus, DAY) == PriceTable(
        default=card(4_000_000, 20_000_000, 200_000, 5_000_000, 8_000_000)
    )


async def test_another_region_has_its_own_prices() -> None:
    """Rows of other regions in the same file are not looked at."""
    opus = named("Claude Opus 5.5", bedrock_model_id="us.anthropic.claude-opus-5-5")

    quote = (await load(region="us-west-2")).quote(opus, DAY)

    assert quote == PriceTable(default=card(9_900_000, 49_500_000))


async def test_a_model_of_aws_itself_per_thousand_tokens() -> None:
    """Tiers and batch have rows of their own; training and latency-optimised are not among them."""
    nova = named("NovaPro", bedrock_model_id="amazon.nova-pro-v1:0")

    assert (await load()).quote(nova, DAY) == PriceTable(
        default=card(800_000, 3_200_000, 200_000, 0),
        priority=card(1_400_000, 5_600_000),
        flex=card(400_000, 1_600_000),
        batch=card(400_000, 1_600_000),
    )


async def test_the_unit_is_read_and_not_assumed() -> None:
    """One file has prices per thousand tokens and per million."""
    prices = await load()
    grok = a_model(bedrock_model_id="xai.grok-4.3")

    assert prices.quote(grok, DAY) == PriceTable(default=card(1_250_000, 2_500_000))


async def test_the_older_spelling() -> None:
    """Long-context prices that are the plain ones say nothing, and need no threshold."""
    haiku = named("Claude Haiku 4.5", bedrock_model_id="anthropic.claude-haiku-4-5-20251001-v1:0")

    assert (await load()).quote(haiku, DAY) == PriceTable(
        default=card(1_100_000, 5_500_000, 110_000, 1_375_000, 2_200_000),
        batch=card(550_000, 2_750_000),
    )


async def test_long_context_prices_take_the_files_threshold() -> None:
    """The list has the prices of the step, the deployment file knows where it is."""
    plain = card(110_000, 550_000)
    step = a_step(100_000, 1, 1)
    haiku = named("Claude Haiku 5.5", default_pricing=card(110_000, 550_000, steps=(step,)))
    prices = await load()

    quote = prices.quote(haiku, DAY)

    assert isinstance(quote, PriceTable)
    assert quote.default.long_context == (a_step(100_000, 550_000, 2_750_000, 55_000),)
    without = prices.quote(named("Claude Haiku 5.5", default_pricing=plain), DAY)
    assert isinstance(without, Unmatched)
    assert "give models.premium.default_pricing one long_context step" in without.reason


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (a_model(bedrock_model_id="us.anthropic.claude-opus-5-5"), "no regional input and output"),
        (named("Opus 5.5"), "under Opus 5.5, anthropic.claude-3-5-sonnet-20241022-v2:0"),
        (named("Claude Instant"), "no regional input and output price"),
        (named("Claude Opus 5.5", "Claude Haiku 4.5"), "several default prices for input tokens"),
        (named("NovaSonic"), "no regional input and output price under NovaSonic"),
        (named("OpenAI GPT-6 Astra", bedrock_model_id="global.openai.gpt-6-astra"), "no global"),
    ],
)
async def test_what_is_not_certain_is_unmatched(model: Model, reason: str) -> None:
    """No name, half a name, half the prices, or two of them: said, and left alone."""
    quote = (await load()).quote(model, DAY)

    assert isinstance(quote, Unmatched)
    assert reason in quote.reason


async def test_a_price_counts_from_its_date_on() -> None:
    """The file's prices began in September; before that it has none."""
    opus = named("Claude Opus 5.5")
    prices = await load()

    assert isinstance(prices.quote(opus, date(2026, 9, 1)), PriceTable)
    assert isinstance(prices.quote(opus, date(2026, 8, 31)), Unmatched)


async def test_of_several_dates_the_newest_that_has_come_counts(tmp_path: Path) -> None:
    """A price that is announced for tomorrow is tomorrow's."""
    offer = json.loads((DATA / "AmazonBedrock.json").read_text())
    for sku, product in offer["products"].items():
        if product["attributes"]["usagetype"] == "USE1-NovaPro-input-tokens":
            (term,) = offer["terms"]["OnDemand"][sku].values()
            later = json.loads(json.dumps(term)) | {"effectiveDate": "2026-11-16T00:00:00Z"}
            (dimension,) = later["priceDimensions"].values()
            dimension["pricePerUnit"]["USD"] = "0.0007"
            offer["terms"]["OnDemand"][sku][f"{sku}.LATER"] = later
    file = tmp_path / "offer.json"
    file.write_text(json.dumps(offer))
    prices = await load(str(file))

    def price(day: date) -> int | None:
        quote = prices.quote(named("NovaPro"), day)
        assert isinstance(quote, PriceTable)
        return quote.default.input

    assert price(date(2026, 11, 15)) == 800_000
    assert price(date(2026, 11, 16)) == 700_000


async def test_names_that_are_no_models_are_reported() -> None:
    """So that an operator can see, and copy, what the list calls things."""
    prices = await load()
    nova = named("NovaPro")

    unused = prices.unused_names((nova,))

    assert "Claude Opus 5.5" in unused
    assert "openai.gpt-oss-120b" in unused
    assert "NovaSonic-speech" in unused
    assert "NovaPro" not in unused


def broken(change: Any) -> bytes:
    """An offer file with its first price changed."""
    offer = json.loads((DATA / "AmazonBedrockService.json").read_text())
    (term,) = next(iter(offer["terms"]["OnDemand"].values())).values()
    (dimension,) = term["priceDimensions"].values()
    change(dimension)
    return json.dumps(offer).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an offer file"),
        (b"[]", "is not an offer file"),
        (b"\xff", "is not an offer file"),
        (b"{}", "is not an offer file.*publicationDate"),
        (broken(lambda one: one["pricePerUnit"].update(USD="free")), "can't be read: 'free'"),
        (broken(lambda one: one["pricePerUnit"].update(USD="-1")), "'-1' is negative"),
        (broken(lambda one: one["pricePerUnit"].update(USD=3)), "is not an offer file"),
    ],
)
async def test_a_file_that_is_no_offer(tmp_path: Path, content: bytes, message: str) -> None:
    """A typed error that names it."""
    file = tmp_path / "offer.json"
    file.write_bytes(content)

    with pytest.raises(PriceSourceError, match=message):
        await load(str(file))


@pytest.mark.parametrize(
    "change",
    [
        lambda dimension: dimension.update(unit="1B tokens"),
        lambda dimension: dimension.update(pricePerUnit={"CNY": "0.02"}),
    ],
)
async def test_an_unknown_unit_or_currency_prices_nothing(tmp_path: Path, change: Any) -> None:
    """A scale that is guessed is a thousandfold error."""
    file = tmp_path / "offer.json"
    file.write_bytes(broken(change))

    quote = (await load(str(file))).quote(named("Claude4Sonnet"), DAY)

    assert isinstance(quote, Unmatched)


async def test_a_file_that_is_not_there() -> None:
    """Or can't be read."""
    with pytest.raises(PriceSourceError, match=r"nowhere\.json: can't be read: No such file"):
        await load("nowhere.json")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for this machine alone, and whom to trust for it."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture
async def server(certificate: Certificate) -> AsyncIterator[TestServer]:
    """A price list server on this machine, under TLS."""

    async def offer(request: web.Request) -> web.Response:
        file = DATA / request.match_info["file"]
        return web.Response(body=file.read_bytes()) if file.is_file() else web.Response(status=404)

    async def moved(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": request.query.get("to", "/moved")})

    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/offers/{file}", offer)
    app.router.add_get("/moved", moved)
    app.router.add_get("/never", never)
    running = TestServer(app, scheme="https", shutdown_timeout=0)
    await running.start_server(ssl=certificate.server)
    try:
        yield running
    finally:
        await running.close()


async def download(url: object, certificate: Certificate) -> PriceList:
    return await AwsPriceList([str(url)], "us-east-1", tls=certificate.client).load()


async def test_a_file_is_downloaded(server: TestServer, certificate: Certificate) -> None:
    """A URL does as well as a path."""
    prices = await download(server.make_url("/offers/AmazonBedrock.json"), certificate)

    assert isinstance(prices.quote(named("NovaPro"), DAY), PriceTable)


async def test_a_download_that_fails_says_which(
    server: TestServer, certificate: Certificate
) -> None:
    """Not found, or no server."""
    with pytest.raises(PriceSourceError, match="/offers/nothing: can't be downloaded: 404"):
        await download(server.make_url("/offers/nothing"), certificate)
    gone = server.make_url("/offers/AmazonBedrock.json")
    await server.close()
    with pytest.raises(PriceSourceError, match="can't be downloaded"):
        await download(gone, certificate)


async def test_a_download_has_an_end(
    server: TestServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time, in size and in redirects."""
    monkeypatch.setattr(aws_price_list, "DOWNLOAD_SECS_MAX", 0.05)
    with pytest.raises(PriceSourceError, match="can't be downloaded: timeout"):
        await download(server.make_url("/never"), certificate)
    monkeypatch.undo()
    monkeypatch.setattr(aws_price_list, "FILE_BYTES_MAX", 1000)
    with pytest.raises(PriceSourceError, match="is larger than 1000 bytes"):
        await download(server.make_url("/offers/AmazonBedrock.json"), certificate)
    with pytest.raises(PriceSourceError, match="is larger than 1000 bytes"):
        await load(FILES[0])
    with pytest.raises(PriceSourceError, match="redirects more than 3 times"):
        await download(server.make_url("/moved"), certificate)


async def test_a_redirect_stays_at_its_host(server: TestServer, certificate: Certificate) -> None:
    """A price decides every call's cost: only the named host states it, and only under TLS."""
    moved = server.make_url("/moved")
    here = await download(moved.with_query(to="/offers/AmazonBedrock.json"), certificate)
    assert isinstance(here.quote(named("NovaPro"), DAY), PriceTable)

    with pytest.raises(PriceSourceError, match="redirects to another host, localhost:"):
        await download(moved.with_query(to=f"https://localhost:{server.port}/x"), certificate)
    with pytest.raises(PriceSourceError, match="http:// can be changed on its way"):
        await download(moved.with_query(to=f"http://127.0.0.1:{server.port}/x"), certificate)


async def test_plain_http_is_refused() -> None:
    """A machine on the way could change a price."""
    with pytest.raises(PriceSourceError, match="http:// can be changed on its way; use https://"):
        await load("http://127.0.0.1:1/AmazonBedrock.json")


async def test_a_certificate_must_be_trusted(server: TestServer) -> None:
    """Without being told to trust this one, the download fails."""
    with pytest.raises(PriceSourceError, match="can't be downloaded"):
        await load(str(server.make_url("/offers/AmazonBedrock.json")))


def test_where_aws_publishes_them() -> None:
    """Three offers for each region, without credentials."""
    assert [url.split("/")[6] for url in offer_urls("eu-west-1")] == list(OFFERS)
    assert all(url.endswith("/current/eu-west-1/index.json") for url in offer_urls("eu-west-1"))
