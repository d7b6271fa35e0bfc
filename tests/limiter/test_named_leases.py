"""Named leases: every step happens exactly once, on any instance."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable

import pytest

from limiter.balances import left
from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConflictError,
    InvalidValueError,
    NotFoundError,
    OutcomeUnknownError,
    RateLimitExceededError,
)
from pricekeeper.limiter import Denial, Lease, Limit, Limiter, records
from pricekeeper.limiter.records import ADJUSTMENTS_MAX, LEASE_TTL_SECS
from pricekeeper.storage import Store

DAILY = Limit.per_day("n", 100)


@pytest.fixture
def limiter(make: Callable[..., Limiter]) -> Limiter:
    return make([DAILY])


@pytest.fixture
def other(make: Callable[..., Limiter]) -> Limiter:
    """Another instance; it shares only the store with the first."""
    return make([DAILY])


async def test_the_same_name_again_is_the_same_grant(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """On any instance, with one debit."""
    name = uuid.uuid4()
    for instance in (limiter, other, limiter):
        lease = await instance.acquire(entity, "r", {"n": 10}, lease_id=name)
        assert (lease.id, lease.held) == (str(name), {"n": 10})
        assert lease.limits["n"].remaining == 90

    assert await left(limiter, entity) == 90


async def test_the_same_name_is_the_same_grant_even_if_there_is_nothing_left(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 60}, lease_id=name)
    await limiter.acquire(entity, "r", {"n": 40})

    for instance in (limiter, other):
        assert (await instance.try_acquire(entity, "r", {"n": 60}, lease_id=name)).granted
        assert not (await instance.try_acquire(entity, "r", {"n": 1})).granted


async def test_the_same_name_is_the_same_grant_beside_a_denied_request(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """A refused write shows the bucket and not the lease, so the limiter reads the lease."""
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 60}, lease_id=name)
    await other.acquire(entity, "r", {"n": 0})
    await limiter.acquire(entity, "r", {"n": 40})
    denied, again = await asyncio.gather(
        *(
            other.try_acquire(entity, "r", {"n": tokens}, lease_id=one)
            for tokens, one in ((10, uuid.uuid4()), (60, name))
        )
    )

    assert not denied.granted
    assert again.granted
    assert await left(limiter, entity) == 0


async def test_a_denied_name_is_free(limiter: Limiter, clock: ManualClock, entity: str) -> None:
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 100})
    with pytest.raises(RateLimitExceededError):
        await limiter.acquire(entity, "r", {"n": 50}, lease_id=name)
    clock.advance_ms(86_400_000 // 2)

    assert (await limiter.try_acquire(entity, "r", {"n": 50}, lease_id=name)).granted


async def test_a_name_is_not_taken_for_another_request(limiter: Limiter, entity: str) -> None:
    """Another amount, resource or parent under the same name raises an error."""
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)

    for resource, tokens, parents in (("r", 11, ()), ("other", 10, ()), ("r", 10, ("org",))):
        with pytest.raises(ConflictError, match="another request"):
            await limiter.acquire(entity, resource, {"n": tokens}, parents=parents, lease_id=name)
    assert await left(limiter, entity) == 90


async def test_a_name_means_something_within_its_entity_only(limiter: Limiter, entity: str) -> None:
    """Another tenant's lease is not found, and its name is not taken."""
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    with pytest.raises(NotFoundError):
        await limiter.release(f"{entity}-other", name)

    lease = await limiter.acquire(f"{entity}-other", "r", {"n": 20}, lease_id=name)
    assert lease.held == {"n": 20}
    assert await left(limiter, entity) == 90


async def test_adjusting_and_releasing_from_another_instance(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """Each adjustment applies once; the release gives back the held tokens once."""
    name, same = uuid.uuid4(), uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    for instance in (other, limiter):
        await instance.adjust(entity, name, {"n": 30}, adjustment_id=same)
        assert await left(limiter, entity) == 60
    await lease.adjust({"n": -5}, adjustment_id=uuid.uuid4())
    await lease.adjust({"n": 30}, adjustment_id=same)
    assert await left(limiter, entity) == 65
    for _ in range(2):
        await other.release(entity, name)
        await lease.release()

    assert await left(limiter, entity) == 100
    assert lease.held == {}


async def test_an_adjustment_under_a_known_id_by_another_amount_is_refused(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """It changes nothing, before and after the release, on any instance."""
    name, same = uuid.uuid4(), uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    await lease.adjust({"n": 5}, adjustment_id=same)
    for delta in ({"n": 6}, {"n": -5}, {"n": 0}):
        with pytest.raises(ConflictError, match="another delta") as refused:
            await other.adjust(entity, name, delta, adjustment_id=same)
        assert refused.value.field == "adjustment_id"
        with pytest.raises(ConflictError, match="another delta"):
            await lease.adjust(delta, adjustment_id=same)
    assert (lease.held, await left(limiter, entity)) == ({"n": 15}, 85)
    await lease.release()
    with pytest.raises(ConflictError, match="another delta"):
        await other.adjust(entity, name, {"n": 6}, adjustment_id=same)


async def test_a_released_lease_is_over(limiter: Limiter, other: Limiter, entity: str) -> None:
    """It can't be adjusted, and its name can't be acquired again."""
    name, known = uuid.uuid4(), uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    await limiter.adjust(entity, name, {"n": 1}, adjustment_id=known)
    await limiter.release(entity, name)

    await other.adjust(entity, name, {"n": 1}, adjustment_id=known)
    with pytest.raises(ConflictError, match="released"):
        await other.adjust(entity, name, {"n": 1}, adjustment_id=uuid.uuid4())
    with pytest.raises(ConflictError, match="released"):
        await other.acquire(entity, "r", {"n": 10}, lease_id=name)
    assert await left(limiter, entity) == 100


async def test_a_lease_gives_back_no_more_than_it_holds(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """Although two instances remember that it holds more."""
    name = uuid.uuid4()
    mine = await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    theirs = await other.acquire(entity, "r", {"n": 10}, lease_id=name)
    await mine.adjust({"n": -8}, adjustment_id=uuid.uuid4())
    with pytest.raises(InvalidValueError, match="more than the lease holds"):
        await theirs.adjust({"n": -8}, adjustment_id=uuid.uuid4())
    await theirs.adjust({"n": -2}, adjustment_id=uuid.uuid4())

    assert await left(limiter, entity) == 100


async def test_an_unknown_lease_is_not_found(limiter: Limiter, entity: str) -> None:
    with pytest.raises(NotFoundError):
        await limiter.release(entity, uuid.uuid4())
    with pytest.raises(NotFoundError):
        await limiter.adjust(entity, uuid.uuid4(), {"n": 1}, adjustment_id=uuid.uuid4())


async def test_an_abandoned_lease_expires_and_keeps_what_it_holds(
    limiter: Limiter, clock: ManualClock, entity: str
) -> None:
    """Its tokens are not given back: a crashed caller may have used them."""
    name = uuid.uuid4()
    await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    clock.advance_ms(LEASE_TTL_SECS * 1_000 + 1_000)

    with pytest.raises(NotFoundError):
        await limiter.release(entity, name)
    assert (await limiter.peek(entity, "r"))["n"].consumed == 10


async def test_the_adjustments_of_a_lease_are_bounded(limiter: Limiter, entity: str) -> None:
    """One item stores them all."""
    lease = await limiter.acquire(entity, "r", {"n": 1})
    for _ in range(ADJUSTMENTS_MAX):
        await lease.adjust({"n": 0})
    with pytest.raises(ConflictError, match="adjustments"):
        await lease.adjust({"n": 0})


async def test_the_same_step_on_many_instances_applies_once(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Ten instances at once: one debit, one adjustment, one refund."""
    instances = [make([DAILY]) for _ in range(10)]
    name, same = uuid.uuid4(), uuid.uuid4()
    leases = await asyncio.gather(
        *(one.try_acquire(entity, "r", {"n": 10}, lease_id=name) for one in instances)
    )
    assert all(lease.granted for lease in leases)
    await asyncio.gather(*(one.close() for one in instances))
    assert await left(instances[0], entity) == 90
    await asyncio.gather(
        *(one.adjust(entity, name, {"n": 7}, adjustment_id=same) for one in instances)
    )
    await asyncio.gather(*(one.close() for one in instances))
    assert await left(instances[0], entity) == 83
    await asyncio.gather(*(one.release(entity, name) for one in instances))
    assert (await instances[0].peek(entity, "r"))["n"].consumed == 0


@pytest.mark.parametrize("step", ["acquire", "adjust", "release"])
async def test_a_step_whose_reply_is_lost_can_be_repeated(
    store: Store, clock: ManualClock, entity: str, step: str
) -> None:
    """The record shows whether it was applied; a debit may be taken twice, and refills."""
    lost = {"acquire": (10, 10), "adjust": (0, 5), "release": (0, 0)}[step]
    hooked = Hooked(store)
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    name, same = uuid.uuid4(), uuid.uuid4()

    async def persistently(which: str, act: Callable[[], object]) -> None:
        hooked.replies_to_lose = int(which == step)
        for _ in range(2):
            with contextlib.suppress(OutcomeUnknownError):
                await act()  # type: ignore[misc]

    await persistently(
        "acquire", lambda: limiter.try_acquire(entity, "r", {"n": 10}, lease_id=name)
    )
    assert await left(limiter, entity) == 90 - lost[0]
    await persistently("adjust", lambda: limiter.adjust(entity, name, {"n": 5}, adjustment_id=same))
    assert await left(limiter, entity) == 85 - lost[1]
    await persistently("release", lambda: limiter.release(entity, name))
    assert await left(limiter, entity) == 100 - lost[1]


async def test_cancelling_an_acquire_with_a_name_keeps_the_grant(
    store: Store, clock: ManualClock, entity: str
) -> None:
    """The caller can ask for it again by its name."""
    hooked = Hooked(store)
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold_up(name: str) -> None:
        if name == "put":
            arrived.set()
            await go_on.wait()

    async def ask(name: uuid.UUID) -> Lease | Denial:
        return await limiter.try_acquire(entity, "r", {"n": 10}, lease_id=name)

    hooked.before, name = hold_up, uuid.uuid4()
    task = asyncio.create_task(ask(name))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await limiter.close()
    assert (await ask(name)).granted
    assert await left(limiter, entity) == 90


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_a_name_is_a_uuid(limiter: Limiter, entity: str) -> None:
    """Any other value is refused before the call to the store."""
    with pytest.raises(InvalidValueError, match="lease_id: must be a UUID"):
        await limiter.acquire(entity, "r", {"n": 1}, lease_id="seven")


async def test_steps_of_one_lease_at_the_same_moment_are_all_counted(
    limiter: Limiter, entity: str
) -> None:
    """Afterwards the lease holds the same as the store says."""
    lease = await limiter.acquire(entity, "r", {"n": 10}, lease_id=uuid.uuid4())
    await asyncio.gather(*(lease.adjust({"n": tokens}) for tokens in (5, 7, -2)))

    assert lease.held == {"n": 20}
    assert await left(limiter, entity) == 80
    await asyncio.gather(lease.release(), lease.release())
    assert await left(limiter, entity) == 100


async def test_what_others_added_to_a_lease_can_be_given_back(
    limiter: Limiter, other: Limiter, entity: str
) -> None:
    """The stored lease counts, not an instance's last view of it."""
    name = uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 10}, lease_id=name)
    await other.adjust(entity, name, {"n": 30}, adjustment_id=uuid.uuid4())
    await lease.adjust({"n": -25}, adjustment_id=uuid.uuid4())
    assert (lease.held, await left(limiter, entity)) == ({"n": 15}, 85)
    with pytest.raises(InvalidValueError, match="more than the lease holds"):
        await lease.adjust({"n": -16}, adjustment_id=uuid.uuid4())

    assert await left(limiter, entity) == 85


@pytest.mark.parametrize("location", ["sqlite-memory"], indirect=True)
async def test_the_adjustments_of_a_lease_are_bounded_across_instances(
    limiter: Limiter, other: Limiter, entity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store counts them, although an instance knows of fewer."""
    monkeypatch.setattr(records, "ADJUSTMENTS_MAX", 3)
    name = uuid.uuid4()
    lease = await limiter.acquire(entity, "r", {"n": 1}, lease_id=name)
    for _ in range(3):
        await other.adjust(entity, name, {"n": 1}, adjustment_id=uuid.uuid4())
    with pytest.raises(ConflictError, match="adjustments"):
        await lease.adjust({"n": 1})

    assert await left(limiter, entity) == 96
