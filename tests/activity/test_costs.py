"""Events, denials and live spend cost what docs/costs.md says, counted as AWS does."""

import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activity.happenings import ORG, counted, denial, note_counted
from pricekeeper.activity import Activity
from pricekeeper.activity.listening import WATCH_MS
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter

COSTS = (Path(__file__).parents[2] / "docs" / "costs.md").read_text("utf-8")

FIRST = "a group of denials, the first of its kind in a minute"


def documented(name: str) -> tuple[int, int]:
    """The units of a row under "Events, denials and live spend"."""
    section = COSTS.partition("## Events, denials and live spend")[2].partition("\n## ")[0]
    found = re.search(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|", section, re.MULTILINE)
    assert found is not None, name
    return int(found[1]), int(found[2])


class Costs:
    """A process on an engine that counts."""

    def __init__(self, store: Store, clock: ManualClock, meter: StoreMeter) -> None:
        self.activity = Activity(store, clock, listeners_max=10)
        self.clock = clock
        self._meter = meter

    def units(self) -> tuple[float, float]:
        """The writes and reads since the last call."""
        written = sum(self._meter.write_half_units.values()) / 2
        read = sum(self._meter.read_half_units.values()) / 2
        self._meter.clear()
        return written, read


@pytest.fixture
async def costs(dynoxide: str) -> AsyncIterator[Costs]:
    clock, meter = ManualClock(SystemClock().now_ms()), StoreMeter()
    location = DynamoDbLocation("us-east-1", f"costs-{uuid.uuid4().hex[:8]}-", dynoxide)
    store = await open_store(location, clock=clock, meter=meter)
    await store.create_tables()
    meter.clear()
    yield Costs(store, clock, meter)
    await store.close()


async def test_events_that_nobody_watches(costs: Costs) -> None:
    """A flush asks which feeds are watched, if there is something to tell."""
    for _ in range(500):
        note_counted(costs.activity.feed, ORG, counted())
    await costs.activity.flush()
    assert costs.units() == documented("events without viewers")
    await costs.activity.flush()
    assert costs.units() == (0, 0)


async def test_events_of_an_organisation_that_is_watched(costs: Costs) -> None:
    """One item, small if it is of one app."""
    await costs.activity.feed.watch(ORG)
    note_counted(costs.activity.feed, ORG, counted())
    await costs.activity.flush()
    costs.units()
    for number in range(5):
        note_counted(costs.activity.feed, ORG, counted(str(number)))
    await costs.activity.flush()
    assert costs.units() == documented("events, one organisation is watched")


async def test_a_stream_that_is_open(costs: Costs) -> None:
    """Reads its feed, and says now and then that it does; ten listeners cost what one does."""
    listeners = costs.activity.listeners
    async with listeners.listen(ORG, "a"), listeners.listen(ORG, "b"):
        (channel,) = listeners._channels.values()
        await listeners.wait_closed()  # what it does is done here, once
        costs.units()
        await listeners._read_next(channel)
        assert costs.units() == documented("a stream that is open")
        costs.clock.advance_ms(WATCH_MS)
        await listeners._keep_watched(channel)
        assert costs.units() == documented("the same, to renew it")


async def test_a_group_of_denials(costs: Costs) -> None:
    """Two writes at first, then one, however many there are."""
    for _ in range(1_000):
        costs.activity.note_denial(denial(costs.clock.now_ms()), "Acme", None)
    await costs.activity.denials.flush()
    assert costs.units() == documented(FIRST)
    costs.clock.advance_ms(10_000)
    costs.activity.note_denial(denial(costs.clock.now_ms() - 10_000), "Acme", None)
    await costs.activity.denials.flush()
    assert costs.units() == documented("the same group, while it grows")
