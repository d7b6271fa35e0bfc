"""Leases: holding, adjusting and giving back, whatever happens to the holder or to a reply."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from limiter.hooked import Hooked, once
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    CancellationReason,
    ConflictError,
    ContendedError,
    InvalidValueError,
    OutcomeUnknownError,
    ReasonCode,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.limiter import Lease, Limit, Limiter
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX
from pricekeeper.limiter.records import ADJUSTMENTS_MAX
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Key, Set, Update, open_store
from pricekeeper.storage.tables import RATE_BUCKETS

DAILY = Limit.per_day("n", 100)


@pytest.fixture
async def hooked(clock: ManualClock) -> AsyncIterator[Hooked]:
    opened = await open_store(SqliteLocation(MEMORY), clock=clock)
    await opened.create_tables()
    yield Hooked(opened)
    await opened.close()


@pytest.fixture
async def daily(hooked: Hooked, clock: ManualClock) -> AsyncIterator[Limiter]:
    """A limiter on a store that the test can reach into."""
    async with Limiter(hooked, clock=clock, limits=[DAILY]) as limiter:
        yield limiter


async def left(limiter: Limiter, entity: str = "e") -> int:
    return (await limiter.peek(entity, "r"))["n"].remaining


async def test_leaving_the_block_keeps_what_was_used(
    make: Callable[..., Limiter], entity: str
) -> None:
    """With whatever adjustments were made inside."""
    limiter = make([DAILY])
    async with limiter.acquire(entity, "r", {"n": 10}) as lease:
        await lease.adjust({"n": 5})
        await lease.adjust({"n": -3})

    assert await left(limiter, entity) == 88
    assert lease.held == {"n": 12}


async def test_leaving_the_block_by_an_exception_gives_everything_back(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Also what was adjusted inside; the exception goes on its way."""
    limiter = make([DAILY])

    async def use() -> None:
        async with limiter.acquire(entity, "r", {"n": 10}) as lease:
            await lease.adjust({"n": 5})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()

    assert await left(limiter, entity) == 100
    assert limiter.meter.rolled_back == 1


async def test_cancelling_an_acquire_under_way_gives_back_what_it_was_granted(
    daily: Limiter, hooked: Hooked
) -> None:
    """Whether the write was applied shows only later; then it is undone."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold_up(_: str) -> None:
        arrived.set()
        await go_on.wait()

    await daily.acquire("e", "r", {"n": 1})
    hooked.before = hold_up
    asking = asyncio.create_task(daily.try_acquire("e", "r", {"n": 10}))
    await arrived.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go_on.set()
    await daily.close()

    assert daily.meter.granted == 2
    assert await left(daily) == 99


async def test_cancelling_again_while_it_is_given_back_changes_nothing(
    daily: Limiter, hooked: Hooked
) -> None:
    """Giving back goes on though nobody waits for it any more."""
    inside, arrived, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with daily.acquire("e", "r", {"n": 10}):
            inside.set()
            await asyncio.Event().wait()

    async def hold_up(_: str) -> None:
        arrived.set()
        await go_on.wait()

    holder = asyncio.create_task(hold())
    await inside.wait()
    hooked.before = hold_up
    holder.cancel()
    await arrived.wait()
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    go_on.set()
    await daily.close()

    assert await left(daily) == 100


async def test_a_lease_that_cannot_be_given_back_does_not_hide_why_the_block_failed(
    daily: Limiter, hooked: Hooked
) -> None:
    """The error says so in a note, the meter counts it, and the tokens refill."""

    async def fail(_: str) -> None:
        raise StoreUnavailableError("the store is away")

    async def use() -> None:
        async with daily.acquire("e", "r", {"n": 10}):
            hooked.before = fail
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failed:
        await use()

    assert failed.value.__notes__ == ["and its lease could not be given back: the store is away"]
    assert daily.meter.refunds_lost == 1
    hooked.before = None
    assert await left(daily) == 90


async def test_an_adjustment_may_leave_a_debt_that_nobody_is_served_before_it_is_paid(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """It can't be denied: what it is about was used already."""
    limiter = make([Limit.per_second("n", 10)])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await lease.adjust({"n": 25})

    assert await left(limiter, entity) == -25
    clock.advance_ms(2_599)
    assert not (await limiter.try_acquire(entity, "r", {"n": 1})).granted
    clock.advance_ms(1)
    assert (await limiter.try_acquire(entity, "r", {"n": 1})).granted


async def test_a_debt_is_not_forgotten_however_long_it_takes_to_pay(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """A bucket that expired would be a full one."""
    limiter = make([Limit("n", 10, 1, 86_400_000)])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await lease.adjust({"n": 40})
    clock.advance_ms(39 * 86_400_000)

    assert await left(limiter, entity) == -1


async def test_the_same_adjustment_applies_once(make: Callable[..., Limiter], entity: str) -> None:
    """However often it is sent; another id is another adjustment."""
    limiter = make([DAILY])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    same = uuid.uuid4()
    for _ in range(3):
        await lease.adjust({"n": 5}, adjustment_id=same)
    await lease.adjust({"n": 5}, adjustment_id=str(uuid.uuid4()))

    assert await left(limiter, entity) == 80


async def test_an_adjustment_under_a_known_id_by_another_amount_is_told(
    make: Callable[..., Limiter], entity: str
) -> None:
    """It is a mistake, and changes nothing."""
    limiter, same = make([DAILY]), uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await lease.adjust({"n": 5}, adjustment_id=same)
    with pytest.raises(ConflictError, match="another delta") as refused:
        await lease.adjust({"n": 6}, adjustment_id=same)

    assert refused.value.field == "adjustment_id"
    assert (lease.held, await left(limiter, entity)) == ({"n": 15}, 85)


async def test_a_lease_gives_back_no_more_than_it_holds(
    make: Callable[..., Limiter], entity: str
) -> None:
    """By adjustment or by release, and not after it was released."""
    limiter = make([DAILY])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await limiter.acquire(entity, "r", {"n": 50})
    with pytest.raises(InvalidValueError, match="more than the lease holds"):
        await lease.adjust({"n": -11})
    await lease.adjust({"n": -4})
    await lease.release()
    await lease.release()

    assert await left(limiter, entity) == 50
    assert lease.held == {}
    with pytest.raises(ConflictError, match="released"):
        await lease.adjust({"n": 1})


@pytest.mark.parametrize(
    ("delta", "field"),
    [
        ({}, "delta"),
        ({"unknown": 1}, "delta.unknown"),
        ({"n": 1.5}, "delta.n"),
        ({"n": 10**13}, "delta.n"),
    ],
)
async def test_an_adjustment_that_makes_no_sense_is_refused(
    daily: Limiter, delta: dict[str, int], field: str
) -> None:
    """Before anything is sent."""
    lease = await daily.acquire("e", "r", {"n": 1})
    with pytest.raises(InvalidValueError) as refused:
        await lease.adjust(delta)

    assert refused.value.field == field


async def test_the_adjustments_of_a_lease_are_bounded(daily: Limiter) -> None:
    """Only those with an id, which have to be remembered."""
    lease = await daily.acquire("e", "r", {"n": 1})
    for _ in range(ADJUSTMENTS_MAX):
        await lease.adjust({"n": 0}, adjustment_id=uuid.uuid4())
    with pytest.raises(ConflictError, match="adjustments"):
        await lease.adjust({"n": 0}, adjustment_id=uuid.uuid4())
    await lease.adjust({"n": 0})


async def test_an_acquire_whose_reply_is_lost_is_neither_granted_nor_debited_twice(
    daily: Limiter, hooked: Hooked
) -> None:
    """The caller is told that nobody knows; tokens that nobody got refill."""
    await daily.acquire("e", "r", {"n": 1})
    hooked.replies_to_lose = 1
    with pytest.raises(OutcomeUnknownError):
        await daily.acquire("e", "r", {"n": 10})

    assert await left(daily) == 89
    assert daily.meter.granted == 1


async def test_what_is_given_back_counts_as_given_back_if_the_reply_is_lost(
    daily: Limiter, hooked: Hooked
) -> None:
    """An adjustment that may have been applied is not sent again, by id or by release."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()
    hooked.replies_to_lose = 1
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            await lease.adjust({"n": -4}, adjustment_id=same)
    assert lease.held == {"n": 6}
    await lease.release()

    assert await left(daily) == 100


async def test_what_is_used_more_counts_as_not_held_if_the_reply_is_lost(
    daily: Limiter, hooked: Hooked
) -> None:
    """It may not have been debited, so that giving it back could make tokens."""
    lease = await daily.acquire("e", "r", {"n": 10})

    async def fail(_: str) -> None:
        raise OutcomeUnknownError("the request was lost")

    hooked.before = fail
    with pytest.raises(OutcomeUnknownError):
        await lease.adjust({"n": 5}, adjustment_id=uuid.uuid4())
    hooked.before = None
    assert lease.held == {"n": 10}
    await lease.release()

    assert await left(daily) == 100


async def test_a_step_that_surely_failed_can_be_tried_again(daily: Limiter, hooked: Hooked) -> None:
    """An adjustment under the same id, and a release."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()

    async def fail(_: str) -> None:
        raise StoreUnavailableError("the store is away")

    hooked.before = fail
    with pytest.raises(StoreUnavailableError):
        await lease.adjust({"n": 5}, adjustment_id=same)
    with pytest.raises(StoreUnavailableError):
        await lease.release()
    hooked.before = None
    await lease.adjust({"n": 5}, adjustment_id=same)
    assert await left(daily) == 85
    await lease.release()

    assert await left(daily) == 100


async def test_a_lease_whose_bucket_has_expired_can_still_be_charged(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An absent bucket is full: nothing can go back to it, but it can be taken from."""
    limiter = make([Limit.per_second("n", 10)])
    giving, using = [await limiter.acquire(entity, "r", {"n": 5}) for _ in range(2)]
    clock.advance_ms(40 * 86_400_000)

    await giving.release()
    assert await left(limiter, entity) == 10
    await using.adjust({"n": 4})
    assert await left(limiter, entity) == 6


async def test_a_release_whose_reply_is_lost_leaves_nothing_to_give_back(
    daily: Limiter, hooked: Hooked
) -> None:
    """Nobody knows whether it was applied, so that it is not sent again."""
    lease = await daily.acquire("e", "r", {"n": 10})
    hooked.replies_to_lose = 1
    with pytest.raises(OutcomeUnknownError):
        await lease.release()
    assert lease.held == {}
    await lease.release()

    assert (await daily.peek("e", "r"))["n"].consumed == 0


async def test_a_step_that_was_applied_can_be_repeated_after_the_release(daily: Limiter) -> None:
    """It is as if its answer came again; another step comes too late."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()
    await lease.adjust({"n": 5}, adjustment_id=same)
    await lease.release()
    await lease.adjust({"n": 5}, adjustment_id=same)

    assert await left(daily) == 100


async def test_the_same_step_twice_at_the_same_moment_happens_once(
    daily: Limiter, hooked: Hooked
) -> None:
    """The second one waits for the first; if that fails, it is the second that happens."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()
    await asyncio.gather(*(lease.adjust({"n": 5}, adjustment_id=same) for _ in range(3)))
    assert (lease.held, await left(daily)) == ({"n": 15}, 85)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise StoreUnavailableError("the store is away")

    hooked.before = once(fail)
    outcomes = await asyncio.gather(lease.release(), lease.release(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError, type(None)]
    assert await left(daily) == 100


async def test_what_is_given_back_is_known_here_at_once(daily: Limiter) -> None:
    """Without asking the store, whose answer to the write has told it."""
    request = daily.prepare("e", "r", {"n": 40}, limits=[DAILY])
    lease = await request.take()
    assert isinstance(lease, Lease)
    assert request.limits()["n"].remaining == 60
    await lease.adjust({"n": -30})

    assert request.limits()["n"].remaining == 90


async def test_a_limit_that_the_bucket_no_longer_has_gets_nothing_back(
    hooked: Hooked, clock: ManualClock
) -> None:
    """Nobody is limited by it; what the bucket does have gets its part, on its new terms."""
    old = Limiter(hooked, clock=clock, limits=[DAILY, Limit.per_second("m", 10)])
    new = Limiter(hooked, clock=clock, limits=[Limit.per_hour("n", 100)])
    lease = await old.acquire("e", "r", {"n": 40, "m": 5})
    clock.advance_ms(1_000)
    await new.acquire("e", "r", {"n": 0})
    await lease.release()

    stands = (await new.peek("e", "r"))["n"]
    assert (stands.remaining, stands.consumed) == (100, 0)


async def test_a_refusal_that_names_no_condition_is_an_error_and_not_a_race(
    daily: Limiter, hooked: Hooked
) -> None:
    """The store has said that it is not to be sent again."""
    lease = await daily.acquire("e", "r", {"n": 10}, parents=["org"])

    async def refuse() -> None:
        raise TransactionCancelledError([CancellationReason(ReasonCode.INVALID)] * 2)

    hooked.before = once(refuse)
    with pytest.raises(TransactionCancelledError):
        await lease.release()
    assert await left(daily) == 90
    await lease.release()

    assert await left(daily) == 100


async def test_who_keeps_losing_waits_ever_longer_and_is_told(
    hooked: Hooked, clock: ManualClock
) -> None:
    """Here somebody changes the terms before every attempt to give back."""
    asked: list[int] = []

    def jitter(below: int) -> int:
        asked.append(below)
        return 0

    limiter = Limiter(hooked, clock=clock, limits=[DAILY], jitter=jitter)
    lease = await limiter.acquire("e", "r", {"n": 10})
    attempts = 0

    async def change_terms(name: str) -> None:
        nonlocal attempts
        attempts += 1
        terms = Set("lm.n", f"{100 + attempts}/100/86400000")
        await hooked._store.update(Update(RATE_BUCKETS, Key("e", "r"), (terms,)))

    hooked.before = change_terms
    with pytest.raises(ContendedError):
        await lease.release()

    assert attempts == ATTEMPTS_MAX
    assert asked == [3, 5, 9, 17, 33] + [65] * (ATTEMPTS_MAX - 3 - 5)


async def test_a_lease_that_was_not_named_has_a_name_of_its_own(daily: Limiter) -> None:
    """The same whenever it is asked for, and no other lease's."""
    one, other = [await daily.acquire("e", "r", {"n": 1}) for _ in range(2)]

    assert str(uuid.UUID(one.id)) == one.id
    assert one.id != other.id
