"""Events, denials and live spend cost what docs/costs.md says, counted as AWS does."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from activity.happenings import ORG, counted, denial, note_counted
from pricekeeper.activity import Activity
from pricekeeper.activity.listening import WATCH_MS
from pricekeeper.clock import ManualClock
from pricekeeper.settings import DynamoDbLocation, StoreLocation
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter

COSTS = (Path(__file__).parents[2] / "docs" / "costs.md").read_text("utf-8")

FIRST = "a group of denials, the first of its kind in a minute"


def documented(name: str) -> tuple[int, int]:
    """The units of a row under "Events, denials and live spend"."""
    section = COSTS.partition("## Events, denials and live spend")[2].partition("\n## ")[0]
    found = re.search(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|", section, re.MULTILINE)
    assert found is not None, name
    return int(found[1]), int(found[2])


@dataclass
class Costs:
    """A process on an engine that counts."""

    activity: Activity
    clock: ManualClock
    meter: StoreMeter

    def units(self) -> tuple[float, float]:
        """The writes and reads since the last call."""
        written = sum(self.meter.write_half_units.values()) / 2
        read = sum(self.meter.read_half_units.values()) / 2
        self.meter.clear()
        return written, read


@pytest.fixture
def location(dynoxide: str, table_prefix: str) -> StoreLocation:
    return DynamoDbLocation("us-east-1", table_prefix, dynoxide)


@pytest.fixture
def costs(store: Store, clock: ManualClock, meter: StoreMeter) -> Costs:
    return Costs(Activity(store, clock, listeners_max=10), clock, meter)


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
