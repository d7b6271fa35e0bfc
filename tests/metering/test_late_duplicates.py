"""A record that was counted is a duplicate for as long as its receipt lives."""

from collections.abc import Sequence

import pytest

from metering.conftest import CATALOGUE, PREMIUM, MeteringMaker, World, a_policy, a_usage, told
from metering.scripted_store import ScriptedStore
from pricekeeper.errors import (
    InvalidValueError,
    PriceKeeperError,
    RequestIdReusedError,
    StoreUnavailableError,
    UnknownModelLabelError,
)
from pricekeeper.metering import Metering, Outcome, Refused, Usage
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX, MOMENT_LIFE_SECS
from pricekeeper.pricing import Catalogue, PriceBook
from pricekeeper.storage import Item, Key, Table
from pricekeeper.telemetry import StoreMeter
from stores import ShiftedClock


def nearly_too_old(clock: ShiftedClock) -> Usage:
    """Two seconds short of the end of its window."""
    return a_usage(timestamp_ms=clock.now_ms() - LATE_MS_MAX + 2_000)


async def test_a_record_that_has_become_too_old_is_still_a_duplicate(world: World) -> None:
    """With the original answer, until its receipt expires; then it is too old, and refused."""
    usage = nearly_too_old(world.clock)
    first = await world.record(usage)
    assert first.outcome is Outcome.ACCEPTED
    world.clock.shift_ms += 3_000
    again = await world.record(usage)
    assert (again.outcome, again.receipt) == (Outcome.DUPLICATE, first.receipt)
    assert again.daily_total is not None
    assert again.daily_total.requests == 1
    world.clock.shift_ms += MOMENT_LIFE_SECS * 1000 - 60_000
    assert (await world.record(usage)).outcome is Outcome.DUPLICATE
    world.clock.shift_ms += 60_000
    with pytest.raises(InvalidValueError, match="timestamp"):
        await world.record(usage)


async def test_another_body_under_its_id_is_told_so(world: World) -> None:
    """Not that it is too old: the id is taken. And so is another client's."""
    usage = nearly_too_old(world.clock)
    await world.record(usage)
    world.clock.shift_ms += 3_000
    changed = a_usage(usage.request_id, timestamp_ms=usage.timestamp_ms, output_tokens=501)
    with pytest.raises(RequestIdReusedError):
        await world.record(changed)
    with pytest.raises(InvalidValueError, match="timestamp"):
        await world.metering.record(a_policy(), usage)  # another organisation has ids of its own
    with pytest.raises(InvalidValueError, match="timestamp"):
        await world.record(a_usage(timestamp_ms=usage.timestamp_ms))


async def test_a_record_from_a_clock_that_was_ahead(world: World) -> None:
    """Counted, and then our clock is set back: too far ahead now, and still a duplicate."""
    usage = a_usage(timestamp_ms=world.clock.now_ms() + AHEAD_MS_MAX - 1_000)
    await world.record(usage)
    world.clock.shift_ms -= 10_000
    assert (await world.record(usage)).outcome is Outcome.DUPLICATE


async def test_a_batch_looks_up_all_that_it_would_refuse_together(
    world: World, meter: StoreMeter
) -> None:
    """In order, record by record; an id may be there twice. Moments first, then their pages."""
    known, other = nearly_too_old(world.clock), nearly_too_old(world.clock)
    await world.metering.record_many(world.policy, [known, other])
    world.clock.shift_ms += 3_000
    changed = a_usage(other.request_id, timestamp_ms=other.timestamp_ms, output_tokens=501)
    fresh, too_old = a_usage(), a_usage(timestamp_ms=known.timestamp_ms)
    await world.record()
    meter.clear()
    batch = [known, too_old, fresh, changed, known, a_usage("nonsense"), a_usage(model_label="x")]
    answers = await world.metering.record_many(world.policy, batch)

    assert [told(answer) for answer in answers] == [
        "duplicate",
        "INVALID_VALUE",
        "accepted",
        "REQUEST_ID_REUSED",
        "duplicate",
        "INVALID_VALUE",
        "INVALID_MODEL_LABEL",
    ]
    assert [answer.request_id for answer in answers] == [usage.request_id for usage in batch]
    assert meter.calls == {"put": 1, "update": 1, "batch_get": 2}


async def test_a_label_that_was_taken_out_of_the_file_since(world: World) -> None:
    """The record stays counted, and is answered as such."""
    usage = a_usage()
    first = await world.record(usage)
    models = {model.label: model for model in CATALOGUE if model.label != PREMIUM}
    book = PriceBook(world.store, world.clock, Catalogue(models, "without premium"))
    after = Metering(world.store, world.clock, book)
    again = await after.record(world.policy, usage)
    assert (again.outcome, again.receipt) == (Outcome.DUPLICATE, first.receipt)
    with pytest.raises(UnknownModelLabelError):
        await after.record(world.policy, a_usage())
    await after.close()


class Unreadable(ScriptedStore):
    """Reads of many items fail."""

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        del keys, consistent
        raise StoreUnavailableError("scripted: no read")

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._store.get(table, key, consistent=consistent)


async def test_if_receipts_can_not_be_read_nobody_knows(
    world: World, new_metering: MeteringMaker
) -> None:
    """After a 400 a client drops the record; after a 503 it keeps it."""
    metering = new_metering(Unreadable(world.store), world.clock)
    usage = a_usage(timestamp_ms=world.clock.now_ms() - LATE_MS_MAX - 1)
    with pytest.raises(StoreUnavailableError):
        await metering.record(world.policy, usage)
    refused, never = await metering.record_many(world.policy, [usage, a_usage("nonsense")])
    errors: list[type[PriceKeeperError]] = [
        type(one.error) for one in (refused, never) if isinstance(one, Refused)
    ]
    assert errors == [StoreUnavailableError, InvalidValueError]
