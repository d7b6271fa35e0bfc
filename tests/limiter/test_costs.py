"""What each operation costs, in calls of the store and in capacity: promise 10."""

import asyncio
import uuid
from collections.abc import Callable

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.telemetry import StoreMeter

ONE = {"rpm": 1, "tpm": 1_200}


async def test_a_first_acquire_reads_the_bucket_and_makes_it(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    await limiter.acquire(entity, "premium", ONE)

    assert meter.calls == {"batch_get": 1, "put": 2}


async def test_a_steady_acquire_takes_one_write_for_each_bucket_and_one_for_its_lease(
    limiter: Limiter, meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """On buckets in use, whether they are filling up, nearly empty or full again."""
    parents = [f"{entity}-org"]
    await limiter.acquire(entity, "premium", {"rpm": 58}, parents=parents)
    for waited_ms in (0, 0, 1_000, 1_500, 30_000, 3_600_000, 86_400_000):
        clock.advance_ms(waited_ms)
        meter.clear()
        await limiter.acquire(entity, "premium", {"rpm": 1}, parents=parents)

        assert meter.calls == {"update": 2, "put": 1}


async def test_a_refill_that_was_not_foreseen_takes_one_write_more(
    make: Callable[..., Limiter], meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """A `TakeOnly` is refused because the bucket has been full; a `Refill` follows."""
    one, other = make(), make()
    await one.acquire(entity, "premium", {"rpm": 30})
    await other.acquire(entity, "premium", {"rpm": 30})
    clock.advance_ms(120_000)
    await one.acquire(entity, "premium", {"rpm": 1})
    meter.clear()

    await other.acquire(entity, "premium", {"rpm": 1})

    assert meter.calls == {"update": 2, "put": 1}


async def test_a_denial_reads_the_bucket(
    limiter: Limiter, meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """A denial relies on the store; a lease with the caller's own id may already exist."""
    await limiter.acquire(entity, "premium", {"rpm": 60})
    clock.advance_ms(500)
    meter.clear()

    assert not (await limiter.try_acquire(entity, "premium", {"rpm": 1})).granted
    assert meter.calls == {"batch_get": 1}
    named = await limiter.try_acquire(entity, "premium", {"rpm": 1}, lease_id=uuid.uuid4())
    assert not named.granted
    assert meter.calls == {"batch_get": 2, "get": 1}


@pytest.mark.parametrize("delta", [300, -300])
async def test_adjusting_and_releasing_write_the_lease_and_each_bucket(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str, delta: int
) -> None:
    """A repetition reads the lease at most; so does another instance."""
    limiter, other, again = make(), make(), uuid.uuid4()
    lease = await limiter.acquire(entity, "premium", ONE, parents=[f"{entity}-org"])
    meter.clear()

    for _ in range(2):
        await lease.adjust({"tpm": delta}, adjustment_id=again)
    assert meter.calls == {"update": 3}
    for _ in range(2):
        await other.release(entity, lease.id)
    assert meter.calls == {"update": 6, "get": 2}


async def test_steps_at_the_same_moment_share_the_writes_of_their_bucket(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    """Forty acquires write the bucket once; their releases, which end one by one, a few times."""
    await limiter.acquire(entity, "premium", {"tpm": 1})
    meter.clear()
    leases = await asyncio.gather(
        *(limiter.acquire(entity, "premium", {"tpm": 1}) for _ in range(40))
    )
    assert meter.calls == {"update": 1, "put": 40}
    meter.clear()
    await asyncio.gather(*(lease.release() for lease in leases))
    assert meter.calls["update"] <= 40 + 10


async def test_a_request_served_from_a_block_takes_nothing(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """A busy bucket gets a block: one write for twenty-one requests."""
    limiter = make()
    request = limiter.prepare(entity, "premium", {"tpm": 100}, ahead=20)
    await request.take()
    assert not request.take_at_once(), "a request that comes alone takes no block"
    await request.take()
    meter.clear()
    assert all(request.take_at_once() for _ in range(20))
    assert not request.take_at_once()
    assert not meter.calls
    await limiter.close()


async def test_peeking_takes_one_read(limiter: Limiter, meter: StoreMeter, entity: str) -> None:
    """For one bucket or many."""
    await limiter.peek(entity, "premium")
    await limiter.peek_many([(entity, "premium"), (entity, "cheap")])

    assert meter.calls == {"batch_get": 2}


@pytest.mark.parametrize("location", ["dynoxide"], indirect=True)
async def test_an_acquire_takes_one_write_unit_for_each_bucket_and_one_for_its_lease(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """The item of a bucket with four limits fits into the kilobyte of one write unit."""
    limits = [Limit.per_minute(name, 10**9) for name in ("rpm", "tpm", "input", "output")]
    limiter, parents = make(limits), [f"{entity}-org"]
    consume = dict.fromkeys(("rpm", "tpm", "input", "output"), 7)
    await limiter.acquire(entity, "premium", consume, parents=parents)
    meter.clear()

    lease = await limiter.acquire(entity, "premium", consume, parents=parents)
    assert meter.write_half_units == {"RateBuckets": 6}
    await lease.adjust({"tpm": 300})
    assert meter.write_half_units == {"RateBuckets": 12}
    await lease.release()
    assert meter.write_half_units == {"RateBuckets": 18}
