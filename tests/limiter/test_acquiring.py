"""Acquiring, on every store: grants, denials, and their details."""

from collections.abc import Callable

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import InvalidValueError, RateLimitExceededError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter
from pricekeeper.limiter.limits import AMOUNT_MAX
from pricekeeper.storage import Item, Query, Store
from pricekeeper.storage.tables import RATE_BUCKETS


async def test_a_lease_holds_what_was_asked_for_and_says_what_is_left(
    limiter: Limiter, clock: ManualClock, entity: str
) -> None:
    """It shows all limits of the bucket, also those that were not requested."""
    lease = await limiter.acquire(entity, "premium", {"rpm": 1})

    assert lease.granted
    assert lease.held == {"rpm": 1}
    assert {name: one.remaining for name, one in lease.limits.items()} == {
        "rpm": 59,
        "tpm": 100_000,
    }
    assert lease.limits["rpm"].full_at_ms == clock.now_ms() + 1_000
    assert lease.granted_at_ms == clock.now_ms()


async def test_every_limit_has_to_agree(limiter: Limiter, entity: str) -> None:
    """If one has too few tokens, nothing is taken from the others."""
    with pytest.raises(RateLimitExceededError) as denied:
        await limiter.acquire(entity, "premium", {"rpm": 1, "tpm": 100_001})
    assert [one.limit for one in denied.value.violations] == ["tpm"]
    await limiter.acquire(entity, "premium", {"tpm": 99_999})
    with pytest.raises(RateLimitExceededError):
        await limiter.acquire(entity, "premium", {"rpm": 1, "tpm": 2})

    limits = await limiter.peek(entity, "premium")
    assert (limits["rpm"].remaining, limits["tpm"].remaining) == (60, 1)


async def test_a_denial_gives_the_request_the_balance_and_the_wait(
    limiter: Limiter, clock: ManualClock, entity: str
) -> None:
    """The longest wait counts; "never" is longer than any other."""
    await limiter.acquire(entity, "premium", {"rpm": 60, "tpm": 99_000})
    clock.advance_ms(1_500)

    with pytest.raises(RateLimitExceededError) as denied:
        await limiter.acquire(entity, "premium", {"rpm": 3, "tpm": 10_000})

    rpm, tpm = denied.value.violations
    assert (rpm.limit, rpm.requested, rpm.available, rpm.retry_after_ms) == ("rpm", 3, 1, 1_500)
    assert (tpm.limit, tpm.requested, tpm.available, tpm.retry_after_ms) == (
        "tpm",
        10_000,
        3_500,
        3_900,
    )
    assert denied.value.retry_after_ms == 3_900
    assert denied.value.code == "RATE_LIMIT_EXCEEDED"
    assert "3 rpm requested, 1 available, enough in 1500 ms" in str(denied.value)

    never = await limiter.try_acquire(entity, "premium", {"rpm": 61, "tpm": 10_000})
    assert isinstance(never, Denial)
    assert [one.never for one in never.violations] == [True, False]
    assert never.retry_after_ms is None


async def test_a_request_above_the_capacity_of_an_absent_bucket_is_never_granted(
    limiter: Limiter, entity: str
) -> None:
    outcome = await limiter.try_acquire(entity, "premium", {"rpm": 61})

    assert isinstance(outcome, Denial)
    assert (outcome.violations[0].available, outcome.retry_after_ms) == (60, None)


async def test_a_denial_is_a_value_or_an_error(limiter: Limiter, entity: str) -> None:
    """``try_acquire`` returns it, ``acquire`` raises it."""
    granted = await limiter.try_acquire(entity, "premium", {"rpm": 60})
    denied = await limiter.try_acquire(entity, "premium", {"rpm": 1})

    assert isinstance(granted, Lease)
    assert isinstance(denied, Denial)
    assert (granted.granted, denied.granted) == (True, False)
    with pytest.raises(RateLimitExceededError):
        await limiter.acquire(entity, "premium", {"rpm": 1})


async def test_buckets_are_per_entity_and_resource(limiter: Limiter, entity: str) -> None:
    await limiter.acquire(entity, "premium", {"rpm": 60})

    assert (await limiter.try_acquire(entity, "cheap", {"rpm": 60})).granted
    assert (await limiter.try_acquire(f"{entity}2", "premium", {"rpm": 60})).granted
    assert not (await limiter.try_acquire(entity, "premium", {"rpm": 1})).granted


async def test_peeking_takes_nothing_and_sees_what_an_acquire_would(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An absent bucket is full; new limits count before the first acquire with them."""
    limiter = make()
    assert (await limiter.peek(entity, "premium"))["rpm"].remaining == 60
    await limiter.acquire(entity, "premium", {"rpm": 30})
    clock.advance_ms(5_000)

    status = (await limiter.peek(entity, "premium"))["rpm"]
    assert (status.remaining, status.consumed) == (35, 30)
    assert status.full_at_ms == clock.now_ms() + 25_000
    doubled = await limiter.peek(entity, "premium", limits=[Limit.per_minute("rpm", 120)])
    assert doubled["rpm"].remaining == 70


async def test_limits_may_depend_on_entity_and_resource(
    store: Store, clock: ManualClock, entity: str
) -> None:
    """The limiter calls the function at every acquire."""
    allowed = {"premium": 1, "cheap": 5}
    limiter = Limiter(
        store,
        clock=clock,
        limits=lambda _, resource: [Limit.per_day("requests", allowed[resource])],
    )
    for resource, times in allowed.items():
        for _ in range(times):
            await limiter.acquire(entity, resource, {"requests": 1})
        assert not (await limiter.try_acquire(entity, resource, {"requests": 1})).granted

    allowed["premium"] = 10
    clock.advance_ms(86_400_000)
    assert (await limiter.try_acquire(entity, "premium", {"requests": 10})).granted


async def test_one_acquire_may_bring_its_own_limits(limiter: Limiter, entity: str) -> None:
    own = [Limit.per_day("requests", 2)]
    await limiter.acquire(entity, "premium", {"requests": 2}, limits=own)

    assert not (await limiter.try_acquire(entity, "premium", {"requests": 1}, limits=own)).granted


async def test_changed_limits_rescale_what_is_there(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Half full stays half full; a debt keeps its tokens, up to the new bound."""
    half = await make([Limit.per_day("n", 100)]).acquire(entity, "r", {"n": 50})
    assert half.limits["n"].remaining == 50
    more = await make([Limit.per_day("n", 1_000)]).acquire(entity, "r", {"n": 0})
    assert more.limits["n"].remaining == 500
    await more.adjust({"n": 700})
    for capacity, available in ((100, -200), (10, -40)):
        fewer = make([Limit.per_day("n", capacity)])
        denied = await fewer.try_acquire(entity, "r", {"n": 1})
        assert isinstance(denied, Denial)
        assert denied.violations[0].available == available


async def test_a_lease_outlives_a_change_of_the_limits(
    make: Callable[..., Limiter], entity: str
) -> None:
    """A refund counts in tokens, although the bucket now counts in another unit."""
    old, new = make([Limit("n", 100, 7, 86_400_000)]), make([Limit("n", 100, 11, 3_600_000)])
    lease = await old.acquire(entity, "r", {"n": 40})
    await new.acquire(entity, "r", {"n": 0})

    await lease.adjust({"n": -10})
    assert (await new.peek(entity, "r"))["n"].remaining == 70
    await lease.release()
    status = (await new.peek(entity, "r"))["n"]
    assert (status.remaining, status.consumed) == (100, 0)


async def test_a_limit_that_is_taken_away_limits_nobody(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """It does not return full too early: another instance may still use it."""
    both = make([Limit.per_day("n", 10), Limit.per_day("m", 10)])
    only = make([Limit.per_day("n", 10)])
    await both.acquire(entity, "r", {"n": 1, "m": 10})
    clock.advance_ms(3 * 3_600_000)

    assert (await only.acquire(entity, "r", {"n": 2})).limits.keys() == {"n"}
    assert not (await both.try_acquire(entity, "r", {"m": 2})).granted
    assert (await both.try_acquire(entity, "r", {"m": 1})).granted


async def test_an_outdated_view_of_a_bucket_loses_no_refill(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An instance that saw it full keeps the refill that followed the others' requests."""
    limits = [Limit("n", 100, 10, 1_000)]
    one, other = make(limits), make(limits)
    await one.acquire(entity, "r", {"n": 0})
    await other.acquire(entity, "r", {"n": 70})
    clock.advance_ms(2_000)

    await one.acquire(entity, "r", {"n": 1})
    await one.close()
    assert (await one.peek(entity, "r"))["n"].remaining == 100 - 70 + 20 - 1


async def test_a_prepared_request_is_checked_once_and_made_often(
    make: Callable[..., Limiter], entity: str
) -> None:
    """It takes the same tokens as `try_acquire`, from memory if it can."""
    limiter = make()
    own = [Limit.per_day("n", 30)]
    request = limiter.prepare(entity, "r", {"n": 1}, limits=own, ahead=5)

    outcomes = [
        request.take_at_once() or not isinstance(await request.take(), Denial) for _ in range(31)
    ]
    assert outcomes == [True] * 30 + [False]
    assert limiter.meter.prefetched > 10
    assert limiter.meter.denied == 1
    assert request.limits()["n"].remaining == 0
    with pytest.raises(InvalidValueError):
        limiter.prepare(entity, "r", {"n": -1}, limits=own)
    await limiter.close()


async def test_an_expired_bucket_is_a_full_one(
    limiter: Limiter, store: Store, clock: ManualClock, entity: str
) -> None:
    """So the store keeps nothing for an inactive entity."""
    await limiter.acquire(entity, "premium", {"rpm": 60})
    item = await _bucket(store, entity)
    assert item is not None
    clock.advance_ms(item["expires_at_epoch"] * 1_000 - clock.now_ms())

    assert await _bucket(store, entity) is None
    assert (await limiter.try_acquire(entity, "premium", {"rpm": 60})).granted
    assert not (await limiter.try_acquire(entity, "premium", {"rpm": 1})).granted


async def test_a_bucket_in_use_never_expires(
    limiter: Limiter, store: Store, clock: ManualClock, entity: str
) -> None:
    """Not even one that is never full, whose refill is not settled."""
    rate = [Limit.per_hour("n", 60, burst=600)]
    for _ in range(200):
        await limiter.try_acquire(entity, "r", {"n": 120}, limits=rate)
        clock.advance_ms(3_600_000)
        item = await _bucket(store, entity)
        assert item is not None
        assert item["expires_at_epoch"] * 1_000 > clock.now_ms() + 10 * 3_600_000


@pytest.mark.parametrize(
    ("entity", "resource", "consume", "field"),
    [
        ("", "r", {"rpm": 1}, "entity"),
        ("a#b", "r", {"rpm": 1}, "entity"),
        ("a b", "r", {"rpm": 1}, "entity"),
        ("x" * 257, "r", {"rpm": 1}, "entity"),
        ("e", "r#", {"rpm": 1}, "resource"),
        ("e", "r", {}, "consume"),
        ("e", "r", {"rpm": -1}, "consume.rpm"),
        ("e", "r", {"rpm": 1.5}, "consume.rpm"),
        ("e", "r", {"rpm": True}, "consume.rpm"),
        ("e", "r", {"rpm": AMOUNT_MAX + 1}, "consume.rpm"),
        ("e", "r", {"unknown": 1}, "consume.unknown"),
    ],
)
@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_an_invalid_request_is_refused(
    limiter: Limiter, entity: str, resource: str, consume: dict[str, int], field: str
) -> None:
    """Before anything is sent; the error names the field."""
    with pytest.raises(InvalidValueError) as refused:
        await limiter.acquire(entity, resource, consume)

    assert refused.value.field == field


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_a_limiter_with_an_invalid_option_is_refused(make: Callable[..., Limiter]) -> None:
    """When it is made, not at the first acquire."""
    with pytest.raises(InvalidValueError) as refused:
        make(hold_ms=0)

    assert refused.value.field == "hold_ms"


async def _bucket(store: Store, entity: str) -> Item | None:
    items = (await store.query(Query(RATE_BUCKETS, entity))).items
    return items[0] if items else None


async def test_a_bucket_that_fills_for_days_is_not_full_before_its_time(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """A debit after a long pause postpones the expiry, too, since an absent bucket is full.

    The instance that takes here does not know of another instance's refund.
    """
    limits = [Limit("n", 10, 1, 86_400_000)]
    one, other = make(limits), make(limits)
    lease = await other.acquire(entity, "r", {"n": 10})
    assert not (await one.try_acquire(entity, "r", {"n": 1})).granted
    await lease.adjust({"n": -1})
    clock.advance_ms(9 * 86_400_000)
    assert (await one.try_acquire(entity, "r", {"n": 10})).granted

    clock.advance_ms(4 * 86_400_000)
    assert (await one.peek(entity, "r"))["n"].remaining == 4
