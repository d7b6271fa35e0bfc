"""Callers share readings of open ticks: how many are made, and what is in them."""

import asyncio

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import LABELS, PREMIUM, STANDARD, MeteringMaker, a_policy, a_usage
from pricekeeper.metering import Metering, org_day
from pricekeeper.metering.journal_items import TICKS
from pricekeeper.storage import Page, Query, Store
from pricekeeper.tenants import Policy
from stores import ShiftedClock


class SteppedClock(ShiftedClock):
    """Real time, and a monotonic clock that moves when the test says so."""

    __slots__ = ("monotonic_now_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.monotonic_now_ms = 0

    def monotonic_ms(self) -> int:
        return self.monotonic_now_ms


class HeldReads(FaultyStore):
    """Sums wait at a gate until they are let go; ``begun`` counts them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.begun = 0
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        self.begun += query.pk == TICKS  # a sum begins with the ticks that are open
        found = await super().query(query, consistent=consistent)
        await self.let_go.wait()
        return found


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def reads(store: Store) -> HeldReads:
    return HeldReads(store)


@pytest.fixture
def metering(new_metering: MeteringMaker, reads: HeldReads, clock: SteppedClock) -> Metering:
    return new_metering(reads, clock)


async def requests(metering: Metering, policy: Policy, clock: SteppedClock) -> int:
    day = org_day(policy.timezone, clock.now_ms())
    totals = await metering.read_totals(policy.scope_key, LABELS, day, live=True)
    return sum(total.requests for total in totals.values())


async def test_who_asks_at_once_shares_one_sum(
    metering: Metering, reads: HeldReads, policy: Policy, clock: SteppedClock
) -> None:
    """Also if the caller who was first goes away."""
    await metering.record(policy, a_usage())
    reads.let_go.clear()
    asking = [asyncio.create_task(requests(metering, policy, clock)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    reads.let_go.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [answer for answer in answers if answer != 1] == [answers[0]]
    assert reads.begun == 1


async def test_what_this_process_has_counted_is_always_in_it(
    metering: Metering, reads: HeldReads, policy: Policy, clock: SteppedClock
) -> None:
    """An app that records and asks finds its record; a neighbour's records change nothing."""
    for number in range(1, 4):
        await metering.record(policy, a_usage(model_label=STANDARD))
        assert await requests(metering, policy, clock) == number
    assert reads.begun == 3
    await metering.record(a_policy(), a_usage())
    assert await requests(metering, policy, clock) == 3
    assert reads.begun == 3


async def test_a_sum_that_began_too_early_is_waited_for_and_the_next_serves_all(
    metering: Metering, reads: HeldReads, policy: Policy, clock: SteppedClock
) -> None:
    """At most one is under way, however often something is counted in between."""
    await metering.record(policy, a_usage(model_label=PREMIUM))
    reads.let_go.clear()
    first = asyncio.create_task(requests(metering, policy, clock))
    await asyncio.sleep(0)
    later: list[asyncio.Task[int]] = []
    for _ in range(5):
        await metering.record(policy, a_usage(model_label=PREMIUM))
        later += [asyncio.create_task(requests(metering, policy, clock)) for _ in range(3)]
        await asyncio.sleep(0)
    assert reads.begun == 1
    reads.let_go.set()
    await first
    assert await asyncio.gather(*later) == [6] * 15
    assert reads.begun == 2
