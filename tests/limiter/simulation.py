"""Simulated time, instances with clocks of their own, and a wire that delays, loses and repeats.

Nothing here sleeps: `World.run` runs all tasks until each waits for time, then moves time to the
first wake-up. A seed decides the faults of the wire. The store behind it is a real one.

`Wire` injects only the faults that the storage port allows: see `Weather`.
"""

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from limiter.forwarding_store import ForwardingStore
from pricekeeper.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from pricekeeper.limiter import Limit
from pricekeeper.limiter.items import CONSUMED
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import (
    Add,
    Check,
    Put,
    Store,
    Update,
    Write,
    open_store,
)
from pricekeeper.storage.dynamodb.conditions import guards_itself
from pricekeeper.storage.tables import RATE_BUCKETS

_T = TypeVar("_T")

START_MS = 1_768_000_000_000
QUIET_TURNS = 20
"""After so many turns of the event loop without an event, all tasks wait for time."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A write that the store applied, with its true time."""

    at_ms: int
    operation: Write
    told: bool
    """Whether its sender got the reply."""


class World:
    """True time, the tasks that wait for it, and the applied writes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.applied: list[Applied] = []
        self.events = 0
        self.busy = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        self.events += 1
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wake_ms = self.now_ms + max(0, duration_ms)
        heapq.heappush(self._sleepers, (wake_ms, self.events, woken))
        await woken
        self.events += 1

    async def run(self, *work: Coroutine[Any, Any, object]) -> None:
        """Let time pass until all of the work is done; its first error is raised."""
        tasks = [asyncio.create_task(one) for one in work]
        while not all(task.done() for task in tasks):
            await self._settle()
            if not all(task.done() for task in tasks):
                self._wake_next()
        await asyncio.gather(*tasks)

    async def pass_ms(self, duration_ms: int) -> None:
        await self.run(self.sleep_ms(duration_ms))
        await self._settle()

    async def _settle(self) -> None:
        quiet = 0
        while quiet < QUIET_TURNS:
            before = self.events
            await asyncio.sleep(0)
            quiet = 0 if self.busy or self.events != before else quiet + 1

    def _wake_next(self) -> None:
        assert self._sleepers, "all tasks wait, and none for time: a deadlock"
        wake_ms, _, woken = heapq.heappop(self._sleepers)
        self.now_ms = max(self.now_ms, wake_ms)
        if not woken.done():
            woken.set_result(None)


class InstanceClock:
    """The clock of one instance, wrong by a fixed time."""

    def __init__(self, world: World, wrong_by_ms: int = 0) -> None:
        self.world = world
        self.wrong_by_ms = wrong_by_ms

    def now_ms(self) -> int:
        return self.world.now_ms + self.wrong_by_ms

    def monotonic_ms(self) -> int:
        return self.world.now_ms - START_MS

    async def sleep_ms(self, duration_ms: int) -> None:
        await self.world.sleep_ms(duration_ms)


@dataclass(frozen=True, slots=True)
class Weather:
    """How long a message takes each way, and how often each fault hits a write, in percent."""

    delay_ms_max: int = 0
    refused_pct: int = 0
    """Not applied, and the caller knows."""
    request_lost_pct: int = 0
    """Not applied, but the caller can't know."""
    reply_lost_pct: int = 0
    """Applied, but the caller can't know."""
    late_pct: int = 0
    """Applied only after the caller has given up."""
    resent_pct: int = 0
    """A second copy arrives later, if the store may send the write twice."""


class Wire(ForwardingStore):
    """The network between an instance and the store. ``befell`` counts the faults."""

    def __init__(self, store: Store, world: World, weather: Weather) -> None:
        super().__init__(store)
        self._world = world
        self._weather = weather
        self._late: set[asyncio.Task[None]] = set()
        self.befell: Counter[str] = Counter()

    async def transact(self, operations: Sequence[Write]) -> None:
        """Apply one copy only: an adapter sends all copies with one idempotency token."""
        fixed, is_applied = tuple(operations), False

        async def send() -> None:
            nonlocal is_applied
            if not is_applied:
                await self._store.transact(fixed)
                is_applied = True

        await self._write("transact", fixed, send)

    async def _read(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        del name
        await self._delay()
        if self._dice() < self._weather.refused_pct:
            self.befell["refused"] += 1
            raise StoreUnavailableError("injected")
        reply = await self._alone(send)
        await self._delay()
        return reply

    async def _write(
        self, name: str, operations: Sequence[Write], send: Callable[[], Awaitable[_T]]
    ) -> _T:
        del name
        fault = self._fault()
        self.befell[fault] += 1
        await self._delay()
        if fault == "refused":
            raise StoreUnavailableError("injected: refused")
        if fault in {"request_lost", "late"}:
            if fault == "late":
                self._later(send, operations)
            raise OutcomeUnknownError("injected: no reply")
        if fault == "resent" and _may_be_resent(operations):
            self._later(send, ())
        try:
            result = await self._alone(send)
            self._note(operations, told=fault != "reply_lost")
        finally:
            await self._delay()
            if fault == "reply_lost":
                raise OutcomeUnknownError("injected: the reply was lost")
        return result

    def _note(self, operations: Sequence[Write], *, told: bool) -> None:
        self._world.applied.extend(Applied(self._world.now_ms, one, told) for one in operations)

    def _later(self, send: Callable[[], Awaitable[object]], operations: Sequence[Write]) -> None:
        async def deliver() -> None:
            await self._world.sleep_ms(self._world.random.randrange(3_000))
            with contextlib.suppress(StoreError):  # its caller has given up
                await self._alone(send)
                self._note(operations, told=False)

        task = asyncio.create_task(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _alone(self, send: Callable[[], Awaitable[_T]]) -> _T:
        self._world.busy += 1
        try:
            return await send()
        finally:
            self._world.busy -= 1
            self._world.events += 1

    async def _delay(self) -> None:
        self._world.events += 1
        if self._weather.delay_ms_max:
            await self._world.sleep_ms(self._world.random.randint(1, self._weather.delay_ms_max))

    def _fault(self) -> str:
        dice = self._dice()
        for name in ("refused", "request_lost", "reply_lost", "late", "resent"):
            dice -= int(getattr(self._weather, f"{name}_pct"))
            if dice < 0:
                return name
        return "none"

    def _dice(self) -> int:
        return self._world.random.randrange(100)


@contextlib.asynccontextmanager
async def store_in(world: World) -> AsyncIterator[Store]:
    """Open a real store in memory, on true time."""
    store = await open_store(SqliteLocation(MEMORY), clock=InstanceClock(world))
    await store.create_tables()
    yield store
    await store.close()


def excess(flow: Iterable[tuple[int, int]], limit: Limit) -> int:
    """The most that any window let through beyond what refilled during it, in units.

    ``flow`` lists moments and tokens, negative for refunds; at the same moment their order counts.
    All windows between two of them are covered: with A the sum so far and r the rate, the worst
    window is the greatest rise of A - r * t.
    """
    worst, lowest, total = 0, None, 0
    for moment_ms, tokens in sorted(flow, key=lambda one: one[0]):
        refilled = limit.units_per_ms * (moment_ms - START_MS)
        lowest = total - refilled if lowest is None else min(lowest, total - refilled)
        total += tokens * limit.units_per_token
        worst = max(worst, total - refilled - lowest)
    return worst


def net_flow(world: World, entity: str, limit: Limit) -> list[tuple[int, int]]:
    """All debits whose sender got the reply, and all refunds."""
    attribute = CONSUMED + limit.name
    flow = []
    for one in world.applied:
        operation = one.operation
        if operation.table != RATE_BUCKETS or operation.key.pk != entity:
            continue
        if isinstance(operation, Put):
            taken, adjusts = operation.item[attribute], False
        else:
            assert isinstance(operation, Update)
            adds = {one.attribute: one.value for one in operation.actions if isinstance(one, Add)}
            taken = adds.get(attribute, 0)
            assert isinstance(taken, int)
            adjusts = "rf" not in str(operation.condition)
        if taken < 0 or (taken > 0 and one.told and not adjusts):
            flow.append((one.at_ms, taken))
    return flow


def _may_be_resent(operations: Sequence[Write]) -> bool:
    """A transaction has its token; a single write has to guard itself."""
    only = operations[0]
    return len(operations) > 1 or (not isinstance(only, Check) and guards_itself(only))
