"""What each operation costs, in calls of the store and in capacity: promise 10."""

import uuid
from collections.abc import Callable

import pytest

from limiter.conftest import RPM, TPM
from pricekeeper.clock import ManualClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import open_store
from pricekeeper.telemetry import StoreMeter

ONE = {"rpm": 1, "tpm": 1_200}


async def test_a_first_acquire_takes_two_writes(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    """One finds that the bucket is not there, one makes it; nobody reads."""
    await limiter.acquire(entity, "premium", ONE)

    assert meter.calls == {"update": 1, "put": 1}


async def test_a_steady_acquire_takes_one_write(
    limiter: Limiter, meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """On a bucket in use, whether it is filling up, nearly empty or full again."""
    await limiter.acquire(entity, "premium", {"rpm": 58})
    meter.clear()
    for waited_ms in (0, 0, 1_000, 1_500, 30_000, 3_600_000, 86_400_000):
        clock.advance_ms(waited_ms)
        meter.clear()
        await limiter.acquire(entity, "premium", {"rpm": 1})

        assert meter.calls == {"update": 1}


async def test_an_acquire_on_a_bucket_seen_for_the_first_time_takes_two_writes_at_most(
    make: Callable[..., Limiter], meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """An instance that has not seen the bucket guesses; the refusal tells it everything."""
    await make().acquire(entity, "premium", {"rpm": 60})
    for waited_ms in (0, 20_000, 60_000):
        clock.advance_ms(waited_ms)
        meter.clear()
        await make().try_acquire(entity, "premium", {"rpm": 1})

        assert meter.calls["update"] <= 2
        assert meter.calls.total() == meter.calls["update"]


async def test_a_refill_that_has_to_be_settled_takes_two_writes_if_it_was_not_foreseen(
    make: Callable[..., Limiter], meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """A `TakeOnly` is refused because the bucket has been full; a `Refill` follows."""
    one, other = make(), make()
    await one.acquire(entity, "premium", {"rpm": 60})
    clock.advance_ms(120_000)
    meter.clear()

    await other.acquire(entity, "premium", {"rpm": 60})

    assert meter.calls == {"update": 2}


async def test_a_denial_takes_one_write(
    limiter: Limiter, meter: StoreMeter, clock: ManualClock, entity: str
) -> None:
    """The store has the last word, whatever this instance remembers."""
    await limiter.acquire(entity, "premium", {"rpm": 60})
    clock.advance_ms(500)
    meter.clear()

    assert not (await limiter.try_acquire(entity, "premium", {"rpm": 1})).granted
    assert meter.calls == {"update": 1}


async def test_adjusting_and_releasing_take_one_write_each(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    """No read, and no write for what is repeated."""
    lease = await limiter.acquire(entity, "premium", ONE)
    again = uuid.uuid4()
    meter.clear()

    await lease.adjust({"tpm": 300}, adjustment_id=again)
    assert meter.calls == {"update": 1}
    await lease.adjust({"tpm": 300}, adjustment_id=again)
    assert meter.calls == {"update": 1}
    await lease.release()
    await lease.release()
    assert meter.calls == {"update": 2}


async def test_child_and_parents_take_one_transaction(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    """Three buckets: one read when they are seen for the first time, never again."""
    parents = [f"{entity}-org", f"{entity}-root"]
    await limiter.acquire(entity, "premium", ONE, parents=parents)
    assert meter.calls == {"batch_get": 1, "transact": 1}
    meter.clear()

    lease = await limiter.acquire(entity, "premium", ONE, parents=parents)
    assert meter.calls == {"transact": 1}
    await lease.adjust({"tpm": -200})
    assert meter.calls == {"transact": 2}


async def test_a_lease_with_a_name_takes_one_transaction_per_step(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """From another instance, one read before it, to learn what the lease is about."""
    limiter, other, lease_id = make(), make(), uuid.uuid4()
    await limiter.acquire(entity, "premium", ONE)
    meter.clear()

    lease = await limiter.acquire(entity, "premium", ONE, lease_id=lease_id)
    await lease.adjust({"tpm": 10}, adjustment_id=uuid.uuid4())
    assert meter.calls == {"transact": 2}
    await other.release(entity, lease_id)
    assert meter.calls == {"transact": 3, "get": 1}


async def test_a_prefetched_acquire_takes_nothing(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """One write takes for twenty requests; the next nineteen are served from memory."""
    limiter = make(prefetch=20)
    await limiter.acquire(entity, "premium", {"tpm": 100})
    meter.clear()
    for _ in range(20):
        await limiter.acquire(entity, "premium", {"tpm": 100})

    assert meter.calls == {"update": 1}
    await limiter.close()
    assert meter.calls == {"update": 1}


async def test_peeking_takes_one_read(limiter: Limiter, meter: StoreMeter, entity: str) -> None:
    """Of one bucket or of many."""
    await limiter.peek(entity, "premium")
    await limiter.peek_many([(entity, "premium"), (entity, "cheap")])

    assert meter.calls == {"batch_get": 2}


@pytest.mark.parametrize("location", ["dynoxide"], indirect=True)
async def test_a_steady_acquire_takes_one_write_unit(
    make: Callable[..., Limiter], meter: StoreMeter, entity: str
) -> None:
    """The item of a bucket with four limits stays under the kilobyte that a unit pays for."""
    limits = [Limit.per_minute(name, 10**9) for name in ("rpm", "tpm", "input", "output")]
    limiter = make(limits)
    await limiter.acquire(entity, "premium", {"rpm": 1})
    meter.clear()

    await limiter.acquire(entity, "premium", dict.fromkeys(("rpm", "tpm", "input", "output"), 7))

    assert meter.write_half_units == {"RateBuckets": 2}


async def test_a_lease_with_a_name_takes_four_write_units_to_acquire(
    dynoxide: str, clock: ManualClock, meter: StoreMeter, table_prefix: str, entity: str
) -> None:
    """Bucket and record, doubled by the transaction; dynoxide sums those as DynamoDB does."""
    location = DynamoDbLocation("us-east-1", table_prefix, dynoxide)
    store = await open_store(location, clock=clock, meter=meter)
    await store.create_tables()
    limiter = Limiter(store, clock=clock, limits=[RPM, TPM])
    await limiter.acquire(entity, "premium", ONE)
    meter.clear()

    lease = await limiter.acquire(entity, "premium", ONE, lease_id=uuid.uuid4())
    assert meter.write_half_units == {"RateBuckets": 8}
    meter.clear()
    await lease.adjust({"tpm": 300}, adjustment_id=uuid.uuid4())
    assert meter.write_half_units == {"RateBuckets": 8}
    await store.close()
