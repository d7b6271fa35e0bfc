"""What metering costs in DynamoDB's units, as documented in docs/costs.md.

Counted by dynoxide, which sums the capacity of transactions as DynamoDB does.
"""

import asyncio

import pytest

from metering.conftest import LABELS, PREMIUM, a_policy, a_usage
from minting import minted
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering import Aggregator, Metering, org_day
from pricekeeper.metering.spend import MonthSpend
from pricekeeper.settings import DynamoDbLocation, StoreLocation
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy
from pricekeeper.ticks import TICK_MS
from slowness import slow
from stores import ShiftedClock


class StillClock(ShiftedClock):
    """A clock at noon that moves by ``page_ms``: ticks end when a test says so."""

    __slots__ = ("page_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.page_ms = 0

    def now_ms(self) -> int:
        return NOON_MS + self.page_ms


NOON_MS = 4_102_488_000_000 // TICK_MS * TICK_MS
"""Of 1 January 2100, where a tick begins: nothing expires before."""


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def location(dynoxide: str, table_prefix: str) -> StoreLocation:
    return DynamoDbLocation("us-east-1", table_prefix, dynoxide)


@pytest.fixture
async def known(metering: Metering, policy: Policy, meter: StoreMeter, clock: StillClock) -> Policy:
    """A policy whose accounts this process has counted for before, in this tick."""
    for label in LABELS:
        await metering.record(policy, a_usage(model_label=label))
        await metering.record(policy, a_usage(minted(clock.now_ms()), model_label=label))
    clock.page_ms += 16
    meter.clear()
    return policy


def write_units(meter: StoreMeter) -> float:
    return sum(meter.write_half_units.values()) / 2


def read_units(meter: StoreMeter) -> float:
    return sum(meter.read_half_units.values()) / 2


async def test_a_record_alone_is_one_write_unit(
    metering: Metering, known: Policy, meter: StoreMeter, clock: StillClock
) -> None:
    """Its page, which is its own: one plain write, and no read."""
    await metering.record(known, a_usage(minted(clock.now_ms())))
    assert (write_units(meter), read_units(meter)) == (1, 0)
    assert meter.attempts == {"UpdateItem": 1}


async def test_a_record_without_a_time_is_two_write_units(
    metering: Metering, known: Policy, meter: StoreMeter
) -> None:
    """Moment and page, each one unit by a plain write; no read."""
    await metering.record(known, a_usage())
    assert (write_units(meter), read_units(meter)) == (2, 0)
    assert meter.attempts == {"PutItem": 1, "UpdateItem": 1}


async def test_a_tick_is_marked_by_the_process_and_for_each_organisation(
    metering: Metering, known: Policy, meter: StoreMeter, clock: StillClock
) -> None:
    """One unit each, once in 65.5 s, however much is posted then."""
    clock.page_ms += TICK_MS
    for number in range(3):
        clock.page_ms += 16
        await metering.record(known, a_usage(minted(clock.now_ms())))
        assert write_units(meter) == 3 + number
    await metering.record(a_policy(), a_usage(minted(clock.now_ms())))
    assert write_units(meter) == 5 + 2


@pytest.mark.parametrize(
    ("tags", "timed", "untimed"),
    [
        ({"team": "search", "feature": "summaries", "customer": "c" * 64}, 1, 2),
        ({f"key-{n}": "v" * 100 for n in range(10)}, 2, 3),
        ({f"{n:02}" + "k" * 62: "v" * 256 for n in range(16)}, 6, 7),
    ],
)
async def test_tags_add_what_they_weigh(
    metering: Metering,
    known: Policy,
    meter: StoreMeter,
    clock: StillClock,
    tags: dict[str, str],
    timed: int,
    untimed: int,
) -> None:
    """For each KB that the page has begun, and the moment; a few tags are free."""
    request_id = minted(clock.now_ms())
    await metering.record(known, a_usage(request_id, tags=tags, calling_region="eu-central-1"))
    assert write_units(meter) == timed
    meter.clear()
    await metering.record(known, a_usage(tags=tags, calling_region="eu-central-1"))
    assert write_units(meter) == untimed


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("batch", [True, False])
async def test_a_hundred_records_minted_together(
    metering: Metering,
    known: Policy,
    meter: StoreMeter,
    clock: StillClock,
    labels: int,
    batch: bool,
) -> None:
    """From one caller or from a hundred at once: one write, a tenth of a unit a record at most."""
    usages = [a_usage(minted(clock.now_ms()), model_label=LABELS[n % labels]) for n in range(100)]
    if batch:
        await metering.record_many(known, usages)
    else:
        await asyncio.gather(*(metering.record(known, usage) for usage in usages))
    assert write_units(meter) / 100 <= 0.1
    assert read_units(meter) == 0
    assert meter.calls == {"update": 1}


async def test_a_hundred_records_without_a_time(
    metering: Metering, known: Policy, meter: StoreMeter
) -> None:
    """A unit for each moment, and the page of all."""
    await metering.record_many(known, [a_usage() for _ in range(100)])
    assert 1 <= write_units(meter) / 100 <= 1.2
    assert read_units(meter) == 0
    assert meter.calls == {"put": 100, "update": 1}


async def test_a_duplicate_costs_the_refused_write(
    metering: Metering, known: Policy, meter: StoreMeter, clock: StillClock
) -> None:
    """A refusal is billed like the write; one among others costs them one more sending."""
    timed, untimed = a_usage(minted(clock.now_ms())), a_usage()
    await metering.record_many(known, [timed, untimed])
    meter.clear()
    await metering.record(known, timed)
    assert meter.attempts == {"UpdateItem": 1}
    assert (write_units(meter), read_units(meter)) == (1, 0)
    meter.clear()
    await metering.record(known, untimed)
    assert meter.attempts == {"PutItem": 1, "UpdateItem": 1}
    assert (write_units(meter), read_units(meter)) == (2, 0)
    meter.clear()
    together = [timed, *(a_usage(minted(clock.now_ms())) for _ in range(2))]
    await asyncio.gather(*(metering.record(known, one) for one in together))
    assert meter.attempts == {"UpdateItem": 2}


async def test_a_refused_record_costs_the_look_for_it(
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
    await metering.read_totals(known.scope_key, LABELS, day)
    assert meter.calls == {"batch_get": 1}
    assert read_units(meter) <= len(LABELS) + 1
    meter.clear()
    await metering.read_totals(known.scope_key, [PREMIUM], day, live=True)
    assert meter.calls == {"get": 1, "query": 3, "batch_get": 1}
    assert read_units(meter) <= 6


@pytest.mark.parametrize("accounts", [100, *slow(1_000)])
async def test_an_aggregation_costs_what_was_posted(
    metering: Metering, meter: StoreMeter, clock: StillClock, store: Store, accounts: int
) -> None:
    """Of so many accounts ten are active: under 50 read units; a quiet run, four."""
    policies = [a_policy() for _ in range(accounts)]
    for start in range(0, accounts, 50):
        some = policies[start : start + 50]
        clock.page_ms += 1_000
        await asyncio.gather(
            *(metering.record(policy, a_usage(minted(clock.now_ms()))) for policy in some)
        )
    aggregator = Aggregator(store, clock)
    await aggregator.run_once()
    clock.page_ms += 4 * TICK_MS
    await aggregator.run_once()
    meter.clear()
    await aggregator.run_once()
    assert (read_units(meter) <= 4, write_units(meter)) == (True, 1)  # the checkpoint
    for policy in policies[:10]:
        await metering.record(policy, a_usage(minted(clock.now_ms())))
    meter.clear()
    report = await aggregator.run_once()
    assert (report.accounts, report.written) == (10, 10)
    assert read_units(meter) < 50
    assert write_units(meter) <= 1 + 10 * 2  # the total of the day, and that of the hour


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
    assert read_units(meter) <= 7
