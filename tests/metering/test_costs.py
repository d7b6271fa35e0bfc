"""What metering costs in DynamoDB's units, as documented in docs/costs.md.

Counted by dynoxide, which sums the capacity of transactions as DynamoDB does.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from contract.conftest import ShiftedClock
from metering.conftest import LABELS, PREMIUM, MeteringMaker, a_policy, a_usage
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering import Aggregator, Metering, org_day, scope_key
from pricekeeper.metering.spend import MonthSpend
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy


@pytest.fixture
async def store(
    dynoxide: str, table_prefix: str, clock: ShiftedClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    location = DynamoDbLocation("us-east-1", table_prefix, dynoxide)
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()


@pytest.fixture
async def known(metering: Metering, policy: Policy, meter: StoreMeter) -> Policy:
    """A policy whose accounts this process has counted for before."""
    for label in LABELS:
        await metering.record(policy, a_usage(model_label=label))
    meter.clear()
    return policy


def write_units(meter: StoreMeter) -> float:
    return sum(meter.write_half_units.values()) / 2


def read_units(meter: StoreMeter) -> float:
    return sum(meter.read_half_units.values()) / 2


async def test_a_record_alone_is_four_write_units(
    metering: Metering, known: Policy, meter: StoreMeter
) -> None:
    """Receipt and counter, each one unit, doubled by the transaction; no read."""
    await metering.record(known, a_usage())
    assert (write_units(meter), read_units(meter)) == (4, 0)
    assert meter.attempts == {"TransactWriteItems": 1}


@pytest.mark.parametrize(
    ("tags", "units"),
    [
        ({"team": "search", "feature": "summaries", "customer": "c" * 64}, 4),
        ({f"key-{n}": "v" * 100 for n in range(10)}, 6),
        ({f"{n:02}" + "k" * 62: "v" * 256 for n in range(16)}, 14),
    ],
)
async def test_tags_add_what_they_weigh(
    metering: Metering, known: Policy, meter: StoreMeter, tags: dict[str, str], units: int
) -> None:
    """Two units for each KB that the receipt has begun; a few tags are free."""
    await metering.record(known, a_usage(tags=tags, calling_region="eu-central-1"))
    assert write_units(meter) == units


async def test_the_first_record_of_an_account_also_marks_it(
    metering: Metering, policy: Policy, meter: StoreMeter
) -> None:
    """Two units more, and the reads of its price and of its total so far."""
    await metering.record(policy, a_usage())
    assert write_units(meter) == 6
    assert read_units(meter) <= 2


@pytest.mark.parametrize(("labels", "most"), [(1, 2.1), (3, 2.2)])
async def test_a_hundred_concurrent_records_share_their_counters(
    metering: Metering, known: Policy, meter: StoreMeter, labels: int, most: float
) -> None:
    """Little more than the receipts."""
    usages = [a_usage(model_label=LABELS[n % labels]) for n in range(100)]
    await asyncio.gather(*(metering.record(known, usage) for usage in usages))
    assert write_units(meter) / 100 <= most
    assert read_units(meter) == 0


@pytest.mark.parametrize(("labels", "most"), [(1, 2.1), (3, 2.2)])
async def test_a_batch_of_a_hundred(
    metering: Metering, known: Policy, meter: StoreMeter, labels: int, most: float
) -> None:
    """The same, from one caller."""
    usages = [a_usage(model_label=LABELS[n % labels]) for n in range(100)]
    await metering.record_many(known, usages)
    assert write_units(meter) / 100 <= most
    assert read_units(meter) == 0
    assert meter.calls == {"transact": 2}


async def test_records_of_ten_organisations_share_transactions_too(
    metering: Metering, meter: StoreMeter
) -> None:
    """A counter for each, and one transaction around them."""
    policies = [a_policy() for _ in range(10)]
    for policy in policies:
        await metering.record(policy, a_usage())
    meter.clear()
    await asyncio.gather(*(metering.record(policy, a_usage()) for policy in policies * 10))
    assert write_units(meter) / 100 <= 2.5


async def test_a_duplicate_alone_costs_what_it_cost_before(
    metering: Metering, known: Policy, meter: StoreMeter
) -> None:
    """A refused transaction is billed; one among others costs them one more sending."""
    usage = a_usage()
    await metering.record(known, usage)
    meter.clear()
    await metering.record(known, usage)
    assert meter.attempts == {"TransactWriteItems": 1}
    assert (write_units(meter), read_units(meter)) == (4, 0)
    await asyncio.gather(*(metering.record(known, one) for one in (usage, a_usage(), a_usage())))
    assert meter.attempts == {"TransactWriteItems": 3}


async def test_a_refused_record_costs_the_look_for_its_receipt(
    metering: Metering, known: Policy, meter: StoreMeter
) -> None:
    """One read unit and no write; those of a batch are looked for together."""
    with pytest.raises(InvalidValueError):
        await metering.record(known, a_usage(timestamp_ms=0))
    assert (read_units(meter), write_units(meter)) == (1, 0)
    meter.clear()
    await metering.record_many(known, [a_usage(timestamp_ms=0) for _ in range(100)])
    assert meter.calls == {"batch_get": 1}
    assert (read_units(meter), write_units(meter)) == (100, 0)


async def test_totals_are_half_a_unit_or_one_each(
    metering: Metering, known: Policy, meter: StoreMeter, clock: ShiftedClock, store: Store
) -> None:
    """One consistent read unit for each label, and one for when they were last complete."""
    await Aggregator(store, clock).run_once()
    meter.clear()
    day = org_day("UTC", clock.now_ms())
    await metering.totals(scope_key(known), LABELS, day)
    assert meter.calls == {"batch_get": 1}
    assert read_units(meter) <= len(LABELS) + 1
    meter.clear()
    await metering.totals(scope_key(known), [PREMIUM], day, live=True)
    assert meter.calls == {"query": 1, "batch_get": 1}
    assert read_units(meter) <= 8 + 1


async def test_an_aggregation_reads_every_shard_once(
    metering: Metering,
    new_metering: MeteringMaker,
    known: Policy,
    meter: StoreMeter,
    clock: ShiftedClock,
    store: Store,
) -> None:
    """For an account its 8 shards and its total; one write if it changed; few units around."""
    for _ in range(40):  # until every shard is there
        await metering.record_many(
            known, [a_usage(model_label=label) for label in LABELS for _ in range(3)]
        )
    await Aggregator(store, clock).run_once()
    meter.clear()
    await Aggregator(store, clock).run_once()
    quiet_reads, quiet_writes = read_units(meter), write_units(meter)
    await metering.record(known, a_usage())
    meter.clear()
    await Aggregator(store, clock).run_once()

    assert quiet_writes == 1  # the checkpoint
    assert write_units(meter) == 2  # and the total that changed
    accounts = len(LABELS)
    assert 9 * accounts <= quiet_reads <= 9 * accounts + 6
    assert read_units(meter) == quiet_reads


async def test_reading_the_months_spend_for_the_metrics(
    metering: Metering, known: Policy, meter: StoreMeter, store: Store, clock: ShiftedClock
) -> None:
    """A query for each day that may change, and a unit for each account with usage on them."""
    await Aggregator(store, clock).run_once()
    reader = MonthSpend(store, clock)
    await reader.read()
    meter.clear()
    await reader.read()
    assert write_units(meter) == 0
    assert read_units(meter) <= 8
