"""What the tests of prices share: every store, a few models, and a source that a test fills."""

import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import pytest

from pricekeeper.clock import Clock, ManualClock
from pricekeeper.pricing import Catalogue, Model, ModelRef, normalise_model_id
from pricekeeper.pricing.prices import COMPONENTS, PriceTable, RateCard, Step
from pricekeeper.pricing.quotes import Quote, Unmatched
from pricekeeper.values import ModelLabel
from stores import ShiftedClock, clock, location, meter, store, table_prefix

__all__ = ["clock", "location", "meter", "store", "table_prefix"]


def card(*prices: int, steps: tuple[Step, ...] = ()) -> RateCard:
    """Of input, output, cache reads, and writes for five minutes and an hour."""
    return RateCard(**dict(zip(COMPONENTS, prices, strict=False)), long_context=steps)


def a_step(over_input_tokens: int, *prices: int) -> Step:
    return Step(over_input_tokens=over_input_tokens, **dict(zip(COMPONENTS, prices, strict=False)))


def a_model(**changes: Any) -> Model:
    """The schema document's example, with a test's own changes."""
    fields: dict[str, Any] = {
        "label": "premium",
        "bedrock_model_id": "anthropic.claude-3-5-sonnet-20241022-v2:0",
        "family": "claude-3.5",
        "tier": "premium",
        "description": "Claude 3.5 Sonnet v2",
        "default_pricing": CARD,
    } | changes
    ref = normalise_model_id(fields.pop("priced_as", fields["bedrock_model_id"]))
    assert isinstance(ref, ModelRef)
    return Model(ref=ref, **fields)


CARD = card(3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000)


def a_catalogue(*models: Model) -> Catalogue:
    return Catalogue({model.label: model for model in models}, "a test")


def utc_day(clock: Clock) -> date:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date()


class Quotes:
    """A source that says what the test tells it to, by label or by label and day."""

    def __init__(self, quotes: Mapping[Any, Quote], source: str = "quotes-1") -> None:
        self.quotes = dict(quotes)
        self.source = source

    async def load(self) -> "Quotes":
        return self

    def quote(self, model: Model, day: date) -> Quote:
        dated = self.quotes.get((model.label, day))
        return dated or self.quotes.get(model.label) or Unmatched("not in the list")

    def unused_names(self, models: tuple[Model, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(self.quotes) - {model.label for model in models}))


def quoted(**prices: Any) -> PriceTable:
    """A source's statement that has default prices only."""
    return PriceTable(default=RateCard(**{"input": 3_000_000, "output": 15_000_000} | prices))


@pytest.fixture
def time(clock: ShiftedClock) -> ManualClock:
    """A fixed time, so that no test runs over midnight."""
    return ManualClock(clock.now_ms())


@pytest.fixture
def day(time: ManualClock) -> date:
    return utc_day(time)


@pytest.fixture
def model() -> Model:
    """A model that no other test has prices for: the engine's tables outlive a test."""
    return a_model(bedrock_model_id=f"anthropic.claude-{uuid.uuid4().hex}")


@pytest.fixture
def other_model() -> Model:
    return a_model(label=ModelLabel("economy"), bedrock_model_id=f"amazon.nova-{uuid.uuid4().hex}")
