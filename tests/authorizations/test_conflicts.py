"""Instances that conflict at DynamoDB: no caller sees it, and none waits long.

Three instances race for the next sheet of an organisation's log, and take tokens from the same few
buckets. Calls with ids of their own are transactions, and on DynamoDB a write fails while a
transaction on its item is under way. `ConflictingStore` does the same, with our adapter's answer: a
few attempts with jitter, then `ContendedError`. Time is virtual: a write takes 6 ms.
"""

import asyncio
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

from authorizations.books import Auditor
from authorizations.conftest import Instance, a_budget, a_strict_policy
from memory_store import MemoryStore
from metering.conftest import LABELS, PREMIUM
from minting import minted
from pricekeeper.budgets import accounts_of
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import ContendedError, StoreError
from pricekeeper.limiter.items import bucket_of
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update, Write
from pricekeeper.storage.dynamodb.client import Limits
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import Policy, RateLimit, Window
from pricekeeper.values import AppId, OrgId
from selection.conftest import NOON_MS

APPS, INSTANCES = 10, 3
PAIRS_PER_SEC, SECS = 500, 3
WRITE_MS, READ_MS = 6, 3
P99_MS, P99_ALONE_MS = 500, 70
CALL_TOKENS = 1_500
"""What a call uses of the 2,000 that are taken for it."""
CALL_MS = (20, 400)
_T = TypeVar("_T")
ItemKey = tuple[str, Key]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when all tasks wait."""

    def __init__(self) -> None:
        super().__init__(_Skipping(self))
        self.now_secs = 0.0

    def time(self) -> float:
        return self.now_secs


class _Skipping(selectors.DefaultSelector):
    """Skips the time that it would wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for something that never comes"
        self._loop.now_secs += max(0.0, timeout)
        return super().select(0)


class VirtualClock:
    """The time of the loop."""

    def now_ms(self) -> int:
        return NOON_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000 + 0.001)

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class ConflictingStore:
    """A store in memory, with the conflicts of DynamoDB and the patience of our adapter."""

    def __init__(self, store: MemoryStore, random: Random) -> None:
        self._store = store
        self._random = random
        self._in_flight: set[ItemKey] = set()
        """The items of transactions that are under way."""
        self.limits = Limits()
        self.befell: Counter[str] = Counter()

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        await asyncio.sleep(READ_MS / 1000)
        return await self._store.get(table, key, consistent=consistent)

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        await asyncio.sleep(READ_MS / 1000)
        return await self._store.batch_get(keys, consistent=consistent)

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        await asyncio.sleep(READ_MS / 1000)
        return await self._store.query(query, consistent=consistent)

    async def put(self, operation: Put) -> None:
        await self._send([operation], lambda: self._store.put(operation), alone=True)

    async def update(self, operation: Update) -> Item:
        return await self._send([operation], lambda: self._store.update(operation), alone=True)

    async def delete(self, operation: Delete) -> Item | None:
        return await self._send([operation], lambda: self._store.delete(operation), alone=True)

    async def transact(self, operations: Sequence[Write]) -> None:
        self.befell["operations"] += len(operations)
        await self._send(operations, lambda: self._store.transact(operations), alone=False)

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()

    async def _send(
        self, operations: Sequence[Write], send: Callable[[], Awaitable[_T]], *, alone: bool
    ) -> _T:
        """Repeat while another write is under way, as often as the adapter does."""
        items = {(one.table.name, one.key) for one in operations}
        for attempt in range(1, self.limits.attempts_max + 1):
            if self._in_flight.isdisjoint(items):
                self.befell["write" if alone else "transaction"] += 1
                return await self._apply(items, send, alone=alone)
            self.befell["conflict"] += 1
            await asyncio.sleep(WRITE_MS / 1000)
            backoff = Backoff(self.limits.pause_first_ms, self.limits.pause_max_ms)
            pause_ms = backoff.pause_ms(attempt, self._random.randrange)
            if attempt < self.limits.attempts_max:
                await asyncio.sleep(pause_ms / 1000)
        self.befell["contended"] += 1
        raise ContendedError("emulated: TransactionConflict")

    async def _apply(
        self, items: set[ItemKey], send: Callable[[], Awaitable[_T]], *, alone: bool
    ) -> _T:
        if not alone:
            self._in_flight |= items
        try:
            await asyncio.sleep(WRITE_MS / 1000)
            return await send()
        finally:
            if not alone:
                self._in_flight -= items


class World:
    """Instances under a load, and how long they took."""

    def __init__(self, store: Store, seed: int, instances: int, *, named: bool) -> None:
        self.random = Random(seed)
        self.named = named
        """Whether callers give their calls ids of their own."""
        self.clock = VirtualClock()
        self.instances = [Instance(store, self.clock, seed + n) for n in range(instances)]
        self.policies = policies(self.random)
        self.took_ms: dict[str, list[float]] = {"authorize": [], "capture": []}
        self.failed: Counter[str] = Counter()

    async def run(self, pairs_per_sec: int, secs: int) -> None:
        """Calls that come at random, each with an instance of its own choice for either step."""
        calls = []
        for _ in range(pairs_per_sec * secs):
            await asyncio.sleep(self.random.expovariate(pairs_per_sec))
            calls.append(asyncio.create_task(self.call()))
        await asyncio.gather(*calls)
        for instance in self.instances:
            await instance.close()

    async def call(self) -> None:
        policy = self.random.choice(self.policies)
        try:
            asked_as = minted(self.clock.now_ms(), self.random) if self.named else None
            asking = self.any().authorize(policy, authorization_id=asked_as)
            made = await self.timed("authorize", asking)
            await asyncio.sleep(self.random.uniform(*CALL_MS) / 1000)
            await self.timed("capture", self.any().capture(policy, made.authorization.id))
        except StoreError as error:
            self.failed[type(error).__name__] += 1

    async def timed(self, name: str, work: Coroutine[Any, Any, _T]) -> _T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = await work
        self.took_ms[name].append((loop.time() - began) * 1000)
        return done

    def any(self) -> Instance:
        return self.random.choice(self.instances)

    def p99_ms(self, name: str) -> float:
        ordered = sorted(self.took_ms[name])
        return ordered[len(ordered) * 99 // 100]


def policies(random: Random) -> list[Policy]:
    """Ten apps of one organisation, with everything that there can be on both."""
    org_id = OrgId(f"{random.getrandbits(32):08x}-0000-4000-8000-000000000000")
    limits = {
        "*": {
            "rpm": RateLimit(1_000_000, 1_000_000, 60_000),
            "tpm": RateLimit(1_000_000_000, 1_000_000_000, 60_000),
        }
    }
    return [
        a_strict_policy(
            app_id=AppId(f"app-{number}"),
            org_id=org_id,
            quotas=dict.fromkeys(LABELS, 10**9),
            org_budgets=(a_budget(10**9, name="monthly", window=Window.MONTH),),
            rate_limits=limits,
            org_rate_limits=limits,
        )
        for number in range(APPS)
    ]


def run_world(
    seed: int, instances: int = INSTANCES, *, named: bool = False
) -> tuple[World, ConflictingStore]:
    """A few seconds of that load; the items must be exact after it."""

    async def run() -> tuple[World, ConflictingStore]:
        memory = MemoryStore(VirtualClock())
        store = ConflictingStore(memory, Random(seed + 100))
        world = World(store, seed, instances, named=named)
        await world.run(PAIRS_PER_SEC, SECS)
        auditor = Auditor(memory)
        for policy in world.policies:
            auditor.know(accounts_of(policy, world.clock.now_ms()))
        auditor.check()
        await check_buckets(memory, world.policies)
        return world, store

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


async def check_buckets(store: MemoryStore, policies: list[Policy]) -> None:
    """Every token that a call did not use was given back, once."""
    org = policies[0].org_bucket_entity
    used = Counter[str]()
    for entity in (org, *(policy.bucket_entity for policy in policies)):
        bucket = bucket_of(await store.get(RATE_BUCKETS, Key(entity, PREMIUM)))
        assert bucket is not None
        calls = bucket.holdings["rpm"].consumed
        assert bucket.holdings["tpm"].consumed == calls * CALL_TOKENS
        used["org" if entity == org else "apps"] += calls
    assert used["org"] == used["apps"] == PAIRS_PER_SEC * SECS


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("seed", range(1, 3))
def test_three_instances_at_five_hundred_pairs_a_second(seed: int, named: bool) -> None:
    """No call fails, and one in a hundred takes half a second at most, for either step."""
    world, _ = run_world(seed, named=named)
    assert not world.failed
    assert len(world.took_ms["capture"]) == PAIRS_PER_SEC * SECS
    assert sum(one.ledger.meter.lost_races for one in world.instances) > 20
    assert world.p99_ms("authorize") < P99_MS
    assert world.p99_ms("capture") < P99_MS


@pytest.mark.slow
def test_an_instance_alone_does_not_wait_for_others() -> None:
    """A write for its tokens, one for its sheet, and a short pause."""
    world, store = run_world(1, instances=1)
    assert not world.failed
    assert not store.befell["conflict"]
    assert world.p99_ms("authorize") < P99_ALONE_MS
    assert world.p99_ms("capture") < P99_ALONE_MS
