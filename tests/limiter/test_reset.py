"""Resetting: an operator fills the buckets of an entity while others use them."""

import uuid
from collections.abc import Callable

import pytest

from limiter.balances import left, spree
from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import InvalidValueError, OutcomeUnknownError
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.telemetry import StoreMeter

DAILY = Limit.per_day("n", 100)


@pytest.fixture
def limiter(make: Callable[..., Limiter]) -> Limiter:
    return make([DAILY])


async def test_every_bucket_of_the_entity_is_full_again(
    make: Callable[..., Limiter], limiter: Limiter, entity: str
) -> None:
    """Debts as well, on every resource and instance; other entities' buckets do not change."""
    lease = await limiter.acquire(entity, "premium", {"n": 100}, parents=[f"{entity}-org"])
    await lease.adjust({"n": 300})
    await limiter.acquire(entity, "cheap", {"n": 40})

    assert await limiter.reset(entity) == ["cheap", "premium"]

    for instance in (limiter, make([DAILY])):
        assert [await left(instance, entity, one) for one in ("premium", "cheap")] == [100, 100]
        assert await left(instance, f"{entity}-org", "premium") == -300
    assert (await limiter.try_acquire(entity, "premium", {"n": 100})).granted


async def test_one_resource_can_be_reset_alone(limiter: Limiter, entity: str) -> None:
    for resource in ("premium", "cheap"):
        await limiter.acquire(entity, resource, {"n": 40})

    assert await limiter.reset(entity, "cheap") == ["cheap"]
    assert [await left(limiter, entity, one) for one in ("premium", "cheap")] == [60, 100]


async def test_resetting_again_changes_nothing(limiter: Limiter, entity: str) -> None:
    """Nor does a reset of an unused entity."""
    assert await limiter.reset(entity) == []
    await limiter.acquire(entity, "r", {"n": 40})
    assert await limiter.reset(entity) == ["r"]
    assert await limiter.reset(entity) == []
    assert await left(limiter, entity) == 100


async def test_an_invalid_entity_is_refused(limiter: Limiter) -> None:
    """Before anything is sent; the error names the field."""
    for entity, resource, field in (("a#b", None, "entity"), ("a", "b c", "resource")):
        with pytest.raises(InvalidValueError) as refused:
            await limiter.reset(entity, resource)
        assert refused.value.field == field


async def test_a_reset_whose_reply_is_lost_can_be_repeated(
    hooked: Hooked, clock: ManualClock
) -> None:
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    await limiter.acquire("e", "r", {"n": 40})
    hooked.replies_to_lose = 1
    with pytest.raises(OutcomeUnknownError):
        await limiter.reset("e")
    await limiter.reset("e")

    assert await left(limiter, "e") == 100


async def test_it_takes_one_query_and_one_transaction(
    limiter: Limiter, meter: StoreMeter, entity: str
) -> None:
    """It also clears the instance's cache of these buckets."""
    for resource in ("premium", "cheap"):
        await limiter.acquire(entity, resource, {"n": 40})
    meter.clear()
    await limiter.reset(entity)

    assert meter.calls == {"query": 1, "transact": 1}
    request = limiter.prepare(entity, "premium", {"n": 1}, limits=[DAILY])
    assert request.limits()["n"].remaining == 100


async def test_leases_from_before_a_reset_give_back_no_more_than_the_capacity(
    make: Callable[..., Limiter], limiter: Limiter, entity: str
) -> None:
    """The reset has already returned their tokens; a full bucket stays just full."""
    named = await limiter.acquire(entity, "r", {"n": 30}, lease_id=uuid.uuid4())
    loose = await limiter.acquire(entity, "r", {"n": 30})
    await limiter.reset(entity)
    await named.release()
    await limiter.acquire(entity, "r", {"n": 0})
    await loose.adjust({"n": -20})
    await loose.adjust({"n": 5})

    assert await spree(make([DAILY]), entity) <= 100


async def test_blocks_that_were_fetched_before_a_reset_add_one_capacity_at_most(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """They are spent or given back; then the bucket is full and not fuller."""
    ahead, other = make([DAILY]), make([DAILY])
    request = ahead.prepare(entity, "r", {"n": 1}, ahead=10)
    await request.take()
    await request.take()  # takes a block of ten
    await other.reset(entity)
    granted = 2 + await spree(other, entity)
    while request.take_at_once():
        granted += 1
    await ahead.close()

    assert 100 < granted <= 200
    assert await left(other, entity) == 0
    await other.reset(entity)
    await ahead.reset(entity)
    assert await left(other, entity) == 100


async def test_a_block_that_is_given_back_after_a_reset_makes_no_greater_burst(
    make: Callable[..., Limiter], entity: str
) -> None:
    """The bucket was full; a refund above the capacity is cut."""
    ahead, other = make([DAILY]), make([DAILY])
    request = ahead.prepare(entity, "r", {"n": 1}, ahead=10)
    await request.take()
    await request.take()
    await other.reset(entity)
    await other.acquire(entity, "r", {"n": 0})
    await ahead.close()

    assert await spree(other, entity) == 100
