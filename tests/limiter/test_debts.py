"""A debt is bounded, and so is every wait: no lease can charge a bucket for years."""

import uuid
from collections.abc import Callable

import pytest

from limiter.balances import left
from limiter.hooked import Hooked, once
from pricekeeper.clock import ManualClock
from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.limits import DEBT_CAPACITIES_MAX, HELD_CAPACITIES_MAX
from pricekeeper.storage import Key, Set, Store, Update
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.telemetry import StoreMeter

SECONDLY = Limit.per_second("n", 10)
DEBT_MAX = DEBT_CAPACITIES_MAX * SECONDLY.capacity
FILLING_MS = 1_000


async def stored(store: Store, entity: str) -> int:
    """Return the stored balance, in tokens."""
    item = await store.get(RATE_BUCKETS, Key(entity, "r"))
    assert item is not None
    tokens: int = item["tk.n"] // SECONDLY.units_per_token
    return tokens


async def test_an_implausible_adjustment_is_refused_and_changes_nothing(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """Also if it is repeated: a sibling under the same parent waits no longer."""
    limiter, org = make([SECONDLY]), f"{entity}-org"
    lease = await limiter.acquire(entity, "r", {"n": 1}, parents=[org])
    most = HELD_CAPACITIES_MAX * SECONDLY.capacity - 1
    for tokens in (10**12, 10**12, most + 1):
        with pytest.raises(InvalidValueError, match="at most") as refused:
            await lease.adjust({"n": tokens}, adjustment_id=uuid.uuid4())
        assert refused.value.field == "delta.n"

    assert lease.held == {"n": 1}
    assert [await left(limiter, one) for one in (entity, org)] == [9, 9]
    assert (await limiter.try_acquire(f"{entity}-sibling", "r", {"n": 9}, parents=[org])).granted


async def test_a_debt_ends_at_its_bound_and_the_lease_holds_what_was_really_taken(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """So the release gives back exactly that, and the bucket is no fuller than before."""
    limiter = make([SECONDLY])
    await limiter.acquire(entity, "r", {"n": 7})
    lease = await limiter.acquire(entity, "r", {"n": 1})
    for _ in range(3):
        await lease.adjust({"n": 500}, adjustment_id=uuid.uuid4())

    assert await left(limiter, entity) == -DEBT_MAX
    assert lease.held == {"n": 3 + DEBT_MAX}
    assert (await limiter.peek(entity, "r"))["n"].consumed == 10 + DEBT_MAX
    assert limiter.meter.debts_cut == 3
    await lease.release()
    assert await left(limiter, entity) == 3
    assert (await limiter.peek(entity, "r"))["n"].consumed == 7


async def test_a_debt_delays_others_by_a_few_fillings_at_most(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """The denial gives the exact wait: debt plus request, at the bucket's rate."""
    limiter, org = make([SECONDLY]), f"{entity}-org"
    lease = await limiter.acquire(entity, "r", {"n": 10}, parents=[org], lease_id=uuid.uuid4())
    await lease.adjust({"n": 9_000}, adjustment_id=uuid.uuid4())

    denial = await limiter.try_acquire(f"{entity}-sibling", "r", {"n": 10}, parents=[org])
    assert isinstance(denial, Denial)
    assert denial.retry_after_ms == (DEBT_CAPACITIES_MAX + 1) * FILLING_MS
    clock.advance_ms(denial.retry_after_ms - 1)
    sibling = f"{entity}-sibling"
    assert not (await limiter.try_acquire(sibling, "r", {"n": 10}, parents=[org])).granted
    clock.advance_ms(1)
    assert (await limiter.try_acquire(sibling, "r", {"n": 10}, parents=[org])).granted


async def test_the_bucket_that_bears_least_decides_for_all_of_a_lease(
    store: Store, clock: ManualClock, entity: str
) -> None:
    """A small app can't charge its organisation for more than its own bucket bears."""
    org = f"{entity}-org"
    limits = {entity: Limit.per_second("n", 10), org: Limit.per_second("n", 1_000)}
    limiter = Limiter(store, clock=clock, limits=lambda one, _: [limits[one]])
    lease = await limiter.acquire(entity, "r", {"n": 5}, parents=[org], lease_id=uuid.uuid4())
    await lease.adjust({"n": 900}, adjustment_id=uuid.uuid4())

    assert lease.held == {"n": 10 + DEBT_MAX}
    assert await left(limiter, entity) == -DEBT_MAX
    assert await left(limiter, org) == 1_000 - 10 - DEBT_MAX
    await lease.release()
    assert [await left(limiter, one) for one in (entity, org)] == [10, 1_000]


async def test_an_adjustment_that_was_cut_applies_once(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """A repetition takes nothing more, although the bucket could bear more by then."""
    limiter, other, name, same = make([SECONDLY]), make([SECONDLY]), uuid.uuid4(), uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    first = await limiter.adjust(entity, name, {"n": 100}, adjustment_id=same)
    assert first == {"n": 10 + DEBT_MAX}
    clock.advance_ms(3 * FILLING_MS)

    for instance in (limiter, other):
        assert await instance.adjust(entity, name, {"n": 100}, adjustment_id=same) == first
    assert await left(limiter, entity) == 30 - DEBT_MAX


async def test_a_bucket_at_its_bound_takes_nothing_more_and_the_adjustment_is_still_known(
    make: Callable[..., Limiter], entity: str
) -> None:
    """It debits nothing, so the lease holds nothing for it."""
    limiter, name, same = make([SECONDLY]), uuid.uuid4(), uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    await limiter.adjust(entity, name, {"n": DEBT_MAX}, adjustment_id=uuid.uuid4())
    for _ in range(2):
        held = await limiter.adjust(entity, name, {"n": 7}, adjustment_id=same)
        assert held == {"n": 10 + DEBT_MAX}

    assert await left(limiter, entity) == -DEBT_MAX


async def test_an_unsettled_refill_counts(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, meter: StoreMeter, entity: str
) -> None:
    """A busy bucket stores far less than it holds; the bound counts what it holds.

    The same write settles the refill.
    """
    limiter = make([SECONDLY])
    await limiter.acquire(entity, "r", {"n": 10})
    lease = None
    for _ in range(80):
        clock.advance_ms(100)
        lease = await limiter.acquire(entity, "r", {"n": 1})
    assert isinstance(lease, Lease)
    assert await stored(store, entity) == -80
    assert await left(limiter, entity) == 0
    meter.clear()

    await lease.adjust({"n": 20})
    assert meter.calls == {"update": 2}
    await lease.adjust({"n": 5})
    assert meter.calls == {"update": 4}
    assert await left(limiter, entity) == -25
    assert limiter.meter.debts_cut == 0
    await lease.adjust({"n": 25})
    assert await left(limiter, entity) == -DEBT_MAX


async def test_an_absent_bucket_is_charged_no_further_than_the_bound(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    limiter = make([SECONDLY])
    lease = await limiter.acquire(entity, "r", {"n": 5})
    await limiter.reset(entity)
    await lease.adjust({"n": 5_000})

    assert await left(limiter, entity) == -DEBT_MAX
    assert lease.held == {"n": 15 + DEBT_MAX}


async def test_a_debt_that_is_deeper_already_is_cut_by_the_next_denial(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    """A debt from before the bound existed is cut, then paid at the usual rate."""
    limiter = make([SECONDLY])
    await limiter.acquire(entity, "r", {"n": 1})
    units = -(10**12) * SECONDLY.units_per_token
    await store.update(Update(RATE_BUCKETS, Key(entity, "r"), (Set("tk.n", units),)))
    status = (await limiter.peek(entity, "r"))["n"]
    wait_ms = (DEBT_CAPACITIES_MAX + 1) * FILLING_MS
    assert (status.remaining, status.full_at_ms) == (-DEBT_MAX, clock.now_ms() + wait_ms)

    for instance in (limiter, make([SECONDLY])):
        denial = await instance.try_acquire(entity, "r", {"n": 10})
        assert isinstance(denial, Denial)
        assert denial.retry_after_ms == wait_ms
    assert await stored(store, entity) == -DEBT_MAX
    clock.advance_ms(wait_ms)
    assert (await make([SECONDLY]).try_acquire(entity, "r", {"n": 10})).granted


async def test_a_debt_is_bounded_by_the_capacity_that_counts_now(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """Lowering a limit does not lock the bucket for the time of the old, larger debt."""
    lease = await make([Limit.per_second("n", 1_000)]).acquire(entity, "r", {"n": 1_000})
    await lease.adjust({"n": 4_000})
    lowered = make([SECONDLY])

    assert await left(lowered, entity) == -DEBT_MAX
    denial = await lowered.try_acquire(entity, "r", {"n": 10})
    assert isinstance(denial, Denial)
    assert denial.retry_after_ms == (DEBT_CAPACITIES_MAX + 1) * FILLING_MS
    clock.advance_ms(denial.retry_after_ms)
    assert (await lowered.try_acquire(entity, "r", {"n": 10})).granted


async def test_others_who_take_meanwhile_do_not_deepen_a_debt_beyond_its_bound(
    hooked: Hooked, clock: ManualClock
) -> None:
    """The write decides how much the bucket bears, not an earlier reading."""
    limiter, other = (Limiter(hooked, clock=clock, limits=[SECONDLY]) for _ in range(2))
    lease = await limiter.acquire("e", "r", {"n": 0})

    async def take() -> None:
        await other.acquire("e", "r", {"n": 10})

    hooked.before = once(take)
    await lease.adjust({"n": 10 + DEBT_MAX})

    assert await left(limiter, "e") == -DEBT_MAX
    assert lease.held == {"n": DEBT_MAX}


async def test_a_lease_may_be_adjusted_by_what_others_have_given_back(
    make: Callable[..., Limiter], entity: str
) -> None:
    """The bound counts the stored lease, not an instance's last view of it."""
    limit = Limit.per_day("n", 1_000)
    limiter, other, name = make([limit]), make([limit]), uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 1_000}, lease_id=name)
    most = HELD_CAPACITIES_MAX * limit.capacity
    await other.adjust(entity, name, {"n": -1_000}, adjustment_id=uuid.uuid4())
    await lease.adjust({"n": most}, adjustment_id=uuid.uuid4())

    assert await left(limiter, entity) == -DEBT_CAPACITIES_MAX * limit.capacity
