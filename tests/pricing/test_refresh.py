"""Filling PricingCache: what is written, what is left alone, and that races do no harm."""

import asyncio
import uuid
from datetime import date, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, PriceSourceError, StoreError
from pricekeeper.pricing import Model, PriceBook, RefreshReport
from pricekeeper.pricing.catalogue import VariantPricing
from pricekeeper.pricing.items import price_key
from pricekeeper.pricing.prices import PriceTable, RateCard, Step
from pricekeeper.pricing.quotes import PriceList, Unmatched
from pricekeeper.pricing.refresh import refresh
from pricekeeper.pricing.reports import PriceChange, PriceDifference, RefusedPrices, UnmatchedModel
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import StoreMeter
from pricing.conftest import Quotes, a_catalogue, a_model, quoted, utc_day

DAY_MS = 86_400_000


async def run(
    store: Store, time: ManualClock, source: Quotes, *models: Model, accept: Any = ()
) -> RefreshReport:
    return await refresh(store, time, a_catalogue(*models), source, accept_suspicious=accept)


async def inputs(store: Store, model: Model, day: date) -> list[int | None]:
    """The stored input price of yesterday, today, tomorrow and the day after."""
    days = [day + timedelta(days=offset) for offset in (-1, 0, 1, 2)]
    items = await store.batch_get([(PRICING_CACHE, price_key(model, day)) for day in days])
    return [item["input_price_usd_micros_per_1m"] if item else None for item in items]


async def test_three_days_are_filled(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """The organisation's day has the price in every time zone."""
    report = await run(store, time, Quotes({"premium": quoted(input=2_900_000)}), model)

    assert await inputs(store, model, day) == [2_900_000, 2_900_000, 2_900_000, None]
    assert [update.day - day for update in report.updated] == [
        timedelta(days=-1),
        timedelta(0),
        timedelta(days=1),
    ]
    change = PriceChange("default.input", 3_000_000, 2_900_000)
    assert [update.changes for update in report.updated] == [(change,)] * 3
    assert report.source == "quotes-1"


async def test_a_second_refresh_writes_nothing(
    store: Store, time: ManualClock, model: Model, meter: StoreMeter
) -> None:
    """It is idempotent: one batch read, and no write, if the source says the same."""
    source = Quotes({"premium": quoted(input=2_900_000)})
    meter.clear()
    await run(store, time, source, model)
    assert dict(meter.calls) == {"batch_get": 1, "put": 3}
    meter.clear()

    report = await run(store, time, source, model)

    assert dict(meter.calls) == {"batch_get": 1}
    assert report.unchanged == ("premium",)
    assert report.updated == ()


async def test_a_change_is_written_for_today_and_on(
    store: Store, time: ManualClock, model: Model, day: date, meter: StoreMeter
) -> None:
    """Yesterday was charged by the old price, so it keeps it, and no write is tried."""
    await run(store, time, Quotes({"premium": quoted(input=2_900_000)}), model)
    time.advance_ms(1000)
    meter.clear()

    report = await run(store, time, Quotes({"premium": quoted(input=2_000_000)}), model)

    assert dict(meter.calls) == {"batch_get": 1, "put": 2}
    assert await inputs(store, model, day) == [2_900_000, 2_000_000, 2_000_000, None]
    assert [update.day for update in report.updated] == [day, day + timedelta(days=1)]
    assert {update.changes for update in report.updated} == {
        (PriceChange("default.input", 2_900_000, 2_000_000),)
    }


async def test_a_price_that_is_dated_changes_on_its_day(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """The source is asked about each day by itself."""
    tomorrow = day + timedelta(days=1)
    source = Quotes({"premium": quoted(), ("premium", tomorrow): quoted(input=2_500_000)})

    await run(store, time, source, model)

    assert await inputs(store, model, day) == [3_000_000, 3_000_000, 2_500_000, None]


async def test_the_next_day_is_compared_with_the_day_before(
    store: Store, time: ManualClock, model: Model
) -> None:
    """A daily refresh does not report the same difference to the file every day."""
    source = Quotes({"premium": quoted(input=2_900_000)})
    await run(store, time, source, model)
    time.advance_ms(DAY_MS)

    report = await run(store, time, source, model)

    (update,) = report.updated
    assert update.day == utc_day(time) + timedelta(days=1)
    assert update.changes == ()


async def test_a_change_is_logged_once_with_old_and_new(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Not once per day that was written, and not at all if nothing changed."""
    with capture_logs() as logs:
        await run(store, time, Quotes({"premium": quoted(input=2_900_000)}), model)
        await run(store, time, Quotes({"premium": quoted(input=2_900_000)}), model)

    assert logs == [
        {
            "event": "price_changed",
            "log_level": "info",
            "label": "premium",
            "since": (day - timedelta(days=1)).isoformat(),
            "source": "quotes-1",
            "old": {"default.input": 3_000_000},
            "new": {"default.input": 2_900_000},
        }
    ]


async def test_what_the_source_does_not_have_is_reported_and_left_alone(
    store: Store, time: ManualClock, model: Model, other_model: Model, day: date
) -> None:
    """In both directions: our models that it lacks, and its models that we lack."""
    source = Quotes({"premium": quoted(), "titan": quoted(), "nova": quoted()})

    with capture_logs() as logs:
        report = await run(store, time, source, model, other_model)

    assert report.unmatched == (
        UnmatchedModel(other_model.label, other_model.bedrock_model_id, "not in the list"),
    )
    assert report.unused_names == ("nova", "titan")
    assert await inputs(store, other_model, day) == [None] * 4
    assert [log["event"] for log in logs] == ["price_unmatched"]


@pytest.mark.parametrize(
    ("stated", "suspicious"),
    [
        (quoted(input=0), PriceChange("default.input", 3_000_000, 0)),
        (quoted(output=0), PriceChange("default.output", 15_000_000, 0)),
        (quoted(cache_read=0), PriceChange("default.cache_read", 300_000, 0)),
        (quoted(input=30_000_000), PriceChange("default.input", 3_000_000, 30_000_000)),
        (quoted(input=15_000_000), PriceChange("default.input", 3_000_000, 15_000_000)),
        (quoted(input=600_000), PriceChange("default.input", 3_000_000, 600_000)),
        (quoted(cache_write_1h=600_000), PriceChange("default.cache_write_1h", 6_000_000, 600_000)),
        (
            PriceTable(
                default=RateCard(input=3_000_000, output=15_000_000), batch=RateCard(input=0)
            ),
            PriceChange("batch.input", None, 0),
        ),
    ],
)
async def test_a_price_that_can_not_be_right_is_refused(
    store: Store,
    time: ManualClock,
    model: Model,
    day: date,
    stated: PriceTable,
    suspicious: PriceChange,
) -> None:
    """Zero, or five times more or less: the whole model keeps its price, and is reported."""
    with capture_logs() as logs:
        report = await run(store, time, Quotes({"premium": stated}), model)

    assert report.refused == (RefusedPrices(model.label, model.bedrock_model_id, (suspicious,)),)
    assert report.updated == ()
    assert await inputs(store, model, day) == [None] * 4
    assert [log["event"] for log in logs] == ["price_refused"]


@pytest.mark.parametrize(
    "stated", [quoted(input=14_999_999), quoted(input=600_001), quoted(cache_write_1h=1_200_001)]
)
async def test_a_price_that_can_be_right_is_taken(
    store: Store, time: ManualClock, model: Model, stated: PriceTable
) -> None:
    """Less than five times more or less."""
    report = await run(store, time, Quotes({"premium": stated}), model)

    assert report.refused == ()
    assert len(report.updated) == 3


async def test_a_suspicious_price_of_one_day_spoils_all(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """A list that is wrong about tomorrow is not trusted about today."""
    tomorrow = day + timedelta(days=1)
    source = Quotes({"premium": quoted(), ("premium", tomorrow): quoted(input=1)})

    report = await run(store, time, source, model)

    assert len(report.refused) == 1
    assert await inputs(store, model, day) == [None] * 4


async def test_a_suspicious_price_can_be_accepted_by_label(
    store: Store, time: ManualClock, model: Model, other_model: Model, day: date
) -> None:
    """An operator confirms one model; the others stay refused."""
    source = Quotes({"premium": quoted(input=300_000), "economy": quoted(input=300_000)})

    report = await run(store, time, source, model, other_model, accept=["premium"])

    assert await inputs(store, model, day) == [300_000, 300_000, 300_000, None]
    assert [refusal.label for refusal in report.refused] == ["economy"]


async def test_an_accepted_price_is_the_new_measure(
    store: Store, time: ManualClock, model: Model
) -> None:
    """It is compared with the price in force, not forever with the file's."""
    source = Quotes({"premium": quoted(input=300_000)})
    await run(store, time, source, model, accept=["premium"])
    time.advance_ms(DAY_MS)

    report = await run(store, time, source, model)

    assert report.refused == ()
    assert len(report.updated) == 1


async def test_a_price_that_the_file_says_is_free_may_be_free(
    store: Store, time: ManualClock
) -> None:
    """Zero is suspicious only where it is news."""
    model = a_model(
        bedrock_model_id=f"amazon.nova-{uuid.uuid4().hex}",
        default_pricing=RateCard(input=800_000, output=3_200_000, cache_write_5m=0),
    )
    stated = PriceTable(default=RateCard(input=800_000, output=3_200_000, cache_write_5m=0))

    report = await run(store, time, Quotes({"premium": stated}), model)

    assert report.refused == ()


async def test_an_item_that_makes_no_sense_is_replaced(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """A refresh is what the error about it advises."""
    key = price_key(model, day)
    await store.put(
        Put(PRICING_CACHE, {"PK": key.pk, "SK": key.sk, "fetched_at_epoch": "yesterday"})
    )

    await run(store, time, Quotes({"premium": quoted(input=2_900_000)}), model)

    assert await inputs(store, model, day) == [2_900_000, 2_900_000, 2_900_000, None]


async def test_a_later_answer_is_not_overwritten_by_an_earlier_one(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Of two instances, the one that asked later is right, in any order of writes."""
    earlier = ManualClock(time.now_ms() - 1000)
    await run(store, time, Quotes({"premium": quoted(input=2_000_000)}), model)

    report = await refresh(
        store, earlier, a_catalogue(model), Quotes({"premium": quoted(input=2_900_000)})
    )

    assert await inputs(store, model, day) == [2_000_000, 2_000_000, 2_000_000, None]
    assert report.unchanged == ("premium",)
    assert report.updated == ()


async def test_instances_that_refresh_at_once_agree(
    store: Store, time: ManualClock, model: Model, other_model: Model, day: date
) -> None:
    """Each item is written, by one or several of them, and says what all of them said."""
    source = Quotes({"premium": quoted(input=2_900_000), "economy": quoted(input=2_800_000)})

    reports = await asyncio.gather(
        *(run(store, time, source, model, other_model) for _ in range(8))
    )

    assert await inputs(store, model, day) == [2_900_000] * 3 + [None]
    assert await inputs(store, other_model, day) == [2_800_000] * 3 + [None]
    written = {update.day for report in reports for update in report.updated}
    assert len(written) == 3


@pytest.mark.parametrize("seed", range(12))
async def test_a_refresh_may_be_cut_off_anywhere_and_run_again(
    store: Store, time: ManualClock, model: Model, other_model: Model, day: date, seed: int
) -> None:
    """Lost requests and replies, late copies and crashes: the next refresh makes it whole."""
    turns = Interleaving(seed)
    faults = Faults(
        refused_pct=10,
        request_lost_pct=10,
        reply_lost_pct=10,
        late_pct=10,
        resent_pct=20,
        crashed_pct=5,
    )
    faulty = FaultyStore(store, turns, faults)
    source = Quotes({"premium": quoted(input=2_900_000), "economy": quoted(input=2_800_000)})

    outcomes = await turns.run(
        *(refresh(faulty, time, a_catalogue(model, other_model), source) for _ in range(4))
    )
    await faulty.deliver()
    again = await run(store, time, source, model, other_model)

    assert all(isinstance(outcome, RefreshReport | StoreError | Crashed) for outcome in outcomes)
    assert faulty.befell
    assert not again.refused
    assert not again.unmatched
    assert await inputs(store, model, day) == [2_900_000] * 3 + [None]
    assert await inputs(store, other_model, day) == [2_800_000] * 3 + [None]


class LostReplies(FaultyStore):
    """A store whose first write is done, or not, and whose reply is lost in any case."""

    def __init__(self, store: Store, *, applied: bool) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._applied = applied

    async def put(self, operation: Put) -> None:
        if self._applied:
            await super().put(operation)
        raise OutcomeUnknownError("injected")


async def test_a_lost_reply_is_settled_by_looking(
    store: Store, time: ManualClock, model: Model
) -> None:
    """If the item is ours, it was written; if it is absent, the doubt is raised."""
    step = Step(over_input_tokens=200_000, input=6_000_000, output=22_500_000)
    source = Quotes({"premium": quoted(input=2_900_000, long_context=(step,))})

    with pytest.raises(OutcomeUnknownError):
        await run(LostReplies(store, applied=False), time, source, model)
    report = await run(LostReplies(store, applied=True), time, source, model)

    assert len(report.updated) == 3


class Broken:
    """A source that can't be read."""

    async def load(self) -> PriceList:
        raise PriceSourceError("broken", "is down")


async def test_a_source_that_fails_changes_nothing(
    store: Store, time: ManualClock, model: Model, meter: StoreMeter
) -> None:
    """The error is the caller's to show; what is in force stays in force."""
    book = PriceBook(store, time, a_catalogue(model))
    meter.clear()

    with pytest.raises(PriceSourceError, match="broken: is down"):
        await book.refresh(Broken())
    with pytest.raises(PriceSourceError, match="broken: is down"):
        await book.check(Broken())

    assert dict(meter.calls) == {}


async def test_a_check_compares_the_file_with_the_source(
    store: Store, time: ManualClock, meter: StoreMeter
) -> None:
    """Price by price, of what the source says; nothing is read from the store or written to it."""
    step = Step(over_input_tokens=200_000, input=6_000_000, output=22_500_000)
    same = a_model(label="same", flex=VariantPricing(multiplier_permille=500))
    other = a_model(label="other", bedrock_model_id="amazon.nova-pro-v1:0")
    lost = a_model(label="lost", bedrock_model_id="meta.llama3-8b-instruct-v1:0")
    source = Quotes(
        {
            "same": quoted(),
            "other": PriceTable(
                default=RateCard(input=800_000, output=15_000_000, long_context=(step,))
            ),
            "lost": Unmatched("several could be it"),
            "more": quoted(),
        }
    )
    meter.clear()

    report = await PriceBook(store, time, a_catalogue(same, other, lost)).check(source)

    assert report.agreeing == ("same",)
    assert report.differing == (
        PriceDifference(
            other.label,
            other.bedrock_model_id,
            (
                PriceChange("default.input", 3_000_000, 800_000),
                PriceChange("default.over_200000.input", None, 6_000_000),
                PriceChange("default.over_200000.output", None, 22_500_000),
            ),
        ),
    )
    assert report.unmatched == (
        UnmatchedModel(lost.label, lost.bedrock_model_id, "several could be it"),
    )
    assert report.unused_names == ("more",)
    assert dict(meter.calls) == {}
