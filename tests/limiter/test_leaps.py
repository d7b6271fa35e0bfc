"""Clocks that leap: a bucket refilled "in the future" still refills, and grants no extra tokens."""

import uuid
from collections.abc import Callable

import pytest

from limiter.balances import spree
from pricekeeper.clock import ManualClock
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.upkeep import CLOCKS_APART_MS_MAX
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import RATE_BUCKETS

DAY_MS = 86_400_000
TEN = Limit.per_second("n", 10)


class OtherClock(ManualClock):
    """The clock of another instance, wrong by a fixed time."""

    def __init__(self, right: ManualClock, wrong_by_ms: int = 0) -> None:
        super().__init__()
        self.right = right
        self.wrong_by_ms = wrong_by_ms

    def now_ms(self) -> int:
        return self.right.now_ms() + self.wrong_by_ms

    def monotonic_ms(self) -> int:
        return self.right.monotonic_ms()


async def refilled_at_ms(store: Store, entity: str) -> int:
    item = await store.get(RATE_BUCKETS, Key(entity, "r"))
    assert item is not None
    moment_ms: int = item["rf"]
    return moment_ms


@pytest.mark.parametrize("leap_ms", [DAY_MS, 3_600_000, CLOCKS_APART_MS_MAX + 1])
async def test_after_a_leap_ahead_and_back_the_bucket_refills_at_its_rate(
    make: Callable[..., Limiter], clock: ManualClock, entity: str, leap_ms: int
) -> None:
    """The wait is exact: one millisecond less is not enough."""
    limiter = make([TEN])

    async def take(tokens: int) -> Lease | Denial:
        return await limiter.try_acquire(entity, "r", {"n": tokens})

    assert (await take(10)).granted
    clock.jump_ms(leap_ms)
    assert (await take(10)).granted
    clock.jump_ms(-leap_ms)

    denied = await take(5)
    assert isinstance(denied, Denial)
    assert denied.retry_after_ms == 500
    clock.advance_ms(499)
    assert not (await take(5)).granted
    clock.advance_ms(1)
    assert (await take(5)).granted
    clock.advance_ms(200)
    assert (await take(2)).granted
    denied = await take(1)
    assert isinstance(denied, Denial)
    assert denied.retry_after_ms == 100


async def test_a_clock_that_is_set_back_delays_no_refill(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An hour back: after draining the bucket, a caller waits no longer than without the leap."""
    limiter = make([TEN])
    assert await spree(limiter, entity) == 10
    clock.jump_ms(-3_600_000)

    for _ in range(50):
        clock.advance_ms(100)
        assert await spree(limiter, entity) == 1


async def test_an_instance_that_sees_such_a_bucket_for_the_first_time_lets_it_refill_from_then_on(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    """It can't know the earlier refill; its first denial gives the wait."""
    leapt = Limiter(store, clock=OtherClock(clock, DAY_MS), limits=[TEN])
    assert await spree(leapt, entity) == 10
    late = make([TEN])
    clock.advance_ms(300)

    denied = await late.try_acquire(entity, "r", {"n": 1})
    assert isinstance(denied, Denial)
    assert denied.retry_after_ms == 100
    clock.advance_ms(100)
    assert (await late.try_acquire(entity, "r", {"n": 1})).granted


@pytest.mark.parametrize("wrong_by_ms", [DAY_MS, -DAY_MS, 90_000, -90_000])
async def test_a_clock_that_stays_wrong_gains_nothing(
    make: Callable[..., Limiter],
    store: Store,
    clock: ManualClock,
    entity: str,
    wrong_by_ms: int,
) -> None:
    """If either clock is wrong, ten seconds grant one capacity plus the refill.

    If one instance moved ``rf`` back because it seems to be in the future, the other would refill
    the difference again, each time.
    """
    wrong = Limiter(store, clock=OtherClock(clock, wrong_by_ms), limits=[TEN])
    right = make([TEN])
    got = await spree(right, entity)
    for _ in range(100):
        clock.advance_ms(100)
        got += await spree(wrong, entity) + await spree(right, entity)

    one_leap = 10 if wrong_by_ms > 0 else 0  # the clock ahead finds a bucket that is full
    assert got <= 10 + 100 + one_leap
    assert got >= 0.99 * 100


async def test_a_leap_back_refills_nothing_that_the_leap_ahead_has_refilled(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """Each leap ahead refills once, the way back nothing."""
    limiter = make([TEN])
    got = await spree(limiter, entity)
    for _ in range(5):
        clock.jump_ms(DAY_MS)
        got += await spree(limiter, entity)
        clock.jump_ms(-DAY_MS)
        got += await spree(limiter, entity)

    assert got <= 10 + 5 * 10


async def test_the_time_until_such_a_bucket_is_full_counts_from_now(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    leapt = Limiter(store, clock=OtherClock(clock, DAY_MS), limits=[TEN])
    await spree(leapt, entity)
    status = (await make([TEN]).peek(entity, "r"))["n"]

    assert (status.remaining, status.full_at_ms) == (0, clock.now_ms() + 1_000)


async def test_an_adjustment_after_a_leap_is_measured_by_what_has_refilled_since(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """The debt ends at its usual bound."""
    limiter = make([TEN])
    lease = await limiter.acquire(entity, "r", {"n": 1}, lease_id=uuid.uuid4())
    clock.jump_ms(DAY_MS)
    assert await spree(limiter, entity) == 10
    clock.jump_ms(-DAY_MS)
    for _ in range(80):
        clock.advance_ms(100)
        assert await spree(limiter, entity) == 1
    await lease.adjust({"n": 30}, adjustment_id=uuid.uuid4())

    assert lease.held == {"n": 31}
    denied = await limiter.try_acquire(entity, "r", {"n": 1})
    assert isinstance(denied, Denial)
    assert denied.retry_after_ms == 3_100


async def test_a_repaired_bucket_refills_from_now(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    """For every instance, also those that remember it in the future. A repair refills nothing."""
    limiter = make([TEN])
    leapt = Limiter(store, clock=OtherClock(clock, DAY_MS), limits=[TEN])
    await leapt.acquire(entity, "r", {"n": 7})
    assert not (await limiter.try_acquire(entity, "r", {"n": 4})).granted

    (told,) = await make([]).repair(entity, dry_run=True)
    assert (told.entity, told.resource, told.ahead_ms) == (entity, "r", DAY_MS)
    assert await refilled_at_ms(store, entity) == clock.now_ms() + DAY_MS
    assert await make([]).repair(entity) == [told]
    assert await make([]).repair(entity) == []
    assert await refilled_at_ms(store, entity) == clock.now_ms()
    assert await spree(limiter, entity) == 3
    clock.advance_ms(200)
    assert await spree(limiter, entity) == 2


async def test_repairing_forgives_what_it_cannot_tell_from_a_refill_and_adds_nothing(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    """A debt, or an unsettled refill: the bucket is empty after the repair, and refills."""
    leapt = Limiter(store, clock=OtherClock(clock, DAY_MS), limits=[TEN])
    lease = await leapt.acquire(entity, "r", {"n": 10})
    await lease.adjust({"n": 25})
    await make([]).repair(entity)

    right = make([TEN])
    assert await spree(right, entity) == 0
    clock.advance_ms(100)
    assert await spree(right, entity) == 1
    item = await store.get(RATE_BUCKETS, Key(entity, "r"))
    assert item is not None
    assert item["tc.n"] == 36
    assert item["expires_at_epoch"] < (clock.now_ms() + 3 * DAY_MS) // 1_000


async def test_a_bucket_within_the_allowed_difference_is_left_alone(
    make: Callable[..., Limiter], store: Store, clock: ManualClock, entity: str
) -> None:
    """Clocks differ: a small lead is normal and makes no wait longer."""
    ahead = Limiter(store, clock=OtherClock(clock, CLOCKS_APART_MS_MAX), limits=[TEN])
    await spree(ahead, entity)

    assert await make([]).repair(entity) == []
    lagging = make([TEN])
    denied = await lagging.try_acquire(entity, "r", {"n": 1})
    assert isinstance(denied, Denial)
    assert denied.retry_after_ms == 100
    clock.advance_ms(99)
    assert not (await lagging.try_acquire(entity, "r", {"n": 1})).granted
    clock.advance_ms(1)
    assert (await lagging.try_acquire(entity, "r", {"n": 1})).granted
