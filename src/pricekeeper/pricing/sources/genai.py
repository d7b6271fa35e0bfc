"""Prices from the `genai-prices` package (the optional extra ``prices``).

It is imported on use, because that is slow, and runs in a thread.

The package finds models by substring and falls back to other providers' APIs, which would be
guesses here. So a listed model is used only if its id, read by our rules, is the configured model
at the configured rate. The package knows no tiers and no batch.

It lists the prices of the United States. So a model with a geographic prefix, ``global.`` or an
ARN's region, or listed under ``regional.``, is a `RegionalQuote`: shown, but never written. For
other models only gaps of the deployment file are filled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from pricekeeper.errors import PriceSourceError
from pricekeeper.pricing.catalogue import Model
from pricekeeper.pricing.model_ids import ModelRef, normalise_model_id
from pricekeeper.pricing.prices import (
    TOKENS_PER_PRICE,
    Component,
    PriceTable,
    RateCard,
    Step,
    usd_price,
)
from pricekeeper.pricing.quotes import PriceList, Quote, RegionalQuote, Unmatched
from pricekeeper.pricing.regions import regional_reason

SOURCE: Final = "genai-prices"

_PROVIDER: Final = "aws"
_REGIONAL: Final = "regional."
_GOVCLOUD: Final = "us-gov"
_NOON_HOUR: Final = 12
_RELEASE: Final = re.compile(
    r"(?P<name>.*?)(-(?P<date>\d{8}))?(-v(?P<version>\d+)(:\d+)?|-(?P<bare_version>\d+):\d+|:\d+)?"
)
_FIRST_VERSION: Final = "1"
_KEYS: Final = {
    Component.INPUT: "input_mtok",
    Component.OUTPUT: "output_mtok",
    Component.CACHE_READ: "cache_read_mtok",
    Component.CACHE_WRITE_5M: "cache_write_mtok",
    Component.CACHE_WRITE_1H: "cache_write_1h_mtok",
}


class GenaiPrices:
    """The package's own list, or with ``update`` the newest that it can download."""

    def __init__(self, *, update: bool = False, mirror_url: str | None = None) -> None:
        self._update = update
        self._mirror_url = mirror_url

    async def load(self) -> PriceList:
        return await asyncio.to_thread(self._load)

    def _load(self) -> PriceList:
        try:
            import genai_prices  # noqa: PLC0415  # see above
            from genai_prices import data_snapshot  # noqa: PLC0415
        except ImportError as error:
            raise PriceSourceError(
                SOURCE, "is not installed; pip install 'bedrock-price-keeper[prices]'"
            ) from error
        snapshot = self._newest() if self._update else data_snapshot.get_snapshot()
        for provider in snapshot.providers:
            if provider.id == _PROVIDER:
                return GenaiPriceList(provider.models, genai_prices.__version__)
        raise PriceSourceError(SOURCE, f"has no provider {_PROVIDER!r}")

    def _newest(self) -> Any:
        import httpx2  # noqa: PLC0415  # what the package downloads with
        from genai_prices import UpdatePrices  # noqa: PLC0415

        updates = UpdatePrices(url=self._mirror_url) if self._mirror_url else UpdatePrices()
        try:
            return updates.fetch()
        except (httpx2.HTTPError, ValueError) as error:
            raise PriceSourceError(SOURCE, f"can't be updated: {error}") from error


class GenaiPriceList:
    """The package's models of the provider ``aws``."""

    def __init__(self, models: Sequence[Any], version: str) -> None:
        self._models = [(_ref(model.id), model) for model in models]
        self.source = f"{SOURCE}-{version}"

    def quote(self, model: Model, day: date) -> Quote:
        if model.ref.geography == _GOVCLOUD:
            return Unmatched("the source knows commercial regions only")
        found = [listed for ref, listed in self._models if _same_release(model.ref, ref)]
        if len(found) != 1:
            ids = ", ".join(sorted(listed.id for listed in found))
            return Unmatched(f"several could be it: {ids}" if found else "not in the list")
        noon = datetime(day.year, day.month, day.day, _NOON_HOUR, tzinfo=UTC)
        table = _table(found[0].get_prices(noon))
        reason = regional_reason(model)
        if reason is None and found[0].id.startswith(_REGIONAL):
            reason = "the source lists it with regional prices"
        if reason is None or isinstance(table, Unmatched):
            return table
        return RegionalQuote(table, f"{reason}, and {SOURCE} does not know regions")

    def unused_names(self, models: tuple[Model, ...]) -> tuple[str, ...]:
        return tuple(
            sorted(
                listed.id
                for ref, listed in self._models
                if not any(_same_release(model.ref, ref) for model in models)
            )
        )


def _ref(listed_id: str) -> ModelRef | None:
    ref = normalise_model_id(listed_id.removeprefix(_REGIONAL))
    return ref if isinstance(ref, ModelRef) else None


def _same_release(configured: ModelRef, listed: ModelRef | None) -> bool:
    """Whether both are one release of one model at one rate.

    A date that only one id states is ignored; an id without a version has the first one.
    """
    if listed is None or configured.scope is not listed.scope:
        return False
    (name, released, version), (its_name, its_release, its_version) = map(
        _release, (configured.base, listed.base)
    )
    same_date = released == its_release or not (released and its_release)
    return name == its_name and version == its_version and same_date


def _release(base: str) -> tuple[str, str | None, str]:
    found = _RELEASE.fullmatch(base)
    if found is None:
        return base, None, _FIRST_VERSION
    return found["name"], found["date"], found["version"] or found["bare_version"] or _FIRST_VERSION


def _table(prices: Any) -> PriceTable | Unmatched:
    """Converts the package's prices, decimal dollars per million tokens."""
    stated = {component: getattr(prices, key, None) for component, key in _KEYS.items()}
    stated = {component: price for component, price in stated.items() if price is not None}
    if not {Component.INPUT, Component.OUTPUT} <= stated.keys():
        return Unmatched("the source has no input or no output price")
    starts = sorted(
        {tier.start for price in stated.values() for tier in getattr(price, "tiers", ())}
    )
    return PriceTable(
        default=RateCard(
            **{component.value: _micros(price, 0) for component, price in stated.items()},
            long_context=tuple(
                Step(
                    over_input_tokens=start,
                    **{
                        component.value: _micros(price, start)
                        for component, price in stated.items()
                    },
                )
                for start in starts
            ),
        )
    )


def _micros(price: Any, start: int) -> int:
    usd: Decimal = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        if tier.start <= start:
            usd = tier.price
    return usd_price(usd, TOKENS_PER_PRICE)
