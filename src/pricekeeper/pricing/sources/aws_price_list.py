"""Prices from AWS's bulk price list: its offer files for Bedrock, local or downloaded.

They need no credentials. The list names models as the invoice does, so the deployment file states
the names of a model (``price_list_names``), compared as a whole. Nothing is made up: an unknown
unit, two prices for one thing, or long-context prices without a threshold leave the model
unmatched.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from pricekeeper.errors import PriceSourceError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.model_ids import RateScope
from pricekeeper.pricing.prices import Component, PriceTable, RateCard, Step, Variant, usd_price
from pricekeeper.pricing.quotes import PriceList, Quote, RegionalQuote, Unmatched
from pricekeeper.pricing.regions import region_mismatch

if TYPE_CHECKING:
    import aiohttp

_MARKETPLACE: Final = re.compile(r"[A-Z]{2,4}\d?-MP:(?:[A-Z]{2,4}\d?_)?(?P<meter>\w+)-Units")
_CAMEL: Final = re.compile(r"(?P<kind>[A-Za-z0-9]+)TokenCount(?P<rest>\w*)")
_CAMEL_KINDS: Final = {
    "Input": "input-tokens",
    "Output": "output-tokens",
    "CacheReadInput": "cache-read-tokens",
    "CacheWriteInput": "cache-write-tokens",
    "CacheWrite1hInput": "cache-write-tokens-1h",
}
_OWN: Final = re.compile(
    r"[A-Z]{2,4}\d?-(?P<name>.+?)(?:-mantle)?-(?:text-)?"
    r"(?P<meter>(?:cache-(?:read|write)-)?(?:input-|output-)?token(?:s|-count)(?:-[a-z0-9-]+)?)"
)
_METER: Final = re.compile(
    r"(?P<kind>input|output|cache-read|cache-write)(?:-input)?-token(?:s|-count)(?P<words>.*)"
)
_COMPONENTS: Final = {
    "input": Component.INPUT,
    "output": Component.OUTPUT,
    "cache-read": Component.CACHE_READ,
}
_CACHE_WRITES: Final = {
    "": Component.CACHE_WRITE_5M,
    "5m": Component.CACHE_WRITE_5M,
    "1h": Component.CACHE_WRITE_1H,
}
_PHRASES: Final = (
    ("cross-region-global", "global"),
    ("long-context", "long"),
    ("long-ctx", "long"),
    ("lctx", "long"),
)
_VARIANTS: Final = {
    "standard": Variant.DEFAULT,
    "batch": Variant.BATCH,
    "flex": Variant.FLEX,
    "priority": Variant.PRIORITY,
}


class Meter(msgspec.Struct, frozen=True):
    """What a row of the price list charges for."""

    component: Component
    variant: Variant = Variant.DEFAULT
    scope: RateScope = RateScope.REGIONAL
    long_context: bool = False


def read_usage_type(usage_type: str) -> tuple[str, Meter] | None:
    """The model's name in the usage type (empty if it has none) and the meter, if known.

    Unknown words before the meter are part of the name (``NovaSonic-speech``).
    """
    if marketplace := _MARKETPLACE.fullmatch(usage_type):
        meter = _meter(_hyphenated(marketplace["meter"]))
        return ("", meter) if meter else None
    if own := _OWN.fullmatch(usage_type):
        meter = _meter(own["meter"])
        return (own["name"], meter) if meter else None
    return None


def _hyphenated(meter: str) -> str:
    if (camel := _CAMEL.fullmatch(meter)) and camel["kind"] in _CAMEL_KINDS:
        return _CAMEL_KINDS[camel["kind"]] + camel["rest"].lower().replace("_", "-")
    return meter.replace("_", "-")


def _meter(text: str) -> Meter | None:
    for phrase, word in _PHRASES:
        text = text.replace(phrase, word)
    found = _METER.fullmatch(text)
    if found is None:
        return None
    words = found["words"].split("-")[1:]
    lasts = [word for word in words if word in _CACHE_WRITES]
    tiers = [word for word in words if word in _VARIANTS]
    known = {*lasts, *tiers, "global", "long", "geo"}
    if found["words"][:1] not in ("", "-") or len(lasts) > 1 or len(tiers) > 1:
        return None
    if len(set(words)) < len(words) or not known.issuperset(words):
        return None
    component = _COMPONENTS.get(found["kind"])
    if component is None:
        component = _CACHE_WRITES["".join(lasts)]
    elif lasts:
        return None
    return Meter(
        component,
        _VARIANTS["".join(tiers) or "standard"],
        RateScope.GLOBAL if "global" in words else RateScope.REGIONAL,
        "long" in words,
    )


SOURCE: Final = "aws-price-list"
OFFERS: Final = ("AmazonBedrock", "AmazonBedrockFoundationModels", "AmazonBedrockService")
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
DOWNLOAD_SECS_MAX: Final = 60
REDIRECTS_MAX: Final = 3

_URL: Final = (
    "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/{offer}/current/{region}/index.json"
)
_EDITION: Final = " (Amazon Bedrock Edition)"
_UNITS: Final = {"1K tokens": 1_000, "1M tokens": 1_000_000}
_DATE_LENGTH: Final = len("2026-01-23")

_Level = tuple[Variant, bool]
_Rates = dict[str, int]


class _Attributes(msgspec.Struct, rename="camel"):
    usagetype: str = ""
    servicename: str = ""
    region_code: str = ""


class _Product(msgspec.Struct):
    attributes: _Attributes


class _Dimension(msgspec.Struct, rename="camel"):
    unit: str = ""
    price_per_unit: dict[str, str] = {}


class _Term(msgspec.Struct, rename="camel"):
    effective_date: str
    price_dimensions: dict[str, _Dimension]


class _Terms(msgspec.Struct, rename="pascal"):
    on_demand: dict[str, dict[str, _Term]] = {}


class _Offer(msgspec.Struct, rename="camel"):
    publication_date: str
    products: dict[str, _Product]
    terms: _Terms


class _Row(NamedTuple):
    meter: Meter
    since: date
    usd_micros_per_1m: int


def offer_urls(region: str) -> tuple[str, ...]:
    """The URLs of AWS's offers for that region."""
    return tuple(_URL.format(offer=offer, region=region) for offer in OFFERS)


class AwsPriceList:
    """Offer files of one region, each a path or an https URL.

    A file is downloaded only from the named host and only with TLS, because a price decides every
    cost. ``tls`` replaces the system's certificate authorities.
    """

    def __init__(
        self, locations: Sequence[str], region: str, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._locations = tuple(locations)
        self._region = region
        self._tls = tls

    async def load(self) -> PriceList:
        offers = []
        for location in self._locations:
            if "://" in location:
                content = await self._download(location)
            else:
                content = await asyncio.to_thread(_read, location)
            offers.append(await asyncio.to_thread(_decode, location, content))
        try:
            return await asyncio.to_thread(AwsOffers, offers, self._region)
        except ValueError as error:
            raise PriceSourceError(SOURCE, f"a price or date can't be read: {error}") from error

    async def _download(self, url: str) -> bytes:
        import aiohttp  # noqa: PLC0415  # only here is it needed

        timeout = aiohttp.ClientTimeout(total=DOWNLOAD_SECS_MAX)
        connector = aiohttp.TCPConnector(ssl=self._tls or True)
        try:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                target = url
                for _ in range(REDIRECTS_MAX + 1):
                    _check_target(target, url)
                    async with session.get(target, allow_redirects=False) as response:
                        response.raise_for_status()
                        if "location" not in response.headers:
                            return await _read_response(response, url)
                        target = urljoin(target, response.headers["location"])
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reason = str(error) or "timeout"
            raise PriceSourceError(url, f"can't be downloaded: {reason}") from error
        raise PriceSourceError(url, f"redirects more than {REDIRECTS_MAX} times")


class AwsOffers:
    """The prices of some offer files, in one region."""

    def __init__(self, offers: Iterable[_Offer], region: str) -> None:
        published = ""
        self._rows: dict[str, list[_Row]] = defaultdict(list)
        for offer in offers:
            published = max(published, offer.publication_date[:_DATE_LENGTH])
            for sku, product in offer.products.items():
                if product.attributes.region_code == region:
                    self._add(product.attributes, offer.terms.on_demand.get(sku, {}))
        self._region = region
        self.source = f"{SOURCE}-{region}-{published}"

    def quote(self, model: Model, day: date) -> Quote:
        levels: dict[_Level, _Rates] = defaultdict(dict)
        for meter, price in self._in_force(model, day).items():
            if len(price) > 1:
                return Unmatched(
                    f"several {meter.variant} prices for {meter.component} tokens under "
                    + ", ".join(sorted(_names(model)))
                )
            levels[meter.variant, meter.long_context][meter.component.value] = price.pop()
        default = levels[Variant.DEFAULT, False]
        if not {"input", "output"} <= default.keys():
            names = ", ".join(sorted(_names(model)))
            return Unmatched(f"no {model.ref.scope} input and output price under {names}")
        table, mismatch = _table(model, levels), region_mismatch(model, self._region)
        if mismatch is None or isinstance(table, Unmatched):
            return table
        return RegionalQuote(table, mismatch)

    def unused_names(self, models: tuple[Model, ...]) -> tuple[str, ...]:
        used = {name for model in models for name in _names(model)}
        return tuple(sorted(self._rows.keys() - used))

    def _add(self, attributes: _Attributes, terms: dict[str, _Term]) -> None:
        read = read_usage_type(attributes.usagetype)
        if read is None:
            return
        name, meter = read
        name = name or attributes.servicename.removesuffix(_EDITION)
        for term in terms.values():
            for dimension in term.price_dimensions.values():
                per_tokens = _UNITS.get(dimension.unit)
                usd = dimension.price_per_unit.get("USD")
                if per_tokens and usd is not None:
                    since = date.fromisoformat(term.effective_date[:_DATE_LENGTH])
                    self._rows[name].append(_Row(meter, since, usd_price(usd, per_tokens)))

    def _in_force(self, model: Model, day: date) -> dict[Meter, set[int]]:
        """The prices of each of the model's meters on that day; more than one is a conflict."""
        newest: dict[Meter, tuple[date, set[int]]] = {}
        for name in _names(model):
            for row in self._rows.get(name, ()):
                if row.meter.scope is not model.ref.scope or row.since > day:
                    continue
                since, prices = newest.get(row.meter, (date.min, set()))
                if row.since > since:
                    newest[row.meter] = row.since, {row.usd_micros_per_1m}
                elif row.since == since:
                    prices.add(row.usd_micros_per_1m)
        return {meter: prices for meter, (_, prices) in newest.items()}


def _names(model: Model) -> frozenset[str]:
    return model.price_list_names | {model.ref.base}


def _table(model: Model, levels: dict[_Level, _Rates]) -> PriceTable | Unmatched:
    """The table of these rates; long-context prices get the file's threshold."""
    cards: dict[str, RateCard] = {}
    for variant in Variant:
        rates, long = levels[variant, False], levels[variant, True]
        steps: tuple[Step, ...] = ()
        if any(rates.get(component) != price for component, price in long.items()):
            known = model.default_pricing.long_context
            if len(known) != 1:
                return Unmatched(
                    "the list has long-context prices but not from how many tokens on; "
                    f"give models.{model.label}.default_pricing one long_context step"
                )
            steps = (Step(over_input_tokens=known[0].over_input_tokens, **long),)
        if rates or steps:
            cards[variant.value] = RateCard(**rates, long_context=steps)
    return PriceTable(**cards)


def _read(location: str) -> bytes:
    path = Path(location)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PriceSourceError(location, f"is larger than {FILE_BYTES_MAX} bytes")
        return path.read_bytes()
    except OSError as error:
        raise PriceSourceError(location, f"can't be read: {error.strerror}") from error


def _check_target(target: str, url: str) -> None:
    parts, named = urlsplit(target), urlsplit(url)
    if parts.scheme != "https":
        raise PriceSourceError(url, f"{parts.scheme}:// can be changed on its way; use https://")
    if (parts.hostname, parts.port) != (named.hostname, named.port):
        raise PriceSourceError(url, f"redirects to another host, {parts.netloc}; name that one")


async def _read_response(response: aiohttp.ClientResponse, url: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(1024 * 1024):
        content += chunk
        if len(content) > FILE_BYTES_MAX:
            raise PriceSourceError(url, f"is larger than {FILE_BYTES_MAX} bytes")
    return bytes(content)


def _decode(location: str, content: bytes) -> _Offer:
    try:
        return msgspec.json.decode(content, type=_Offer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PriceSourceError(location, f"is not an offer file: {error}") from error
