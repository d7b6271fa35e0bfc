"""A real store behind an unreliable wire, and tasks that take turns as a seed says.

`FaultyStore` hands every call to the store it wraps; around it, the seed decides what the
network does: requests that never arrive, replies that are lost, copies that are sent again,
writes that are applied long after their caller gave up, a caller that dies on the spot. Every
one of them is something that the port allows, so a feature that breaks under them is broken.

`Interleaving` lets one call at a time through, chosen by the same seed, so that a failing
interleaving fails again. Outside `Interleaving.run` nothing is delayed and nothing fails.

    turns = Interleaving(seed)
    store = FaultyStore(real, turns, Faults(reply_lost_pct=10, crashed_pct=2))
    outcomes = await turns.run(*(claim(store) for _ in range(5)))
    await store.deliver()
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update, Write
from pricekeeper.storage.dynamodb.guards import guards_itself
from quick_loop import is_idle

_T = TypeVar("_T")

_SETTLING_TURNS = 8
"""Turns of the event loop after which whatever can move without the store has moved."""


class Crashed(BaseException):
    """The process died here. Not an `Exception`, so that no handler outlives it."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault befalls a call, in percent; a call meets one at most."""

    refused_pct: int = 0
    """Not applied, and the caller knows it."""
    request_lost_pct: int = 0
    """Not applied, but the caller can't tell."""
    reply_lost_pct: int = 0
    """Done, whatever its outcome, but the caller can't tell."""
    late_pct: int = 0
    """The caller can't tell, and it is applied at some later moment."""
    resent_pct: int = 0
    """A second copy arrives as well, of what a store may send again."""
    crashed_pct: int = 0
    """The caller dies, before or after it was done."""
    spare_reads: bool = False
    """Reads always work."""


class Interleaving:
    """Who may go next, by seed; ``between`` runs at every turn, to move a clock for example."""

    def __init__(self, seed: int, between: Callable[[Random], None] | None = None) -> None:
        self.random = Random(seed)
        self._between = between
        self.running = False
        self._parked: list[asyncio.Future[None]] = []
        self._busy = 0
        self._moved = asyncio.Event()

    async def run(self, *work: Coroutine[Any, Any, _T]) -> list[_T | BaseException]:
        """Run all of it, one store call at a time; errors and crashes are returned."""
        tasks = [asyncio.create_task(one) for one in work]
        left = set(tasks)

        def end(task: asyncio.Task[_T]) -> None:
            left.remove(task)
            self._moved.set()

        for task in tasks:
            task.add_done_callback(end)
        self.running = True
        try:
            while left:
                if not await self._is_settled():
                    continue
                if not self._parked:  # somebody waits for something that is not the store
                    await self._moved.wait()
                    continue
                chosen = self._parked.pop(self.random.randrange(len(self._parked)))
                if not chosen.done():  # else its task was cancelled
                    chosen.set_result(None)
                if self._between is not None:
                    self._between(self.random)
        finally:
            self.running = False
            for waiting in self._parked:
                waiting.cancel()
            self._parked.clear()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_settled(self) -> bool:
        """Whether nothing moves any more: how fast a thread answers must not decide an order."""
        self._moved.clear()
        for _ in range(_SETTLING_TURNS):
            await asyncio.sleep(0)
            if is_idle():
                if not self._busy:
                    return True
                break
        if self._busy:
            await self._moved.wait()
        return not self._moved.is_set()

    async def turn(self) -> None:
        """Wait until it is the caller's turn; at once if nothing is being interleaved."""
        if self.running:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._parked.append(turn)
            self._moved.set()
            await turn

    async def alone(self, call: Awaitable[_T]) -> _T:
        """Await the call while nobody else is given a turn."""
        self._busy += 1
        try:
            return await call
        finally:
            self._busy -= 1
            self._moved.set()


class InterleavedClock:
    """A clock for services under an `Interleaving`: a pause is a turn, and time has passed."""

    def __init__(self, clock: Clock, turns: Interleaving, pass_ms: Callable[[int], None]) -> None:
        self._clock = clock
        self._turns = turns
        self._pass_ms = pass_ms

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._turns.turn()
        self._pass_ms(max(0, duration_ms))


class FaultyStore:
    """The wrapped store, with faults. ``befell`` counts them, so a test can see it was tested."""

    def __init__(self, store: Store, turns: Interleaving, faults: Faults) -> None:
        self._store = store
        self._turns = turns
        self.faults = faults
        self.befell: Counter[str] = Counter()
        self._late: list[Callable[[], Awaitable[object]]] = []

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._read(lambda: self._store.get(table, key, consistent=consistent))

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        return await self._read(lambda: self._store.batch_get(keys, consistent=consistent))

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        return await self._read(lambda: self._store.query(query, consistent=consistent))

    async def put(self, operation: Put) -> None:
        await self._write(lambda: self._store.put(operation), again=guards_itself(operation))

    async def update(self, operation: Update) -> Item:
        return await self._write(
            lambda: self._store.update(operation), again=guards_itself(operation)
        )

    async def delete(self, operation: Delete) -> Item | None:
        return await self._write(
            lambda: self._store.delete(operation), again=guards_itself(operation)
        )

    async def transact(self, operations: Sequence[Write]) -> None:
        fixed = tuple(operations)
        await self._write(lambda: self._store.transact(fixed), again=False)

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()

    async def deliver(self) -> None:
        """Let everything that is still under way arrive, in an order of the seed's."""
        self._turns.random.shuffle(self._late)
        while self._late:
            with contextlib.suppress(StoreError):  # nobody listens for these any more
                await self._turns.alone(self._late.pop()())

    async def _read(self, send: Callable[[], Awaitable[_T]]) -> _T:
        await self._turns.turn()
        await self._deliver_one()
        fault = "" if self.faults.spare_reads else self._fault()
        if fault in {"refused", "request_lost", "reply_lost", "late"}:
            self.befell["refused"] += 1
            raise StoreUnavailableError("injected: the read failed")
        if fault == "crashed":
            self.befell[fault] += 1
            raise Crashed
        return await self._turns.alone(send())

    async def _write(self, send: Callable[[], Awaitable[_T]], *, again: bool) -> _T:
        await self._turns.turn()
        await self._deliver_one()
        fault = self._fault()
        if fault == "resent" and not again:
            fault = ""
        if fault:
            self.befell[fault] += 1
        if fault == "refused":
            raise StoreUnavailableError("injected: the request was refused")
        if fault == "late":
            self._late.append(send)
        if fault in {"request_lost", "late"}:
            raise OutcomeUnknownError("injected: no reply")
        if fault == "crashed" and self._turns.random.random() < 0.5:
            raise Crashed
        if fault == "resent":
            return await self._sent_twice(send)
        try:
            return await self._turns.alone(send())
        finally:
            if fault == "crashed":
                raise Crashed
            if fault == "reply_lost":
                raise OutcomeUnknownError("injected: the reply was lost")

    async def _sent_twice(self, send: Callable[[], Awaitable[_T]]) -> _T:
        """The first reply is lost and the store sends again, as an adapter would."""
        with contextlib.suppress(StoreError):
            await self._turns.alone(send())
        await self._turns.turn()  # others may come in between the two copies
        try:
            return await self._turns.alone(send())
        except ConditionFailedError as failure:
            raise OutcomeUnknownError("injected: sent again", failure.item) from failure

    async def _deliver_one(self) -> None:
        if self._late and self._turns.random.random() < 0.3:
            send = self._late.pop(self._turns.random.randrange(len(self._late)))
            with contextlib.suppress(StoreError):  # nobody listens for this one any more
                await self._turns.alone(send())

    def _fault(self) -> str:
        """What happens to this call; nothing, mostly, and never outside an interleaving."""
        if not self._turns.running:
            return ""
        dice = self._turns.random.randrange(100)
        for name in ("refused", "request_lost", "reply_lost", "late", "resent", "crashed"):
            dice -= int(getattr(self.faults, f"{name}_pct"))
            if dice < 0:
                return name
        return ""
