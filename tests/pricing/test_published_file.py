"""PricingCache shows the file's prices where no source states any."""

from datetime import date, timedelta

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.pricing import Model, PriceBook
from pricekeeper.pricing.items import FILE, price_key
from pricekeeper.pricing.prices import RateCard
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricing.conftest import CARD, Quotes, a_catalogue, a_model, quoted, utc_day
from stores import ShiftedClock

DEARER = RateCard(input=6_000_000, output=30_000_000)


@pytest.fixture
def day(clock: ShiftedClock) -> date:
    return utc_day(clock)


def book_of(store: Store, time: ManualClock, model: Model) -> PriceBook:
    return PriceBook(store, time, a_catalogue(model))


async def item_of(store: Store, model: Model, day: date) -> Item:
    item = await store.get(PRICING_CACHE, price_key(model, day))
    assert item is not None
    return item


async def test_an_item_has_what_the_schema_document_names(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """For today and tomorrow; a second instance writes nothing."""
    assert await book_of(store, time, model).publish_file() == 2
    assert await book_of(store, time, model).publish_file() == 0

    for one in (day, day + timedelta(days=1)):
        item = await item_of(store, model, one)
        assert (item["model_label"], item["tier"], item["family"]) == (
            model.label, model.tier, model.family,
        )  # fmt: skip
        assert item["description"] == model.description
        assert item["source"] == FILE
        assert item["input_price_usd_micros_per_1m"] == CARD.input
        assert item["output_price_usd_micros_per_1m"] == CARD.output


async def test_a_changed_file_counts_at_once_and_replaces_its_items(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """An item of the earlier file prices nothing."""
    await book_of(store, time, model).publish_file()
    changed = a_model(bedrock_model_id=model.bedrock_model_id, default_pricing=DEARER)
    book = book_of(store, time, changed)

    prices = await book.find_prices(changed, day)
    assert (prices.source, prices.table.default.input) == ("config", DEARER.input)
    assert await book.publish_file() == 2
    assert (await item_of(store, model, day))["input_price_usd_micros_per_1m"] == DEARER.input


async def test_a_source_counts_before_the_file_whichever_was_written_first(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Also a source that was asked before the file's item was written."""
    earlier = ManualClock(time.now_ms() - 5_000)
    await book_of(store, time, model).publish_file()

    await book_of(store, earlier, model).refresh(Quotes({model.label: quoted(input=2_900_000)}))

    book = book_of(store, time, model)
    assert await book.publish_file() == 0
    assert (await book.find_prices(model, day)).source == "pricing-cache:quotes-1"
