"""What alerts cost in DynamoDB's units, as documented in docs/costs.md; counted by dynoxide."""

from collections.abc import AsyncIterator

import pytest

from alerts.conftest import COST_USD_MICROS, USD, Instance, Org, budget
from alerts.endpoint import Endpoint
from pricekeeper.metering import Aggregator
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from selection.conftest import SettableClock


@pytest.fixture
async def store(
    dynoxide: str, table_prefix: str, clock: SettableClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    location = DynamoDbLocation("us-east-1", table_prefix, dynoxide)
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()


def units(meter: StoreMeter) -> tuple[float, float]:
    """The writes and reads since the last call."""
    made = sum(meter.write_half_units.values()) / 2, sum(meter.read_half_units.values()) / 2
    meter.clear()
    return made


async def cost_of_look(org: Org, instance: Instance, meter: StoreMeter) -> tuple[float, float]:
    """What an aggregation costs more than one that looks at nothing."""
    await Aggregator(instance.store, org.clock).run_once()  # the totals are written now
    meter.clear()
    await Aggregator(instance.store, org.clock).run_once()
    writes, reads = units(meter)
    org.clock.advance_ms(31_000)  # type: ignore[attr-defined]  # settings are read again
    await instance.aggregate()
    all_writes, all_reads = units(meter)
    return all_writes - writes, all_reads - reads


async def test_a_look_that_finds_nothing(org: Org, instance: Instance, meter: StoreMeter) -> None:
    """The settings of the organisation, 1, and of the app, 2."""
    await org.spend()
    assert await cost_of_look(org, instance, meter) == (0, 3)


async def test_a_look_at_budgets(org: Org, instance: Instance, meter: StoreMeter) -> None:
    """What is new in the log is 1 more, and what this process knows of the accounts is known."""
    own = {"budgets": [budget(USD, 100, name="own")]}
    await org.configure(budgets=[budget(USD, 50, 100)], app=own)
    await org.spend()
    assert await cost_of_look(org, instance, meter) == (0, 4)


async def test_a_decision_and_its_delivery(
    org: Org, instance: Instance, meter: StoreMeter, endpoint: Endpoint, clock: SettableClock
) -> None:
    """A decision is 8, and 4 for each channel; a delivery 11: lease 1, note 8, release and end 2.

    An alert with the names and places of its foreign parts is a little more than 1 KB.
    """
    await org.add_channel(endpoint.url)
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)])
    await org.spend()
    writes, reads = await cost_of_look(org, instance, meter)
    assert (writes, reads) == (12, 7)
    await instance.deliver()
    assert units(meter) == (11, 4)
    assert len(endpoint.accepted) == 1


async def test_an_empty_outbox(instance: Instance, meter: StoreMeter) -> None:
    """One query, by each instance every 5 seconds."""
    meter.clear()
    await instance.deliver()
    assert units(meter) == (0, 1)


async def test_failing_attempts(
    org: Org, instance: Instance, meter: StoreMeter, endpoint: Endpoint
) -> None:
    """A lease and its release; what waits is read."""
    await org.add_channel(endpoint.url)
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)])
    await org.spend()
    await instance.aggregate()
    endpoint.answer = lambda _: 503
    meter.clear()
    await instance.deliver()
    assert units(meter) == (2, 4)
