"""Twelve ways in which a naive limiter loses or creates tokens. Ours has none of them.

Each check must pass on `Limiter` and fail on `NaiveLimiter`, so every check is able to fail.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import pytest

from limiter.hooked import Hooked, once
from limiter.naive import NaiveDenial, NaiveLease, NaiveLimiter
from pricekeeper.clock import Clock, ManualClock
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter

Outcome: TypeAlias = Lease | Denial | NaiveLease | NaiveDenial
TEN = Limit.per_second("rps", 10)


class Bench:
    """A hooked store, a clock, and limiters of the kind under test."""

    def __init__(
        self, store: Hooked, clock: ManualClock, kind: type[Limiter | NaiveLimiter]
    ) -> None:
        self.store = store
        self.clock = clock
        self._kind = kind

    def make(self, *limits: Limit, clock: Clock | None = None) -> Limiter | NaiveLimiter:
        return self._kind(self.store, clock=clock or self.clock, limits=limits)

    async def spree(self, limiter: Limiter | NaiveLimiter, consume: dict[str, int]) -> int:
        """Count the grants before the first denial."""
        times = 0
        while (await limiter.try_acquire("e", "r", consume)).granted:
            times += 1
            assert times < 1_000, "it is granted for ever"
        return times


class WrongClock(ManualClock):
    """The clock of another instance, wrong by a fixed time."""

    def __init__(self, right: ManualClock, wrong_by_ms: int) -> None:
        super().__init__()
        self._right = right
        self._wrong_by_ms = wrong_by_ms

    def now_ms(self) -> int:
        return self._right.now_ms() + self._wrong_by_ms


Check: TypeAlias = Callable[[Bench], Awaitable[None]]


async def loss_1_refill_stamped_with_a_later_reading(bench: Bench) -> None:
    """A saturating client gets its rate, though time passes between its clock and the store."""

    async def latency(_: str) -> None:
        bench.clock.advance_ms(15)

    bench.store.before = latency
    limiter = bench.make(Limit("rps", 5, 20, 1_000))
    end_ms, got = bench.clock.now_ms() + 60_000, 0
    while bench.clock.now_ms() < end_ms:
        got += (await limiter.try_acquire("e", "r", {"rps": 1})).granted
    assert got >= 0.99 * 20 * 60


async def loss_2_fractions_of_a_slow_limit_beside_a_fast_one(bench: Bench) -> None:
    """A daily limit refills, though the bucket is written every five seconds."""
    limiter = bench.make(Limit.per_day("daily", 10), Limit("often", 1, 1, 5_000))
    assert (await limiter.try_acquire("e", "r", {"daily": 10})).granted
    for _ in range(3 * 720):
        bench.clock.advance_ms(5_000)
        assert (await limiter.try_acquire("e", "r", {"often": 1})).granted
    assert (await limiter.try_acquire("e", "r", {"daily": 1})).granted


async def loss_3_clocks_that_differ(bench: Bench) -> None:
    """A slow clock never reopens a window that a fast one has used."""
    ahead = bench.make(TEN, clock=WrongClock(bench.clock, 2_000))
    behind = bench.make(TEN, clock=WrongClock(bench.clock, -2_000))
    got = 0
    for _ in range(20):
        for limiter in (ahead, behind):
            got += (await limiter.try_acquire("e", "r", {"rps": 1})).granted
    assert got <= 10


async def loss_4_refunds_above_the_capacity(bench: Bench) -> None:
    """A refund to a bucket that has refilled meanwhile makes no greater burst."""
    limiter = bench.make(TEN)
    lease = await limiter.try_acquire("e", "r", {"rps": 10})
    assert isinstance(lease, Lease | NaiveLease)
    bench.clock.advance_ms(1_000)
    await limiter.try_acquire("e", "r", {"rps": 0})
    await lease.release()
    assert await bench.spree(limiter, {"rps": 1}) == 10


async def loss_5_a_cancelled_holder(bench: Bench) -> None:
    """A caller that is cancelled before its answer keeps nothing."""
    limiter = bench.make(TEN)
    arrived, go_on, puts = asyncio.Event(), asyncio.Event(), []

    async def hold_up(name: str) -> None:
        puts.extend([name] if name == "put" else [])
        if len(puts) == 2:  # the bucket is written, and the lease is not
            arrived.set()
            await go_on.wait()

    bench.store.before = hold_up
    asking = asyncio.ensure_future(limiter.try_acquire("e", "r", {"rps": 10}))
    waiting = asyncio.ensure_future(arrived.wait())
    await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    waiting.cancel()
    go_on.set()
    await asyncio.gather(asking, waiting, return_exceptions=True)
    bench.store.before = None
    await limiter.close()
    assert await bench.spree(limiter, {"rps": 1}) == 10


async def loss_6_an_ambiguous_refund(bench: Bench) -> None:
    """Repeating a release whose reply was lost creates no tokens."""
    limiter = bench.make(Limit.per_day("daily", 100))
    assert (await limiter.try_acquire("e", "r", {"daily": 80})).granted
    lease = await limiter.try_acquire("e", "r", {"daily": 20})
    assert isinstance(lease, Lease | NaiveLease)
    for lost in (1, 0):
        bench.store.replies_to_lose = lost
        with contextlib.suppress(OutcomeUnknownError):
            await lease.release()
    assert await bench.spree(limiter, {"daily": 1}) == 20


async def loss_7_changed_limits_on_a_live_bucket(bench: Bench) -> None:
    """A raised limit counts at the next acquire, and so does a lowered one."""
    assert (await bench.make(TEN).try_acquire("e", "r", {"rps": 1})).granted
    bench.clock.advance_ms(1_000)
    raised = bench.make(Limit.per_second("rps", 100))
    assert await bench.spree(raised, {"rps": 1}) == 100
    bench.clock.advance_ms(1_000)
    assert await bench.spree(bench.make(Limit.per_second("rps", 5)), {"rps": 1}) == 5


async def loss_8_a_limit_added_to_a_live_bucket(bench: Bench) -> None:
    """A new limit of a live bucket starts full."""
    assert (await bench.make(TEN).try_acquire("e", "r", {"rps": 1})).granted
    more = bench.make(TEN, Limit.per_day("daily", 7))
    assert await bench.spree(more, {"daily": 1}) == 7


async def loss_9_a_request_above_the_capacity(bench: Bench) -> None:
    """The denial says never, not a wait."""
    limiter = bench.make(TEN)
    assert (await limiter.try_acquire("e", "r", {"rps": 1})).granted
    outcome = await limiter.try_acquire("e", "r", {"rps": 11})
    assert isinstance(outcome, Denial | NaiveDenial)
    assert outcome.retry_after_ms is None


async def loss_10_how_long_to_wait(bench: Bench) -> None:
    """Waiting exactly that long admits; one millisecond less does not."""
    for place, limit in enumerate(
        (Limit("n", 7, 3, 777), Limit("n", 10, 10, 1_000), Limit("n", 5, 1_000, 86_400_000))
    ):
        limiter = bench.make(limit)
        entity = f"e{place}"
        assert (await limiter.try_acquire(entity, "r", {"n": limit.capacity})).granted
        bench.clock.advance_ms(123)
        denial = await limiter.try_acquire(entity, "r", {"n": 2})
        assert isinstance(denial, Denial | NaiveDenial)
        assert denial.retry_after_ms is not None
        bench.clock.advance_ms(max(0, denial.retry_after_ms - 1))
        assert not (await limiter.try_acquire(entity, "r", {"n": 2})).granted
        bench.clock.advance_ms(1)
        assert (await limiter.try_acquire(entity, "r", {"n": 2})).granted


async def loss_11_contention_taken_for_denial(bench: Bench) -> None:
    """An instance that loses a race to create or refill the bucket still grants, if it can."""
    one, other = bench.make(TEN), bench.make(TEN)
    bench.store.before = _before_the_second_call(lambda: other.try_acquire("e", "r", {"rps": 1}))
    assert (await one.try_acquire("e", "r", {"rps": 1})).granted
    bench.store.before = None
    assert await bench.spree(one, {"rps": 1}) == 8
    bench.clock.advance_ms(1_000)
    bench.store.before = _before_the_second_call(lambda: other.try_acquire("e", "r", {"rps": 9}))
    assert (await one.try_acquire("e", "r", {"rps": 1})).granted


async def loss_12_idle_for_a_year(bench: Bench) -> None:
    """After a year there is exactly the capacity, once."""
    limiter = bench.make(TEN)
    assert (await limiter.try_acquire("e", "r", {"rps": 3})).granted
    bench.clock.advance_ms(365 * 86_400_000)
    assert await bench.spree(limiter, {"rps": 1}) == 10


CHECKS: Sequence[Check] = [
    loss_1_refill_stamped_with_a_later_reading,
    loss_2_fractions_of_a_slow_limit_beside_a_fast_one,
    loss_3_clocks_that_differ,
    loss_4_refunds_above_the_capacity,
    loss_5_a_cancelled_holder,
    loss_6_an_ambiguous_refund,
    loss_7_changed_limits_on_a_live_bucket,
    loss_8_a_limit_added_to_a_live_bucket,
    loss_9_a_request_above_the_capacity,
    loss_10_how_long_to_wait,
    loss_11_contention_taken_for_denial,
    loss_12_idle_for_a_year,
]


@pytest.mark.parametrize("check", CHECKS)
async def test_the_limiter_has_no_such_loss(
    check: Check, hooked: Hooked, clock: ManualClock
) -> None:
    await check(Bench(hooked, clock, Limiter))


@pytest.mark.parametrize("check", CHECKS)
async def test_the_naive_limiter_has_every_one_of_them(
    check: Check, hooked: Hooked, clock: ManualClock
) -> None:
    """The checks fail on a literal version of the decision."""
    with pytest.raises(AssertionError):
        await check(Bench(hooked, clock, NaiveLimiter))


def _before_the_second_call(
    hook: Callable[[], Awaitable[Outcome]],
) -> Callable[[str], Awaitable[None]]:
    """Run the hook after the limiter under test has read the bucket."""
    calls = []
    first = once(hook)

    async def before(name: str) -> None:
        calls.append(name)
        if len(calls) == 2:
            await first(name)

    return before
