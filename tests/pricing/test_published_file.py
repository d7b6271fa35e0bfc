"""PricingCache shows the file's prices where no source states any."""

from collections.abc import Awaitable, Callable
from datetime import date, timedelta

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.pricing import Model, PriceBook
from pricekeeper.pricing.items import FILE, price_key
from pricekeeper.pricing.prices import RateCard
from pricekeeper.storage import Item, Put, Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricing.conftest import CARD, Quotes, a_catalogue, a_model, quoted, utc_day
from stores import ShiftedClock

DEARER = RateCard(input=6_000_000, output=30_000_000)
TEN_TIMES = RateCard(input=30_000_000, output=150_000_000)


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


async def test_the_files_items_do_not_keep_a_source_from_filling_yesterday(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """They only repeat the file, so for a source that day is empty."""
    await PriceBook(
        store, ManualClock(time.now_ms() - 86_400_000), a_catalogue(model)
    ).publish_file()
    book = book_of(store, time, model)

    await book.refresh(Quotes({model.label: quoted(input=2_900_000)}))

    prices = await book.find_prices(model, day - timedelta(days=1))
    assert (prices.source, prices.table.default.input) == ("pricing-cache:quotes-1", 2_900_000)


async def test_an_item_of_an_earlier_file_makes_no_price_suspicious(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """A file with a slipped decimal point was published, then corrected."""
    slipped = a_model(bedrock_model_id=model.bedrock_model_id, default_pricing=TEN_TIMES)
    await book_of(store, time, slipped).publish_file()
    book = book_of(store, time, model)

    report = await book.refresh(Quotes({model.label: quoted(input=2_900_000)}))

    assert not report.refused
    assert (await book.find_prices(model, day)).source == "pricing-cache:quotes-1"


async def test_a_source_that_agrees_with_the_file_is_named(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Its statement replaces the file's item though the prices are the same."""
    await book_of(store, time, model).publish_file()
    book = book_of(store, time, model)

    await book.refresh(Quotes({model.label: model.table()}))

    assert (await item_of(store, model, day))["source"] == "quotes-1"


class _SourceFirst(FaultyStore):
    """A refresh by another instance comes before the first put."""

    def __init__(self, store: Store, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._first = [first]

    async def put(self, operation: Put) -> None:
        while self._first:
            await self._first.pop()()
        await self._store.put(operation)


async def test_a_source_that_is_faster_keeps_its_item(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """It is written after the file's instance has read that there is none."""
    quotes = Quotes({model.label: quoted(input=2_900_000)})
    other = book_of(store, time, model)
    raced = _SourceFirst(store, lambda: other.refresh(quotes))

    assert await book_of(raced, time, model).publish_file() == 0
    assert (await item_of(store, model, day))["source"] == "quotes-1"
