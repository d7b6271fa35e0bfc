"""Which prices are in force: the day's item, the file under it, and a minute's memory."""

import asyncio
import uuid
from collections.abc import Awaitable
from datetime import date, timedelta
from typing import Any

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreUnavailableError, UnpricedUsageError
from pricekeeper.pricing import Model, PriceBook, service
from pricekeeper.pricing.catalogue import VariantPricing
from pricekeeper.pricing.items import StatedPrices, price_item, price_key
from pricekeeper.pricing.prices import PriceTable, Step, Variant
from pricekeeper.storage import Item, Key, Put, Store, Table
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import StoreMeter
from pricing.conftest import CARD, Quotes, a_catalogue, a_model, a_step, card, quoted, utc_day
from stores import ShiftedClock

MINUTE_MS = 60_000


@pytest.fixture
def time() -> ManualClock:
    """The book's own time, which a test moves; the store keeps the real one."""
    return ManualClock()


@pytest.fixture
def day(clock: ShiftedClock) -> date:
    return utc_day(clock)


@pytest.fixture
def book(store: Store, time: ManualClock, model: Model) -> PriceBook:
    return PriceBook(store, time, a_catalogue(model))


async def state(store: Store, model: Model, day: date, table: PriceTable) -> None:
    stated = StatedPrices(table=table, source="quotes-9", fetched_at_epoch=1_768_000_000)
    await store.put(Put(PRICING_CACHE, price_item(model, day, stated)))


async def test_without_an_item_the_file_counts(book: PriceBook, model: Model, day: date) -> None:
    """And the answer says so."""
    prices = await book.find_prices(model, day)

    assert prices.table == model.table()
    assert prices.source == "config"
    assert prices.table.default == CARD


async def test_an_item_of_the_day_counts_before_the_file(
    store: Store, book: PriceBook, model: Model, day: date
) -> None:
    """What the source did not say is still the file's; the version is of what results."""
    await state(store, model, day, quoted(input=2_900_000))

    prices = await book.find_prices(model, day)

    assert prices.source == "pricing-cache:quotes-9"
    assert prices.table.default.input == 2_900_000
    assert prices.table.default.cache_read == CARD.cache_read
    other_day = await book.find_prices(model, day + timedelta(days=1))
    assert other_day.source == "config"
    assert other_day.version != prices.version


async def test_everything_that_can_be_priced_survives_the_store(
    store: Store, time: ManualClock, day: date
) -> None:
    """Steps, tiers and batch come back as they were stated."""
    model = a_model(bedrock_model_id=f"anthropic.claude-{uuid.uuid4().hex}")
    partial = Step(over_input_tokens=200_000, input=8, output=9, cache_write_1h=10)
    stated = card(1_000_001, 0, 3, 4, 5, steps=(a_step(100_000, 6, 7), partial))
    table = PriceTable(**dict.fromkeys((variant.value for variant in Variant), stated))
    await state(store, model, day, table)

    prices = await PriceBook(store, time, a_catalogue(model)).find_prices(model, day)

    assert prices.table == table


async def test_an_item_that_follows_the_schema_document_alone(
    store: Store, book: PriceBook, model: Model, day: date
) -> None:
    """Other programs that fill the table need not know our further attributes."""
    item: Item = {
        "PK": model.bedrock_model_id,
        "SK": day.isoformat(),
        "model_label": "premium",
        "tier": "premium",
        "family": "claude-3.5",
        "description": "Claude 3.5 Sonnet v2",
        "input_price_usd_micros_per_1m": 2_000_000,
        "output_price_usd_micros_per_1m": 9_000_000,
        "fetched_at_epoch": 1_737_590_400,
        "expires_at_epoch": 4_102_444_800,
    }
    await store.put(Put(PRICING_CACHE, item))

    prices = await book.find_prices(model, day)

    assert (prices.table.default.input, prices.table.default.output) == (2_000_000, 9_000_000)
    assert prices.source == "pricing-cache:unnamed"


async def test_an_item_has_the_attributes_of_the_schema_document(
    store: Store, model: Model, day: date
) -> None:
    """The documents attributes, ours beside them, and an expiry three days after the day began."""
    await state(store, model, day, quoted(cache_read=1))

    item = await store.get(PRICING_CACHE, Key(model.bedrock_model_id, day.isoformat()))

    assert item is not None
    midnight = (day - date(1970, 1, 1)).days * 86_400
    assert item == {
        "PK": model.bedrock_model_id,
        "SK": day.isoformat(),
        "model_label": "premium",
        "tier": "premium",
        "family": "claude-3.5",
        "description": "Claude 3.5 Sonnet v2",
        "input_price_usd_micros_per_1m": 3_000_000,
        "output_price_usd_micros_per_1m": 15_000_000,
        "cache_read_price_usd_micros_per_1m": 1,
        "source": "quotes-9",
        "version": item["version"],
        "fetched_at_epoch": 1_768_000_000,
        "expires_at_epoch": midnight + 3 * 86_400,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"input_price_usd_micros_per_1m": "3"},
        {"input_price_usd_micros_per_1m": -3},
        {"output_price_usd_micros_per_1m": None},
        {"service_tiers": {"turbo": {}, "flex": {"input_price_usd_micros_per_1m": "x"}}},
        {"long_context": [{"input_price_usd_micros_per_1m": 1}]},
        {"batch": {"typo": 1}},
        {"service_tiers": ["flex"]},
        {"source": 7},
    ],
)
async def test_an_item_that_makes_no_sense_prices_nothing(
    store: Store, book: PriceBook, model: Model, day: date, change: dict[str, Any]
) -> None:
    """It is not skipped in favour of the file: another price was meant."""
    await state(store, model, day, quoted())
    item = await store.get(PRICING_CACHE, price_key(model, day))
    assert item is not None
    await store.put(Put(PRICING_CACHE, item | change))

    with pytest.raises(
        UnpricedUsageError, match=r"the PricingCache item .* can't be used"
    ) as caught:
        await book.find_prices(model, day)

    assert "refresh the prices, or delete the item" in caught.value.fix


async def test_a_cold_lookup_is_one_read_and_a_warm_one_none(
    book: PriceBook, model: Model, day: date, meter: StoreMeter
) -> None:
    """However many ask, also at once."""
    meter.clear()

    await asyncio.gather(*(book.find_prices(model, day) for _ in range(100)))
    assert dict(meter.calls) == {"get": 1}
    for _ in range(10):
        await book.find_prices(model, day)

    assert dict(meter.calls) == {"get": 1}


async def test_an_answer_is_at_most_a_minute_old(
    store: Store, book: PriceBook, time: ManualClock, model: Model, day: date
) -> None:
    """Another instance's refresh is seen within sixty seconds."""
    await book.find_prices(model, day)
    await state(store, model, day, quoted(input=1))

    time.advance_ms(MINUTE_MS - 1)
    assert (await book.find_prices(model, day)).source == "config"
    time.advance_ms(1)
    assert (await book.find_prices(model, day)).source == "pricing-cache:quotes-9"


class SlowStore(FaultyStore):
    """A store whose reads take as long as a test lets them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.reading = asyncio.Event()
        self.go_on = asyncio.Event()
        self.failure: StoreUnavailableError | None = None

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        assert consistent
        item = await super().get(table, key, consistent=consistent)
        self.reading.set()
        await self.go_on.wait()
        if self.failure:
            raise self.failure
        return item


@pytest.fixture
def slow(store: Store) -> SlowStore:
    return SlowStore(store)


@pytest.fixture
def slow_book(slow: SlowStore, time: ManualClock, model: Model) -> PriceBook:
    return PriceBook(slow, time, a_catalogue(model))


async def started(slow: SlowStore, lookup: Awaitable[Any]) -> asyncio.Future[Any]:
    task = asyncio.ensure_future(lookup)
    await slow.reading.wait()
    return task


async def test_age_is_counted_from_the_question(
    slow: SlowStore, slow_book: PriceBook, time: ManualClock, model: Model, day: date
) -> None:
    """A reply that took half a minute is half a minute old when it comes."""
    asked = await started(slow, slow_book.find_prices(model, day))
    time.advance_ms(MINUTE_MS // 2)
    slow.go_on.set()
    await asked
    await state(slow, model, day, quoted(input=1))

    time.advance_ms(MINUTE_MS // 2)

    assert (await slow_book.find_prices(model, day)).source != "config"


async def test_who_gives_up_does_not_take_the_others_along(
    slow: SlowStore, slow_book: PriceBook, model: Model, day: date
) -> None:
    """The first caller may be cancelled; others that wait for the same read get it."""
    first = await started(slow, slow_book.find_prices(model, day))
    second = asyncio.ensure_future(slow_book.find_prices(model, day))
    await asyncio.sleep(0)

    first.cancel()
    slow.go_on.set()

    assert (await second).source == "config"
    assert first.cancelled()


async def test_a_store_that_can_not_be_read_is_not_replaced_by_the_file(
    slow: SlowStore, slow_book: PriceBook, model: Model, day: date
) -> None:
    """It fails closed, for all callers that waited, and asks again the next time."""
    slow.failure = StoreUnavailableError("injected")
    slow.go_on.set()

    answers = await asyncio.gather(
        *(slow_book.find_prices(model, day) for _ in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3
    slow.failure = None

    assert (await slow_book.find_prices(model, day)).source == "config"


async def test_a_stale_answer_is_not_used_when_the_store_is_away(
    slow: SlowStore, slow_book: PriceBook, time: ManualClock, model: Model, day: date
) -> None:
    """Sixty seconds are the promise, not a wish."""
    slow.go_on.set()
    await slow_book.find_prices(model, day)
    slow.failure = StoreUnavailableError("injected")
    time.advance_ms(MINUTE_MS)

    with pytest.raises(StoreUnavailableError):
        await slow_book.find_prices(model, day)


async def test_what_was_being_read_during_a_refresh_is_not_kept(
    slow: SlowStore, slow_book: PriceBook, model: Model, day: date
) -> None:
    """A reply from before the refresh does not hide the new price for a minute."""
    before = await started(slow, slow_book.find_prices(model, day))
    await state(slow, model, day, quoted(input=1))
    slow_book.forget()
    slow.go_on.set()

    assert (await before).source == "config"
    assert (await slow_book.find_prices(model, day)).source == "pricing-cache:quotes-9"


async def test_a_refresh_is_in_force_at_once_where_it_ran(
    store: Store, clock: ShiftedClock, model: Model
) -> None:
    """The instance that refreshed forgets what it knew."""
    now = ManualClock(clock.now_ms())
    book, day = PriceBook(store, now, a_catalogue(model)), utc_day(now)
    await book.find_prices(model, day)

    await book.refresh(Quotes({"premium": quoted(input=2_500_000)}))

    prices = await book.find_prices(model, day)
    assert prices.table.default.input == 2_500_000
    assert prices.source == "pricing-cache:quotes-1"


async def test_the_memory_is_bounded(
    store: Store, model: Model, day: date, meter: StoreMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest answer goes when there are too many."""
    monkeypatch.setattr(service, "ENTRIES_MAX", 3)
    book = PriceBook(store, ManualClock(), a_catalogue(model))
    for offset in range(5):
        await book.find_prices(model, day + timedelta(days=offset))
    meter.clear()

    for offset in (4, 3, 2):
        await book.find_prices(model, day + timedelta(days=offset))
    assert dict(meter.calls) == {}
    await book.find_prices(model, day)

    assert dict(meter.calls) == {"get": 1}


async def test_a_tier_in_the_file_follows_the_cached_price(
    store: Store, time: ManualClock, day: date
) -> None:
    """The source knows nothing of tiers; half of its price is the flex price."""
    model = a_model(
        bedrock_model_id=f"anthropic.claude-{uuid.uuid4().hex}",
        flex=VariantPricing(multiplier_permille=500),
    )
    await state(store, model, day, quoted(input=2_000_000))

    prices = await PriceBook(store, time, a_catalogue(model)).find_prices(model, day)

    flex = prices.table.card(Variant.FLEX)
    assert flex is not None
    assert flex.input == 1_000_000
