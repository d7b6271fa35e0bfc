"""Parents: an app and its organisation are debited together, all or nothing, on every store."""

from collections.abc import Callable

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter import Denial, Limit, Limiter
from pricekeeper.limiter.requests import PARENTS_MAX
from pricekeeper.storage import Store


@pytest.fixture
def limiter(store: Store, clock: ManualClock) -> Limiter:
    """Apps get 10 a day, organisations 25, and all together 40."""

    def limits(entity: str, _: str) -> list[Limit]:
        level = entity.rpartition("/")[2].partition("-")[0]
        return [Limit.per_day("n", {"app": 10, "org": 25, "all": 40}[level])]

    return Limiter(store, clock=clock, limits=limits)


async def left(limiter: Limiter, *entities: str) -> list[int]:
    buckets = await limiter.peek_many([(entity, "r") for entity in entities])
    return [one["n"].remaining for one in buckets]


async def test_all_levels_are_debited(limiter: Limiter, entity: str) -> None:
    """Adjustments and releases reach all levels, too."""
    chain = [f"{entity}/app-1", f"{entity}/org-1", f"{entity}/all"]
    lease = await limiter.acquire(chain[0], "r", {"n": 4}, parents=chain[1:])
    assert await left(limiter, *chain) == [6, 21, 36]
    assert lease.limits["n"].remaining == 6
    await lease.adjust({"n": 3})
    assert await left(limiter, *chain) == [3, 18, 33]
    await lease.release()
    assert await left(limiter, *chain) == [10, 25, 40]


async def test_a_parent_that_has_too_little_denies_and_nothing_is_taken(
    limiter: Limiter, entity: str
) -> None:
    """The denial names the blocking bucket."""
    org, everybody = f"{entity}/org-1", f"{entity}/all"
    for place in (1, 2):
        await limiter.acquire(f"{entity}/app-{place}", "r", {"n": 10}, parents=[org, everybody])

    denial = await limiter.try_acquire(f"{entity}/app-3", "r", {"n": 6}, parents=[org, everybody])

    assert isinstance(denial, Denial)
    [violation] = denial.violations
    assert (violation.entity, violation.available, violation.never) == (org, 5, False)
    assert await left(limiter, f"{entity}/app-3", org, everybody) == [10, 5, 20]


async def test_a_denial_is_never_based_on_cached_buckets(
    make: Callable[..., Limiter], entity: str
) -> None:
    """Before a denial the limiter reads the buckets: others may have given back."""
    one, other = (make([Limit.per_day("n", 10)]) for _ in range(2))
    lease = await one.acquire(entity, "r", {"n": 10}, parents=[f"{entity}-org"])
    assert not (await other.try_acquire(entity, "r", {"n": 1}, parents=[f"{entity}-org"])).granted
    await lease.release()

    assert (await other.try_acquire(entity, "r", {"n": 1}, parents=[f"{entity}-org"])).granted


async def test_a_denial_names_every_blocking_level(limiter: Limiter, entity: str) -> None:
    """The longest wait counts, or never."""
    app, org = f"{entity}/app-1", f"{entity}/org-1"
    await limiter.acquire(org, "r", {"n": 25})

    denial = await limiter.try_acquire(app, "r", {"n": 11}, parents=[org])

    assert isinstance(denial, Denial)
    assert [(one.entity, one.never) for one in denial.violations] == [(app, True), (org, False)]
    assert denial.retry_after_ms is None


async def test_each_level_is_debited_for_the_limits_that_it_has(
    store: Store, clock: ManualClock, entity: str
) -> None:
    """A limit that no level has is refused; so is a chain with a repetition."""
    limits = {
        f"{entity}": [Limit.per_day("requests", 10)],
        f"{entity}-org": [Limit.per_day("tokens", 1_000), Limit.per_day("requests", 50)],
        f"{entity}-all": [],
    }
    limiter = Limiter(store, clock=clock, limits=lambda one, _: limits[one])
    parents = [f"{entity}-org", f"{entity}-all"]
    lease = await limiter.acquire(entity, "r", {"requests": 1}, parents=parents)
    await lease.adjust({"tokens": 700})
    await limiter.acquire(entity, "r", {"tokens": 100}, parents=parents)

    own, orgs, unlimited = await limiter.peek_many(
        [(entity, "r"), *((one, "r") for one in parents)]
    )
    assert own["requests"].remaining == 9
    assert (orgs["requests"].remaining, orgs["tokens"].remaining) == (49, 200)
    assert unlimited == {}
    with pytest.raises(InvalidValueError, match=r"consume\.money"):
        await limiter.acquire(entity, "r", {"money": 1}, parents=parents)
    for wrong in ([entity], ["a", "a"], [f"p{place}" for place in range(PARENTS_MAX + 1)]):
        with pytest.raises(InvalidValueError, match="parents"):
            await limiter.acquire(entity, "r", {"requests": 1}, parents=wrong)


async def test_changed_limits_reach_every_level(
    make: Callable[..., Limiter], clock: ManualClock, entity: str
) -> None:
    """A denial writes them, too, so that its wait is right."""
    org = f"{entity}-org"
    await make([Limit.per_hour("n", 10)]).acquire(entity, "r", {"n": 10}, parents=[org])
    faster = make([Limit.per_second("n", 10)])

    denial = await faster.try_acquire(entity, "r", {"n": 5}, parents=[org])
    assert isinstance(denial, Denial)
    assert denial.retry_after_ms == 500
    clock.advance_ms(499)
    assert not (await faster.try_acquire(entity, "r", {"n": 5}, parents=[org])).granted
    clock.advance_ms(1)
    assert (await faster.try_acquire(entity, "r", {"n": 5}, parents=[org])).granted
