"""Prices that another writer changes in between, and the bounds of what is kept and believed."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import date, timedelta

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.pricing import Model, PriceBook, service
from pricekeeper.pricing.refresh import refresh
from pricekeeper.pricing.reports import PriceChange
from pricekeeper.storage import Item, Key, Store, Table
from pricekeeper.telemetry import StoreMeter
from pricing.conftest import Quotes, a_catalogue, quoted
from pricing.test_deployment import INPUT, P, changed, parse, refused
from pricing.test_refresh import inputs, run

MINUTE_MS = 60_000


class Overtaken(FaultyStore):
    """A store in which something happens right after the first batch of reads."""

    def __init__(self, store: Store, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._meanwhile = [meanwhile]

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        found = await super().batch_get(keys, consistent=consistent)
        while self._meanwhile:
            await self._meanwhile.pop()()
        return found


async def test_a_past_day_that_was_filled_meanwhile_stays(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Usage may have been charged by it, though we asked the source later."""
    earlier = ManualClock(time.now_ms() - 1000)
    theirs = Quotes({"premium": quoted(input=2_900_000)})
    overtaken = Overtaken(store, lambda: refresh(store, earlier, a_catalogue(model), theirs))

    report = await run(overtaken, time, Quotes({"premium": quoted(input=3_100_000)}), model)

    assert await inputs(store, model, day) == [2_900_000, 3_100_000, 3_100_000, None]
    assert [update.day for update in report.updated] == [day, day + timedelta(days=1)]


async def test_what_another_instance_wrote_in_the_same_second_is_not_written_again(
    store: Store, time: ManualClock, model: Model
) -> None:
    """It says the same, so there is nothing to add; another price of that second would be."""
    source = Quotes({"premium": quoted(input=2_900_000)})
    same = await run(Overtaken(store, lambda: run(store, time, source, model)), time, source, model)
    assert (same.updated, same.unchanged) == ((), ("premium",))

    another = await run(store, time, Quotes({"premium": quoted(input=3_100_000)}), model)
    assert len(another.updated) == 2


async def test_a_days_change_is_told_against_what_was_in_force_by_then(
    store: Store, time: ManualClock, model: Model, day: date
) -> None:
    """Not against a price that has been announced for the day after."""
    tomorrow = day + timedelta(days=1)
    announced = {("premium", tomorrow): quoted(input=4_000_000)}
    await run(store, time, Quotes({"premium": quoted(), **announced}), model)
    time.advance_ms(1000)

    report = await run(
        store, time, Quotes({"premium": quoted(input=3_100_000), **announced}), model
    )

    (update,) = report.updated
    assert update.day == day
    assert update.changes == (PriceChange("default.input", 3_000_000, 3_100_000),)


async def test_an_answer_that_was_read_again_is_forgotten_last(
    store: Store,
    model: Model,
    day: date,
    meter: StoreMeter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What counts is when it was asked for last, not first."""
    monkeypatch.setattr(service, "ENTRIES_MAX", 3)
    now = ManualClock()
    book = PriceBook(store, now, a_catalogue(model))
    days = [day + timedelta(days=offset) for offset in range(4)]
    for each in days[:3]:
        await book.find_prices(model, each)
    now.advance_ms(MINUTE_MS)
    await book.find_prices(model, days[0])
    await book.find_prices(model, days[3])
    meter.clear()

    await book.find_prices(model, days[0])

    assert dict(meter.calls) == {}


def test_the_smallest_price_that_is_believed() -> None:
    """A tenth of a cent per million tokens; less was meant in dollars."""
    assert parse(changed(f"{P}.{INPUT}", 1_000)).model("premium").default_pricing.input == 1_000
    assert list(refused(changed(f"{P}.{INPUT}", 999))) == [f"{P}.{INPUT}"]
