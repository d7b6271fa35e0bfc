"""Filling PricingCache: what is written, what is left alone, and that races do no harm."""

import asyncio
from dataclasses import dataclass
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
from pricekeeper.pricing.prices import PriceTable
from pricekeeper.pricing.quotes import PriceList, Unmatched
from pricekeeper.pricing.refresh import refresh
from pricekeeper.pricing.reports import PriceChange, PriceDifference, RefusedPrices, UnmatchedModel
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.telemetry import StoreMeter
from pricing.conftest import Quotes, a_catalogue, a_model, a_step, card, quoted, utc_day

DAY_MS = 86_400_000


@dataclass
class Job:
    """Refreshes of one model or more on a day."""

    store: Store
    time: ManualClock
    model: Model
    day: date

    async def run(
        self, stated: Any, *others: Model, store: Store | None = None, accept: Any = ()
    ) -> RefreshReport:
        """Refresh from these quotes, or from this statement about the model."""
        source = Quotes({"premium": stated} if isinstance(stated, PriceTable) else stated)
        catalogue = a_catalogue(self.model, *others)
        return await refresh(
            store or self.store, self.time, catalogue, source, accept_suspicious=accept
        )

    async def inputs(self, model: Model | None = None) -> list[int | None]:
        """The stored input price of yesterday, today, tomorrow and the day after."""
        days = [self.day + timedelta(days=offset) for offset in (-1, 0, 1, 2)]
        keys = [(PRICING_CACHE, price_key(model or self.model, day)) for day in days]
        items = await self.store.batch_get(keys)
        return [item["input_price_usd_micros_per_1m"] if item else None for item in items]


@pytest.fixture
def job(store: Store, time: ManualClock, model: Model, day: date) -> Job:
    return Job(store, time, model, day)


async def test_three_days_are_filled(job: Job) -> None:
    """The organisation's day has the price in every time zone."""
    report = await job.run(quoted(input=2_900_000))

    assert await job.inputs() == [2_900_000, 2_900_000, 2_900_000, None]
    assert [update.day - job.day for update in report.updated] == [
        timedelta(days=-1),
        timedelta(0),
        timedelta(days=1),
    ]
    change = PriceChange("default.input", 3_000_000, 2_900_000)
    assert [update.changes for update in report.updated] == [(change,)] * 3
    assert report.source == "quotes-1"


async def test_a_second_refresh_writes_nothing(job: Job, meter: StoreMeter) -> None:
    """It is idempotent: one batch read, and no write, if the source says the same."""
    source = quoted(input=2_900_000)
    meter.clear()
    await job.run(source)
    assert dict(meter.calls) == {"batch_get": 1, "put": 3}
    meter.clear()

    report = await job.run(source)

    assert dict(meter.calls) == {"batch_get": 1}
    assert report.unchanged == ("premium",)
    assert report.updated == ()


async def test_a_change_is_written_for_today_and_on(job: Job, meter: StoreMeter) -> None:
    """Yesterday was charged by the old price, so it keeps it, and no write is tried."""
    await job.run(quoted(input=2_900_000))
    job.time.advance_ms(1000)
    meter.clear()

    report = await job.run(quoted(input=2_000_000))

    assert dict(meter.calls) == {"batch_get": 1, "put": 2}
    assert await job.inputs() == [2_900_000, 2_000_000, 2_000_000, None]
    assert [update.day for update in report.updated] == [job.day, job.day + timedelta(days=1)]
    assert {update.changes for update in report.updated} == {
        (PriceChange("default.input", 2_900_000, 2_000_000),)
    }


async def test_a_price_that_is_dated_changes_on_its_day(job: Job) -> None:
    """The source is asked about each day by itself."""
    tomorrow = job.day + timedelta(days=1)
    source = {"premium": quoted(), ("premium", tomorrow): quoted(input=2_500_000)}

    await job.run(source)

    assert await job.inputs() == [3_000_000, 3_000_000, 2_500_000, None]


async def test_the_next_day_is_compared_with_the_day_before(job: Job) -> None:
    """A daily refresh does not report the same difference to the file every day."""
    source = quoted(input=2_900_000)
    await job.run(source)
    job.time.advance_ms(DAY_MS)

    report = await job.run(source)

    (update,) = report.updated
    assert update.day == utc_day(job.time) + timedelta(days=1)
    assert update.changes == ()


async def test_a_change_is_logged_once_with_old_and_new(job: Job) -> None:
    """Not once per day that was written, and not at all if nothing changed."""
    with capture_logs() as logs:
        await job.run(quoted(input=2_900_000))
        await job.run(quoted(input=2_900_000))

    assert logs == [
        {
            "event": "price_changed",
            "log_level": "info",
            "label": "premium",
            "since": (job.day - timedelta(days=1)).isoformat(),
            "source": "quotes-1",
            "old": {"default.input": 3_000_000},
            "new": {"default.input": 2_900_000},
        }
    ]


async def test_what_the_source_does_not_have_is_reported_and_left_alone(
    job: Job, other_model: Model
) -> None:
    """In both directions: our models that it lacks, and its models that we lack."""
    source = {"premium": quoted(), "titan": quoted(), "nova": quoted()}

    with capture_logs() as logs:
        report = await job.run(source, other_model)

    assert report.unmatched == (
        UnmatchedModel(other_model.label, other_model.bedrock_model_id, "not in the list"),
    )
    assert report.unused_names == ("nova", "titan")
    assert await job.inputs(other_model) == [None] * 4
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
            PriceTable(default=card(3_000_000, 15_000_000), batch=card(0)),
            PriceChange("batch.input", None, 0),
        ),
    ],
)
async def test_a_price_that_can_not_be_right_is_refused(
    job: Job, stated: PriceTable, suspicious: PriceChange
) -> None:
    """Zero, or five times more or less: the whole model keeps its price, and is reported."""
    with capture_logs() as logs:
        report = await job.run(stated)

    assert report.refused == (
        RefusedPrices(job.model.label, job.model.bedrock_model_id, (suspicious,)),
    )
    assert report.updated == ()
    assert await job.inputs() == [None] * 4
    assert [log["event"] for log in logs] == ["price_refused"]


@pytest.mark.parametrize(
    "stated", [quoted(input=14_999_999), quoted(input=600_001), quoted(cache_write_1h=1_200_001)]
)
async def test_a_price_that_can_be_right_is_taken(job: Job, stated: PriceTable) -> None:
    """Less than five times more or less."""
    report = await job.run(stated)

    assert report.refused == ()
    assert len(report.updated) == 3


async def test_a_suspicious_price_of_one_day_spoils_all(job: Job) -> None:
    """A list that is wrong about tomorrow is not trusted about today."""
    tomorrow = job.day + timedelta(days=1)
    source = {"premium": quoted(), ("premium", tomorrow): quoted(input=1)}

    report = await job.run(source)

    assert len(report.refused) == 1
    assert await job.inputs() == [None] * 4


async def test_a_suspicious_price_can_be_accepted_by_label(job: Job, other_model: Model) -> None:
    """An operator confirms one model; the others stay refused."""
    source = {"premium": quoted(input=300_000), "economy": quoted(input=300_000)}

    report = await job.run(source, other_model, accept=["premium"])

    assert await job.inputs() == [300_000, 300_000, 300_000, None]
    assert [refusal.label for refusal in report.refused] == ["economy"]


async def test_an_accepted_price_is_the_new_measure(job: Job) -> None:
    """It is compared with the price in force, not forever with the file's."""
    source = quoted(input=300_000)
    await job.run(source, accept=["premium"])
    job.time.advance_ms(DAY_MS)

    report = await job.run(source)

    assert report.refused == ()
    assert len(report.updated) == 1


async def test_a_price_that_the_file_says_is_free_may_be_free(job: Job) -> None:
    """Zero is suspicious only where it is news."""
    free = card(800_000, 3_200_000, 0, 0)
    job.model = a_model(bedrock_model_id=job.model.bedrock_model_id, default_pricing=free)

    assert (await job.run(PriceTable(default=free))).refused == ()


async def test_an_item_that_makes_no_sense_is_replaced(job: Job) -> None:
    """A refresh is what the error about it advises."""
    key = price_key(job.model, job.day)
    await job.store.put(
        Put(PRICING_CACHE, {"PK": key.pk, "SK": key.sk, "fetched_at_epoch": "yesterday"})
    )

    await job.run(quoted(input=2_900_000))

    assert await job.inputs() == [2_900_000, 2_900_000, 2_900_000, None]


async def test_a_later_answer_is_not_overwritten_by_an_earlier_one(job: Job) -> None:
    """Of two instances, the one that asked later is right, in any order of writes."""
    await job.run(quoted(input=2_000_000))
    job.time = ManualClock(job.time.now_ms() - 1000)

    report = await job.run(quoted(input=2_900_000))

    assert await job.inputs() == [2_000_000, 2_000_000, 2_000_000, None]
    assert report.unchanged == ("premium",)
    assert report.updated == ()


async def test_instances_that_refresh_at_once_agree(job: Job, other_model: Model) -> None:
    """Each item is written, by one or several of them, and says what all of them said."""
    source = {"premium": quoted(input=2_900_000), "economy": quoted(input=2_800_000)}

    reports = await asyncio.gather(*(job.run(source, other_model) for _ in range(8)))

    assert await job.inputs() == [2_900_000] * 3 + [None]
    assert await job.inputs(other_model) == [2_800_000] * 3 + [None]
    written = {update.day for report in reports for update in report.updated}
    assert len(written) == 3


@pytest.mark.parametrize("seed", range(12))
async def test_a_refresh_may_be_cut_off_anywhere_and_run_again(
    job: Job, other_model: Model, seed: int
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
    faulty = FaultyStore(job.store, turns, faults)
    source = {"premium": quoted(input=2_900_000), "economy": quoted(input=2_800_000)}

    outcomes = await turns.run(*(job.run(source, other_model, store=faulty) for _ in range(4)))
    await faulty.deliver()
    again = await job.run(source, other_model)

    assert all(isinstance(outcome, RefreshReport | StoreError | Crashed) for outcome in outcomes)
    assert faulty.befell
    assert not again.refused
    assert not again.unmatched
    assert await job.inputs() == [2_900_000] * 3 + [None]
    assert await job.inputs(other_model) == [2_800_000] * 3 + [None]


class LostReplies(FaultyStore):
    """A store whose first write is done, or not, and whose reply is lost in any case."""

    def __init__(self, store: Store, *, applied: bool) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._applied = applied

    async def put(self, operation: Put) -> None:
        if self._applied:
            await super().put(operation)
        raise OutcomeUnknownError("injected")


async def test_a_lost_reply_is_settled_by_looking(job: Job) -> None:
    """If the item is ours, it was written; if it is absent, the doubt is raised."""
    step = a_step(200_000, 6_000_000, 22_500_000)
    source = quoted(input=2_900_000, long_context=(step,))

    with pytest.raises(OutcomeUnknownError):
        await job.run(source, store=LostReplies(job.store, applied=False))
    report = await job.run(source, store=LostReplies(job.store, applied=True))

    assert len(report.updated) == 3


class Broken:
    """A source that can't be read."""

    async def load(self) -> PriceList:
        raise PriceSourceError("broken", "is down")


async def test_a_source_that_fails_changes_nothing(job: Job, meter: StoreMeter) -> None:
    """The error is the caller's to show; what is in force stays in force."""
    book = PriceBook(job.store, job.time, a_catalogue(job.model))
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
    step = a_step(200_000, 6_000_000, 22_500_000)
    same = a_model(label="same", flex=VariantPricing(multiplier_permille=500))
    other = a_model(label="other", bedrock_model_id="amazon.nova-pro-v1:0")
    lost = a_model(label="lost", bedrock_model_id="meta.llama3-8b-instruct-v1:0")
    source = Quotes(
        {
            "same": quoted(),
            "other": PriceTable(default=card(800_000, 15_000_000, steps=(step,))),
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
