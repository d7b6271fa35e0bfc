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
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update, Write
from pricekeeper.storage.dynamodb.conditions import guards_itself
from quick_loop import QuickLoop

_T = TypeVar("_T")
_Call: TypeAlias = Coroutine[Any, Any, _T]
_Send: TypeAlias = Callable[[], Awaitable[object]]

_SETTLING_TURNS = 8
"""Turns of the event loop after which everything independent of the store has moved."""
_LOST_READS = frozenset({"refused", "request_lost", "reply_lost", "late"})


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
    """Done, but the caller can't know the outcome."""
    late_pct: int = 0
    """The caller can't tell, and it is applied at some later moment."""
    resent_pct: int = 0
    """A second copy arrives as well, of what a store may send again."""
    crashed_pct: int = 0
    """The caller dies, before or after it was done."""
    spare_reads: bool = False
    """Reads always work."""
    by_dice: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """What a throw of a hundred-sided die means: a fault, or nothing."""

    def __post_init__(self) -> None:
        names = ("refused", "request_lost", "reply_lost", "late", "resent", "crashed")
        sides = [name for name in names for _ in range(getattr(self, f"{name}_pct"))]
        sides += [""] * (100 - len(sides))
        object.__setattr__(self, "by_dice", tuple(sides))


class Interleaving:
    """Who may go next, by seed; ``between`` runs at every turn, to move a clock for example."""

    def __init__(self, seed: int, between: Callable[[Random], None] | None = None) -> None:
        self.random = Random(seed)
        self.below: Callable[[int], int] = self.random._randbelow  # type: ignore[attr-defined]
        """The number that `Random.randrange` would give, without its questions."""
        self._between = between
        self.running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: set[asyncio.Task[Any]] = set()
        self._parked: list[asyncio.Future[None]] = []
        self._more_turns: dict[asyncio.Future[None], int] = {}
        """How many further turns a task waits for, if any."""
        self._busy = 0
        self._has_moved = False
        self._on_move: Callable[[], object] | None = None
        """Wakes the tasks that wait for a move."""

    async def run(self, *work: Coroutine[Any, Any, _T]) -> list[_T | BaseException]:
        """Run all of it, one store call at a time; errors and crashes are returned."""
        self._loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(one) for one in work]
        self._left.update(tasks)
        for task in tasks:
            task.add_done_callback(self._end)
        self.running = True
        try:
            if isinstance(self._loop, QuickLoop):
                await _Callback(self, self._loop).give_turns()
            else:
                await self._give_turns()
        finally:
            self.running = False
            for waiting in self._parked:
                waiting.cancel()
            self._parked.clear()
        return await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._left.remove(task)
        self._move()

    async def _give_turns(self) -> None:
        while self._left:
            while not await self._is_settled():
                """Something has moved."""
            if self._parked:
                self._let_one_go()
            elif self._left:  # a task waits for something other than the store
                await self._wait_for_move()

    async def _is_settled(self) -> bool:
        """Whether nothing moves any more: how fast a thread answers must not decide an order."""
        self._has_moved = False
        for _ in range(_SETTLING_TURNS):
            await asyncio.sleep(0)
        if self._busy:
            await self._wait_for_move()
        return not self._has_moved

    async def _wait_for_move(self) -> None:
        if not self._has_moved:
            moved = asyncio.Event()
            self._on_move = moved.set
            await moved.wait()

    def _let_one_go(self, *, is_idle: bool = False) -> bool:
        """Give one turn; returns whether its holder has anything to do.

        If nothing else moves, a task that waits for several turns need not wait for the next.
        """
        chosen = self._parked.pop(self.below(len(self._parked)))
        goes_on = True
        if not chosen.done():  # else its task was cancelled
            goes_on = not is_idle or not self._left or chosen not in self._more_turns
            if goes_on:
                chosen.set_result(None)
            else:
                self._wait_on(chosen)
        if self._between is not None:
            self._between(self.random)
        return goes_on

    def _wait_on(self, chosen: asyncio.Future[None]) -> None:
        """Let one who waits for several turns wait for the next one."""
        self._parked.append(chosen)
        self._more_turns[chosen] -= 1
        if not self._more_turns[chosen]:
            del self._more_turns[chosen]

    async def turn(self) -> None:
        """Wait until it is the caller's turn; at once if nothing is being interleaved."""
        if self.running:
            await self.park()

    async def turns(self, count: int) -> None:
        """Wait for so many turns, as if for one after the other."""
        while count and self.running:
            turn = self.park()
            if count > 1:
                self._more_turns[turn] = count - 1
            try:
                await turn
            finally:
                count = self._more_turns.pop(turn, 0)

    def park(self) -> asyncio.Future[None]:
        """What is done when it is the caller's turn, while something is being interleaved."""
        turn: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        self._parked.append(turn)
        self._move()
        return turn

    async def alone(self, call: Awaitable[_T]) -> _T:
        """Await the call without giving a turn to another task."""
        self._busy += 1
        try:
            return await call
        finally:
            self._busy -= 1
            self._move()

    def _move(self) -> None:
        self._has_moved = True
        if self._on_move is not None:
            wake, self._on_move = self._on_move, None
            wake()


class _Callback:
    """Gives turns as `Interleaving._give_turns` does, the same at the same moments.

    It is called in its turn, where a task would wake that sleeps until the next, and costs less.
    """

    def __init__(self, turns: Interleaving, loop: QuickLoop) -> None:
        self._turns = turns
        self._loop = loop
        self._ended: asyncio.Future[None] = loop.create_future()
        self._context = copy_context()
        self._passes = 0

    async def give_turns(self) -> None:
        self._begin()
        await self._ended

    def _begin(self) -> None:
        """Look from now on whether nothing moves any more."""
        self._passes = 0
        self._turns._has_moved = False
        self._loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        turns, is_idle = self._turns, self._loop.is_idle
        self._passes += 1
        if not is_idle and self._passes < _SETTLING_TURNS:
            self._loop.call_soon(self._look, context=self._context)
        elif turns._busy:
            self._wait_for_move()
        elif not is_idle and turns._has_moved:
            self._begin()
        elif turns._parked:
            self._give_turn(is_idle=is_idle)
        elif turns._left:  # a task waits for something other than the store
            self._wait_for_move()
        else:
            self._end()

    def _give_turn(self, *, is_idle: bool) -> None:
        try:
            while not self._turns._let_one_go(is_idle=is_idle) and self._loop.is_idle:
                """The holder of that turn waits for more, and nothing else can move."""
        except Exception as error:  # noqa: BLE001 - passed to the caller of the run
            self._end(error)
            return
        if self._turns._left:
            self._begin()
        else:
            self._end()

    def _wait_for_move(self) -> None:
        if self._turns._has_moved:
            self._begin()
        else:
            self._turns._on_move = partial(self._loop.call_soon, self._begin, context=self._context)

    def _end(self, error: Exception | None = None) -> None:
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
        self._loop.advance_newest()  # its waiters continue at once


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
        self._late: list[_Send] = []

    def get(self, table: Table, key: Key, *, consistent: bool = True) -> _Call[Item | None]:
        return self._read(lambda: self._store.get(table, key, consistent=consistent))

    def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> _Call[list[Item | None]]:
        return self._read(lambda: self._store.batch_get(keys, consistent=consistent))

    def query(self, query: Query, *, consistent: bool = True) -> _Call[Page]:
        return self._read(lambda: self._store.query(query, consistent=consistent))

    def put(self, operation: Put) -> _Call[None]:
        return self._write(lambda: self._store.put(operation), operation)

    def update(self, operation: Update) -> _Call[Item]:
        return self._write(lambda: self._store.update(operation), operation)

    def delete(self, operation: Delete) -> _Call[Item | None]:
        return self._write(lambda: self._store.delete(operation), operation)

    def transact(self, operations: Sequence[Write]) -> _Call[None]:
        fixed = tuple(operations)
        return self._write(lambda: self._store.transact(fixed), None)

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()

    async def deliver(self) -> None:
        """Let everything that is still under way arrive, in an order of the seed's."""
        self._turns.random.shuffle(self._late)
        while self._late:
            await self._deliver_late(self._late.pop())

    async def _read(self, send: Callable[[], Awaitable[_T]]) -> _T:
        turns = self._turns
        if turns.running:
            await turns.park()
        if late := self._choose_late():
            await self._deliver_late(late)
        fault = "" if self.faults.spare_reads else self._fault()
        if fault in _LOST_READS:
            self.befell["refused"] += 1
            raise StoreUnavailableError("injected: the read failed")
        if fault == "crashed":
            self.befell[fault] += 1
            raise Crashed
        turns._busy += 1  # as `Interleaving.alone`
        try:
            return await send()
        finally:
            turns._busy -= 1
            turns._move()

    async def _write(
        self, send: Callable[[], Awaitable[_T]], alone: Put | Update | Delete | None
    ) -> _T:
        """Send a write; one that is not in a transaction may be sent again, if it guards itself."""
        if self._turns.running:
            await self._turns.park()
        if late := self._choose_late():
            await self._deliver_late(late)
        fault = self._fault()
        if not fault:
            return await self._turns.alone(send())
        if fault == "resent" and (alone is None or not guards_itself(alone)):
            return await self._turns.alone(send())
        self.befell[fault] += 1
        return await self._write_with(fault, send)

    async def _write_with(self, fault: str, send: Callable[[], Awaitable[_T]]) -> _T:
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
            await self._turns.alone(send())
        finally:
            if fault == "crashed":
                raise Crashed
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

    def _choose_late(self) -> _Send | None:
        """What arrives at this moment, of all that is late."""
        if self._late and self._turns.random.random() < 0.3:
            return self._late.pop(self._turns.random.randrange(len(self._late)))
        return None

    async def _deliver_late(self, send: _Send) -> None:
        with contextlib.suppress(StoreError):  # its caller has left
            await self._turns.alone(send())

    def _fault(self) -> str:
        """What happens to this call; nothing, mostly, and never outside an interleaving."""
        if not self._turns.running:
            return ""
        return self.faults.by_dice[self._turns.below(100)]


REFUSED = Faults(refused_pct=100, spare_reads=True)
REQUEST_LOST = Faults(request_lost_pct=100, spare_reads=True)
REPLY_LOST = Faults(reply_lost_pct=100, spare_reads=True)
SENT_TWICE = Faults(resent_pct=100, spare_reads=True)
LATE = Faults(late_pct=100, spare_reads=True)


class GoesDark(FaultyStore):
    """Works until the first transaction, whose reply is lost, and answers nothing from then on."""

    async def transact(self, *arguments: Any, **options: Any) -> None:
        self.faults = Faults(reply_lost_pct=100)
        await super().transact(*arguments, **options)


class Overtaken(FaultyStore):
    """A sound store on which others do something before each transaction."""

    def __init__(
        self, store: Store, first: Callable[[Sequence[Write]], Coroutine[Any, Any, object]]
    ) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._first = first

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._first(operations)
        await super().transact(operations)
