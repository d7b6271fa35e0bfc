"""Tokens are taken from every bucket or from none, and what a call did not use goes back, once."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from authorizations.conftest import Instance, a_budget
from faulty_store import Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.conftest import PREMIUM, a_policy
from pricekeeper.errors import (
    AuthorizationDeniedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.ledger.log import OrgLog
from pricekeeper.limiter.bucket import Bucket
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.taker import BLOCK_TIMES, HOLD_MS
from pricekeeper.storage import Item, Key, Put, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import RateLimit
from selection.conftest import NOON_MS, SettableClock

HELD_TOKENS, USED_TOKENS = 2_000, 1_500
SLOW = {"*": {"tpm": RateLimit(100_000, 100, 86_400_000)}}
"""It refills so slowly that nothing is full again by itself."""


class LosingStore(FaultyStore):
    """A store that loses a request for a bucket, or its reply, on request."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.lose: str = ""
        self.unavailable = ""
        """Part of the key of buckets that can't be written."""
        self.writes: Counter[str] = Counter()
        """How often each bucket was written."""

    async def put(self, operation: Put) -> None:
        self._check(operation)
        await super().put(operation)

    async def update(self, operation: Update) -> Item:
        self._check(operation)
        lose = ""
        if operation.table is RATE_BUCKETS:
            lose, self.lose = self.lose, ""
        if lose == "request":
            raise OutcomeUnknownError("the request was lost")
        item = await super().update(operation)
        if lose:
            raise OutcomeUnknownError("the reply was lost")
        return item

    def _check(self, operation: Write) -> None:
        if operation.table is RATE_BUCKETS:
            self.writes[operation.key.pk] += 1
            if self.unavailable and self.unavailable in operation.key.pk:
                raise StoreUnavailableError("not this one")


class World:
    """An instance, its store, and an app with limits of its own and of its organisation."""

    def __init__(self, limits: Any = SLOW) -> None:
        self.clock = SettableClock(NOON_MS)
        self.store = LosingStore(MemoryStore(self.clock))
        self.instance = Instance(self.store, self.clock, seed=1)
        self.policy = a_policy(budgets=(a_budget(),), rate_limits=limits, org_rate_limits=limits)

    @property
    def entities(self) -> Sequence[str]:
        return (self.policy.bucket_entity, self.policy.org_bucket_entity)

    async def consumed(self) -> list[int]:
        """What is taken and not given back, from the app's bucket and the organisation's."""
        return [(await self.bucket(one)).holdings["tpm"].consumed for one in self.entities]

    async def bucket(self, entity: str) -> Bucket:
        bucket = bucket_of(await self.store.get(RATE_BUCKETS, Key(entity, PREMIUM)))
        assert bucket is not None
        return bucket


@pytest.fixture
def world() -> World:
    return World()


async def test_what_a_capture_gives_back_goes_along_with_what_is_taken_next(world: World) -> None:
    """It has no write of its own if another call comes soon."""
    first = await world.instance.authorize(world.policy)
    before = Counter(world.store.writes)
    await world.instance.capture(world.policy, first.authorization.id)
    await world.instance.authorize(world.policy)
    await world.instance.close()
    assert await world.consumed() == [HELD_TOKENS + USED_TOKENS] * 2
    assert set((world.store.writes - before).values()) == {1}


async def test_what_nobody_takes_along_is_written_by_itself(world: World) -> None:
    first = await world.instance.authorize(world.policy)
    await world.instance.capture(world.policy, first.authorization.id)
    await world.instance.close()
    assert await world.consumed() == [USED_TOKENS] * 2


async def test_a_void_gives_all_of_it_back(world: World) -> None:
    first = await world.instance.authorize(world.policy)
    await world.instance.void(world.policy, first.authorization.id)
    await world.instance.close()
    assert await world.consumed() == [0, 0]


async def test_what_is_used_beyond_is_taken_without_asking(world: World) -> None:
    first = await world.instance.authorize(world.policy)
    await world.instance.capture(world.policy, first.authorization.id, output_tokens=5_000)
    await world.instance.close()
    assert await world.consumed() == [6_000] * 2


@pytest.mark.parametrize(("lost", "too_many"), [("request", 0), ("reply", HELD_TOKENS)])
async def test_a_debit_whose_reply_was_lost_is_taken_again(
    world: World, lost: str, too_many: int
) -> None:
    """So no call goes without its tokens; those that were taken twice refill."""
    await world.instance.authorize(world.policy)
    world.store.lose = lost
    await world.instance.authorize(world.policy)
    await world.instance.close()
    assert sorted(await world.consumed()) == [2 * HELD_TOKENS, 2 * HELD_TOKENS + too_many]
    assert world.instance.limiter.meter.debits_lost == 1


async def test_what_may_have_been_given_back_is_not_given_back_again(world: World) -> None:
    """The write that takes it along is applied, and its reply is lost."""
    first = await world.instance.authorize(world.policy)
    await world.instance.capture(world.policy, first.authorization.id)
    world.store.lose = "reply"
    await world.instance.authorize(world.policy)
    await world.instance.close()
    right = HELD_TOKENS + USED_TOKENS
    assert sorted(await world.consumed()) == [right, right + HELD_TOKENS]


async def test_what_the_store_refused_to_take_back_is_still_owed(world: World) -> None:
    """By itself, and along with what is taken next; a store that throttles writes nothing."""
    first = await world.instance.authorize(world.policy)
    second = await world.instance.authorize(world.policy)
    await world.instance.capture(world.policy, first.authorization.id)
    world.store.unavailable = world.policy.org_id
    await world.instance.close()
    with pytest.raises(StoreUnavailableError):
        await world.instance.authorize(world.policy)
    with pytest.raises(StoreUnavailableError):  # with the refunds, in vain
        await world.instance.authorize(world.policy)
    assert await world.consumed() == [2 * HELD_TOKENS] * 2
    world.store.unavailable = ""
    await world.instance.void(world.policy, second.authorization.id)
    await world.instance.close()
    assert await world.consumed() == [USED_TOKENS] * 2
    assert world.instance.limiter.meter.refunds_lost == 0


@pytest.mark.parametrize("meanwhile", ["it is returned", "more is given back"])
async def test_what_is_given_back_while_a_write_begins_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """What is on its way goes by no other write, and nothing is forgotten with it."""
    taker = world.instance.limiter.taker
    first = await world.instance.authorize(world.policy)
    second = await world.instance.authorize(world.policy)
    await world.instance.capture(world.policy, first.authorization.id)
    keys, write = list(taker.returns.owed), taker._write

    async def write_later(*args: Any) -> Any:
        if meanwhile == "it is returned":
            await taker.returns.flush(keys)
        else:
            await world.instance.capture(world.policy, second.authorization.id)
        return await write(*args)

    monkeypatch.setattr(taker, "_write", write_later)
    await world.instance.authorize(world.policy)
    monkeypatch.undo()
    await world.instance.capture(world.policy, second.authorization.id)
    await world.instance.close()
    assert await world.consumed() == [HELD_TOKENS + 2 * USED_TOKENS] * 2


async def test_nothing_is_taken_if_one_bucket_has_too_little(world: World) -> None:
    """Also if it can't be written: what the other has given goes back."""
    narrow = {"*": {"tpm": RateLimit(HELD_TOKENS, 10, 86_400_000)}}
    world.policy = a_policy(rate_limits=SLOW, org_rate_limits=narrow)
    await world.instance.authorize(world.policy)
    with pytest.raises(AuthorizationDeniedError):
        await world.instance.authorize(world.policy)
    await world.instance.close()
    assert await world.consumed() == [HELD_TOKENS] * 2
    world.policy = a_policy(rate_limits=SLOW, org_rate_limits=SLOW)
    await world.instance.authorize(world.policy)
    for entity in world.entities:
        world.store.unavailable = entity
        with pytest.raises(StoreUnavailableError):
            await world.instance.authorize(world.policy)
        world.store.unavailable = ""
        await world.instance.close()
        assert await world.consumed() == [HELD_TOKENS] * 2, entity


async def test_tokens_go_back_if_there_is_no_money(world: World) -> None:
    """Tokens are taken first, and then the budget is found spent."""
    policy = a_policy(budgets=(a_budget(18_000),), rate_limits=SLOW, org_rate_limits=SLOW)
    world.policy = policy
    asked = [world.instance.authorize(policy) for _ in range(5)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, AuthorizationDeniedError) for one in outcomes) == 4
    await world.instance.close()
    assert await world.consumed() == [HELD_TOKENS] * 2


async def test_tokens_of_a_shorter_answer_are_enough(world: World) -> None:
    """The budget allows a shorter answer than the tokens taken for it."""
    world.policy = a_policy(budgets=(a_budget(10_500),), rate_limits=SLOW, org_rate_limits=SLOW)
    made = await world.instance.authorize(world.policy, allow_lower_max_output=True)
    assert made.authorization.grant.max_output_tokens == 500
    await world.instance.close()
    assert await world.consumed() == [1_500] * 2


async def test_an_answer_is_fitted_into_the_tokens_that_are_left(world: World) -> None:
    narrow = {"*": {"tpm": RateLimit(1_700, 10, 86_400_000)}}
    world.policy = a_policy(rate_limits=SLOW, org_rate_limits=narrow)
    made = await world.instance.authorize(world.policy, allow_lower_max_output=True)
    assert made.authorization.grant.max_output_tokens == 700
    with pytest.raises(AuthorizationDeniedError) as denied:
        await world.instance.authorize(
            world.policy, allow_lower_max_output=True, min_output_tokens=10
        )
    (one,) = denied.value.denied_by
    assert (one.name, one.scope, one.needed, one.remaining) == ("tpm", "ORG", 1_010, 0)
    await world.instance.close()


async def test_whoever_meets_others_at_a_bucket_serves_the_next_calls_from_a_block() -> None:
    """One write for several calls; what is left after a moment goes back."""
    world = World({"*": {"tpm": RateLimit(100_000, 100_000, 1_000)}})
    first, other = world.instance, Instance(world.store, world.clock, seed=2)
    for instance in (first, other):
        await instance.authorize(world.policy)
        world.clock.advance_ms(1_000)  # the buckets are full, and every refill is settled
    await first.authorize(world.policy)  # it is refused once, by what the other has written
    before = Counter(world.store.writes)
    for _ in range(BLOCK_TIMES):
        await first.authorize(world.policy)
    assert not world.store.writes - before
    assert await world.consumed() == [(3 + BLOCK_TIMES) * HELD_TOKENS] * 2
    await first.authorize(world.policy)
    assert (await world.consumed())[0] > (4 + BLOCK_TIMES) * HELD_TOKENS
    world.clock.advance_ms(HOLD_MS)
    await other.close()
    await first.close()
    assert await world.consumed() == [(4 + BLOCK_TIMES) * HELD_TOKENS] * 2


async def test_a_caller_that_leaves_leaves_no_tokens_taken(world: World) -> None:
    await world.instance.authorize(world.policy)
    for turns in range(30):
        task = asyncio.create_task(world.instance.authorize(world.policy))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await world.instance.void(world.policy, outcome.authorization.id)
        await world.instance.authorizations.close()
        assert await world.consumed() == [HELD_TOKENS] * 2


@pytest.mark.parametrize("asked_as", [None, str(uuid.UUID(int=7, version=4))])
async def test_a_caller_that_leaves_while_its_call_is_granted_gets_its_tokens_back_once(
    world: World, monkeypatch: pytest.MonkeyPatch, asked_as: str | None
) -> None:
    """When it is voided, by us or by a caller with its id."""
    await world.instance.authorize(world.policy)
    task = asyncio.create_task(world.instance.authorize(world.policy, authorization_id=asked_as))
    append = OrgLog.append

    async def leave_and_append(*args: Any) -> None:
        task.cancel()
        await asyncio.sleep(0)
        await append(*args)

    monkeypatch.setattr(OrgLog, "append", leave_and_append)
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    await world.instance.authorizations.close()
    if asked_as is not None:
        assert await world.consumed() == [2 * HELD_TOKENS] * 2
        await world.instance.void(world.policy, asked_as)
        await world.instance.authorizations.close()
    assert await world.consumed() == [HELD_TOKENS] * 2


async def test_a_full_bucket_takes_no_more_back_than_it_has_room_for() -> None:
    """Then a call that is larger than the bucket is denied."""
    world = World({"*": {"tpm": RateLimit(2_000, 2_000, 1_000)}})
    first = await world.instance.authorize(world.policy)
    world.clock.advance_ms(60_000)
    _, larger = await asyncio.gather(
        world.instance.capture(world.policy, first.authorization.id),
        world.instance.authorize(world.policy, max_output_tokens=1_400),
        return_exceptions=True,
    )
    assert isinstance(larger, AuthorizationDeniedError)
    await world.instance.close()
