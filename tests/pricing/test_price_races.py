"""Prices that another writer changes in between, and the bounds of what is kept and believed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.pricing.reports import PriceChange
from pricekeeper.storage import Item, Key, Store, Table
from pricing.conftest import quoted
from pricing.test_deployment import INPUT, P, changed, parse, refused
from pricing.test_refresh import Job, job

__all__ = ["job"]


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


async def test_a_past_day_that_was_filled_meanwhile_stays(job: Job) -> None:
    """Usage may have been charged by it, though we asked the source later."""
    earlier = replace(job, time=ManualClock(job.time.now_ms() - 1000))
    overtaken = Overtaken(job.store, lambda: earlier.run(quoted(input=2_900_000)))

    report = await job.run(quoted(input=3_100_000), store=overtaken)

    assert await job.inputs() == [2_900_000, 3_100_000, 3_100_000, None]
    assert [update.day for update in report.updated] == [job.day, job.day + timedelta(days=1)]


async def test_what_another_instance_wrote_in_the_same_second_is_not_written_again(
    job: Job,
) -> None:
    """It says the same, so there is nothing to add; another price of that second would be."""
    stated = quoted(input=2_900_000)
    same = await job.run(stated, store=Overtaken(job.store, lambda: job.run(stated)))
    assert (same.updated, same.unchanged) == ((), ("premium",))

    another = await job.run(quoted(input=3_100_000))
    assert len(another.updated) == 2


async def test_a_days_change_is_told_against_what_was_in_force_by_then(job: Job) -> None:
    """Not against a price that has been announced for the day after."""
    announced = {("premium", job.day + timedelta(days=1)): quoted(input=4_000_000)}
    await job.run({"premium": quoted(), **announced})
    job.time.advance_ms(1000)

    report = await job.run({"premium": quoted(input=3_100_000), **announced})

    (update,) = report.updated
    assert update.day == job.day
    assert update.changes == (PriceChange("default.input", 3_000_000, 3_100_000),)


def test_the_smallest_price_that_is_believed() -> None:
    """A tenth of a cent per million tokens; less was meant in dollars."""
    assert parse(changed(f"{P}.{INPUT}", 1_000)).model("premium").default_pricing.input == 1_000
    assert list(refused(changed(f"{P}.{INPUT}", 999))) == [f"{P}.{INPUT}"]
