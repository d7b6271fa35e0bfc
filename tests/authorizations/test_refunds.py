"""Tokens that a call did not use go back to its buckets, once, whatever becomes of a reply."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from authorizations.conftest import Instance, a_budget
from faulty_store import Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.conftest import PREMIUM, a_policy
from pricekeeper.authorizations import Authorized
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.storage import Item, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import RateLimit
from selection.conftest import NOON_MS, SettableClock

HELD_TOKENS, USED_TOKENS = 2_000, 1_500


class LosingStore(FaultyStore):
    """A store that loses one request, or one reply, when it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.lose: str = ""
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """Awaited before the next transaction is applied."""
        self.transactions = 0
        self.updates = 0

    async def transact(self, operations: Sequence[Write]) -> None:
        self.transactions += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
            await super().transact(operations)
            return
        lose, self.lose = self.lose, ""
        if lose != "request":
            await super().transact(operations)
        if lose:
            raise OutcomeUnknownError(f"the {lose} was lost")

    async def update(self, operation: Update) -> Item:
        self.updates += 1
        return await super().update(operation)


@pytest.mark.parametrize("lost", ["", "request", "reply"])
async def test_what_a_capture_gives_back_is_given_back_once(lost: str) -> None:
    """With the transaction that takes for the next call, also if its reply or itself is lost."""
    clock = SettableClock(NOON_MS)
    store = LosingStore(MemoryStore(clock))
    instance = Instance(store, clock, seed=1)
    limits = {"*": {"tpm": RateLimit(10_000, 10, 86_400_000)}}
    policy = a_policy(budgets=(a_budget(),), rate_limits=limits, org_rate_limits=limits)
    first = await instance.authorize(policy)
    before = store.updates
    store.lose = lost
    await asyncio.gather(
        instance.capture(policy, first.authorization.id), instance.authorize(policy)
    )
    await instance.close()
    for entity in (policy.bucket_entity, policy.org_bucket_entity):
        bucket = bucket_of(await store.get(RATE_BUCKETS, bucket_key(entity, PREMIUM)))
        assert bucket is not None
        assert bucket.holdings["tpm"].consumed == HELD_TOKENS + USED_TOKENS
    assert store.updates == before  # no write of its own


async def test_what_may_have_been_given_back_is_not_given_back_again() -> None:
    """The next transaction takes it along, is applied, and its reply is lost."""
    clock = SettableClock(NOON_MS)
    store = LosingStore(MemoryStore(clock))
    instance = Instance(store, clock, seed=1)
    policy = a_policy(rate_limits={"*": {"tpm": RateLimit(10_000, 10, 86_400_000)}})
    first = await instance.authorize(policy)
    others: list[asyncio.Task[Authorized]] = []

    async def ask_for_more() -> None:
        others.append(asyncio.create_task(instance.authorize(policy)))
        for _ in range(20):  # until it waits
            await asyncio.sleep(0)
        store.lose = "reply"

    store.meanwhile = ask_for_more
    sent = store.transactions
    await instance.capture(policy, first.authorization.id)
    await asyncio.gather(*others)
    await instance.close()
    bucket = bucket_of(await store.get(RATE_BUCKETS, bucket_key(policy.bucket_entity, PREMIUM)))
    assert bucket is not None
    assert bucket.holdings["tpm"].consumed == HELD_TOKENS + USED_TOKENS
    assert store.transactions == sent + 2
    assert instance.authorizations.meter.refunds_lost == 1  # nobody knows; in truth it was not


async def test_what_nobody_takes_along_is_written_by_itself() -> None:
    clock = SettableClock(NOON_MS)
    store = LosingStore(MemoryStore(clock))
    instance = Instance(store, clock, seed=1)
    limits = {"*": {"tpm": RateLimit(10_000, 10, 86_400_000)}}
    policy = a_policy(rate_limits=limits)
    first = await instance.authorize(policy)
    await instance.capture(policy, first.authorization.id)
    await instance.close()
    bucket = bucket_of(await store.get(RATE_BUCKETS, bucket_key(policy.bucket_entity, PREMIUM)))
    assert bucket is not None
    assert bucket.holdings["tpm"].consumed == USED_TOKENS


async def test_tokens_go_back_before_others_are_left_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause after a transaction is no reason to keep them, if nobody takes them along."""
    clock = SettableClock(NOON_MS)
    store = LosingStore(MemoryStore(clock))
    instance = Instance(store, clock, seed=1)
    policy = a_policy(rate_limits={"*": {"tpm": RateLimit(10_000, 10, 86_400_000)}})
    consumed: list[int] = []

    async def take_10_ms() -> None:
        clock.advance_ms(10)

    async def note_pause(_: int) -> None:
        bucket = bucket_of(await store.get(RATE_BUCKETS, bucket_key(policy.bucket_entity, PREMIUM)))
        assert bucket is not None
        consumed.append(bucket.holdings["tpm"].consumed)

    monkeypatch.setattr(clock, "sleep_ms", note_pause)
    store.meanwhile = take_10_ms
    first = await instance.authorize(policy)
    await instance.authorizations.close()
    store.meanwhile = take_10_ms
    await instance.void(policy, first.authorization.id)
    await instance.close()
    assert consumed == [HELD_TOKENS, 0]


async def test_a_full_bucket_takes_no_more_back_than_it_has_room_for() -> None:
    """Then a call that is larger than the bucket is denied, whatever is given back with it."""
    clock = SettableClock(NOON_MS)
    store = LosingStore(MemoryStore(clock))
    instance = Instance(store, clock, seed=1)
    policy = a_policy(rate_limits={"*": {"tpm": RateLimit(2_000, 2_000, 1_000)}})
    first = await instance.authorize(policy)
    clock.advance_ms(60_000)
    _, larger = await asyncio.gather(
        instance.capture(policy, first.authorization.id),
        instance.authorize(policy, max_output_tokens=1_400),
        return_exceptions=True,
    )
    assert isinstance(larger, Exception)
    await instance.close()
