"""Leases: holding, adjusting and giving back, also with lost replies and cancelled holders."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from limiter.balances import left
from limiter.hooked import Hooked, once
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    InvalidValueError,
    OutcomeUnknownError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX
from pricekeeper.storage import Key, Set, Update
from pricekeeper.storage.tables import RATE_BUCKETS

DAILY = Limit.per_day("n", 100)


@pytest.fixture
async def daily(hooked: Hooked, clock: ManualClock) -> AsyncIterator[Limiter]:
    """A limiter on a store that the test can reach into."""
    async with Limiter(hooked, clock=clock, limits=[DAILY]) as limiter:
        yield limiter


async def test_cancelling_an_acquire_under_way_gives_back_what_it_was_granted(
    daily: Limiter, hooked: Hooked
) -> None:
    """The result of the write arrives later; then it is undone."""
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
    assert await left(daily, "e") == 99


@pytest.mark.parametrize("tokens", [10, 60])
async def test_a_caller_that_leaves_at_any_turn_leaves_no_tokens_taken(
    hooked: Hooked, clock: ManualClock, tokens: int
) -> None:
    """Also if the buckets have too little for the same request once more."""
    for turns in range(100):
        entity, limiter = f"e{turns}", Limiter(hooked, clock=clock, limits=[DAILY])
        task = asyncio.create_task(
            limiter.acquire(entity, "r", {"n": tokens}, parents=[f"{entity}-org"])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait([task])
        await limiter.close()
        assert await left(limiter, entity) == await left(limiter, f"{entity}-org") == 100, turns
    assert turns > 10


async def test_an_adjustment_may_leave_a_debt_that_is_paid_before_the_next_grant(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An adjustment can't be denied: the tokens are already used."""
    limiter = make([Limit.per_second("n", 10)])
    lease = await limiter.acquire(entity, "r", {"n": 10})
    await lease.adjust({"n": 25})

    assert await left(limiter, entity) == -25
    clock.advance_ms(2_599)
    assert not (await limiter.try_acquire(entity, "r", {"n": 1})).granted
    clock.advance_ms(1)
    assert (await limiter.try_acquire(entity, "r", {"n": 1})).granted


@pytest.mark.parametrize(
    ("delta", "field"),
    [
        ({}, "delta"),
        ({"unknown": 1}, "delta.unknown"),
        ({"n": 1.5}, "delta.n"),
        ({"n": 10**13}, "delta.n"),
    ],
)
async def test_an_invalid_adjustment_is_refused(
    daily: Limiter, delta: dict[str, int], field: str
) -> None:
    """Before anything is sent."""
    lease = await daily.acquire("e", "r", {"n": 1})
    with pytest.raises(InvalidValueError) as refused:
        await lease.adjust(delta)

    assert refused.value.field == field


async def test_a_debit_whose_reply_is_lost_is_taken_again(daily: Limiter, hooked: Hooked) -> None:
    """The lease surely holds its tokens; tokens that were taken twice refill."""
    await daily.acquire("e", "r", {"n": 1})
    hooked.replies_to_lose = 1
    lease = await daily.acquire("e", "r", {"n": 10})
    await lease.release()

    assert await left(daily, "e") == 89
    assert (daily.meter.granted, daily.meter.debits_lost) == (2, 1)


@pytest.mark.parametrize("step", ["adjust", "release"])
async def test_a_step_whose_reply_is_lost_happens_once(
    daily: Limiter, hooked: Hooked, step: str
) -> None:
    """A second write of its record shows whether the first was applied."""
    lease = await daily.acquire("e", "r", {"n": 10})
    hooked.replies_to_lose = 1
    if step == "adjust":
        await lease.adjust({"n": -4})
        assert (lease.held, await left(daily, "e")) == ({"n": 6}, 94)
    await lease.release()

    assert (await daily.peek("e", "r"))["n"].consumed == 0


async def test_a_charge_whose_reply_is_lost_is_not_held(daily: Limiter, hooked: Hooked) -> None:
    """It may not have been debited, so a refund could create tokens."""
    lease = await daily.acquire("e", "r", {"n": 10})

    async def fail(_: str) -> None:
        raise OutcomeUnknownError("the request was lost")

    hooked.before = fail
    with pytest.raises(OutcomeUnknownError):
        await lease.adjust({"n": 5}, adjustment_id=uuid.uuid4())
    hooked.before = None
    assert lease.held == {"n": 10}
    await lease.release()

    assert await left(daily, "e") == 100


async def test_a_change_that_may_be_written_keeps_its_tokens_whatever_fails_next(
    daily: Limiter, hooked: Hooked
) -> None:
    """Else the release would give them back once more."""
    lease, updates = await daily.acquire("e", "r", {"n": 10}), list[str]()

    async def fail_third(name: str) -> None:
        updates.extend([name] if name == "update" else [])
        if len(updates) == 2:  # the mark, after the charge
            hooked.replies_to_lose = 1
        if len(updates) == 3:
            raise StoreMisconfiguredError("the permission was withdrawn")

    hooked.before = fail_third
    with pytest.raises(OutcomeUnknownError):
        await lease.adjust({"n": 20})
    hooked.before = None
    assert await left(daily, "e") == 70
    await daily.release("e", lease.id)
    assert await left(daily, "e") == 100


async def test_a_step_that_surely_failed_can_be_tried_again(daily: Limiter, hooked: Hooked) -> None:
    """An adjustment under the same id, and a release."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()

    async def fail(_: str) -> None:
        raise StoreUnavailableError("no connection")

    hooked.before = fail
    with pytest.raises(StoreUnavailableError):
        await lease.adjust({"n": 5}, adjustment_id=same)
    with pytest.raises(StoreUnavailableError):
        await lease.release()
    hooked.before = None
    await lease.adjust({"n": 5}, adjustment_id=same)
    assert await left(daily, "e") == 85
    await lease.release()

    assert await left(daily, "e") == 100


async def test_a_lease_whose_bucket_is_absent_can_still_be_charged(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """An absent bucket is full: a refund adds nothing, a debit works."""
    limiter = make([Limit.per_second("n", 10)])
    giving, using = [await limiter.acquire(entity, "r", {"n": 5}) for _ in range(2)]
    await limiter.reset(entity)

    await giving.release()
    assert await left(limiter, entity) == 10
    await using.adjust({"n": 4})
    assert await left(limiter, entity) == 6


async def test_a_release_that_its_last_attempt_writes_gives_the_tokens_back(
    daily: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await daily.acquire("e", "r", {"n": 40})
    monkeypatch.setattr("pricekeeper.limiter.leases.ATTEMPTS_MAX", 1)
    await lease.release()
    assert await left(daily, "e") == 100


async def test_the_same_step_twice_at_the_same_moment_happens_once(
    daily: Limiter, hooked: Hooked
) -> None:
    """The second one gets the result of the first."""
    lease = await daily.acquire("e", "r", {"n": 10})
    same = uuid.uuid4()
    await asyncio.gather(*(lease.adjust({"n": 5}, adjustment_id=same) for _ in range(3)))
    assert (lease.held, await left(daily, "e")) == ({"n": 15}, 85)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise StoreUnavailableError("no connection")

    hooked.before = once(fail)
    outcomes = await asyncio.gather(lease.release(), lease.release(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError] * 2
    await lease.release()
    assert await left(daily, "e") == 100


async def test_what_is_given_back_is_known_here_at_once(daily: Limiter) -> None:
    """Without a read: the reply to the write contains the balance."""
    request = daily.prepare("e", "r", {"n": 40})
    lease = await daily.acquire("e", "r", {"n": 40})
    assert request.limits()["n"].remaining == 60
    await lease.adjust({"n": -30})

    assert request.limits()["n"].remaining == 90


async def test_a_limit_that_the_bucket_no_longer_has_gets_nothing_back(
    hooked: Hooked, clock: ManualClock
) -> None:
    """The limits that the bucket still has get their refunds, on the new terms."""
    old = Limiter(hooked, clock=clock, limits=[DAILY, Limit.per_second("m", 10)])
    new = Limiter(hooked, clock=clock, limits=[Limit.per_hour("n", 100)])
    lease = await old.acquire("e", "r", {"n": 40, "m": 5})
    clock.advance_ms(1_000)
    await new.acquire("e", "r", {"n": 0})
    await lease.release()

    status = (await new.peek("e", "r"))["n"]
    assert (status.remaining, status.consumed) == (100, 0)


async def test_a_charge_that_loses_every_race_waits_longer_each_time_and_raises_contended(
    hooked: Hooked, clock: ManualClock
) -> None:
    """Here another writer changes the terms before every attempt."""
    asked: list[int] = []

    def jitter(below: int) -> int:
        asked.append(below)
        return 0

    limiter = Limiter(hooked, clock=clock, limits=[DAILY], jitter=jitter)
    lease = await limiter.acquire("e", "r", {"n": 10})
    attempts = 0

    async def change_terms(name: str) -> None:
        nonlocal attempts
        attempts += name == "update"
        terms = Set("lm.n", f"{100 + attempts}/100/86400000")
        await hooked._store.update(Update(RATE_BUCKETS, Key("e", "r"), (terms,)))

    hooked.before = change_terms
    with pytest.raises(ContendedError):
        await lease.adjust({"n": 1})

    assert attempts == ATTEMPTS_MAX
    assert asked == [3, 5, 9, 17, 33] + [65] * (ATTEMPTS_MAX - 3 - 5)


async def test_a_lease_that_was_not_named_has_a_name_of_its_own(daily: Limiter) -> None:
    one, other = [await daily.acquire("e", "r", {"n": 1}) for _ in range(2)]

    assert str(uuid.UUID(one.id)) == one.id
    assert one.id != other.id
