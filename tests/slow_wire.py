"""What a simulation puts between services and their store: a slow wire, and wrong clocks."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from faulty_store import Crashed, Faults, FaultyStore, InterleavedClock, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.storage import Delete, Item, Key, Page, Put, Query, Store, Table, Update

DYING_PCT, SLOW_PCT, SLOW_READ_PCT, TORN_PCT = 1, 1, 10, 30
_T = TypeVar("_T")


class SkewedClock(InterleavedClock):
    """The clock of one machine, which is wrong by as much as clocks may be."""

    def __init__(self, clock: ManualClock, turns: Interleaving, skew_ms: int) -> None:
        super().__init__(clock, turns, clock.advance_ms)
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms


class SlowWire(FaultyStore):
    """What is late may be late for minutes: a request, a reply, or the last one of who died."""

    def __init__(
        self, store: Store, turns: Interleaving, faults: Faults, clock: ManualClock
    ) -> None:
        super().__init__(store, turns, faults)
        self._clock = clock

    async def _write(
        self, send: Callable[[], Awaitable[_T]], alone: Put | Update | Delete | None
    ) -> _T:
        if not self._turns.running:
            return await super()._write(send, alone)
        dice = self._turns.below(100)
        if dice < DYING_PCT:
            self.befell["last_request"] += 1
            self._late.append(send)
            raise Crashed
        if dice < DYING_PCT + SLOW_PCT:
            self.befell["slow_request"] += 1
            await self._wait()
            return await super()._write(send, alone)
        done = await super()._write(send, alone)
        if dice < DYING_PCT + 2 * SLOW_PCT:
            self.befell["slow_reply"] += 1
            await self._wait()
        return done

    async def _wait(self) -> None:
        """Let others have their turns, for up to a few minutes."""
        await self._turns.turns(self._turns.below(20))
        self._clock.advance_ms(self._turns.random.choice((100, 5_000, 50_000, 150_000)))

    def _choose_late(self) -> Callable[[], Awaitable[object]] | None:
        return super()._choose_late() if self._turns.random.random() < 0.1 else None


class TornStore(SlowWire):
    """A read of many items is several reads, as on DynamoDB: others write in between."""

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        del consistent
        order = list(range(len(keys)))
        self._turns.random.shuffle(order)
        found: dict[int, Item | None] = {}
        for part in (order[::3], order[1::3], order[2::3]):
            await self._turns.turn()
            items = await self._turns.alone(self._store.batch_get([keys[n] for n in part]))
            found.update(zip(part, items, strict=True))
        return [found[n] for n in range(len(keys))]


class TornQueries(TornStore):
    """A query is no snapshot either: what it finds late in its order, it finds later.

    A read result may be old when it arrives.
    """

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        found = await super().get(table, key, consistent=consistent)
        await self._wait_for_reply()
        return found

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        found = await super().batch_get(keys, consistent=consistent)
        await self._wait_for_reply()
        return found

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        first = await super().query(query, consistent=consistent)
        if self._turns.below(100) >= TORN_PCT:
            await self._wait_for_reply()
            return first
        await self._turns.turn()
        second = await self._turns.alone(self._store.query(query))
        await self._wait_for_reply()
        if first == second:
            return first
        cut = self._turns.random.choice(second.items)["SK"] if second.items else ""
        early = [item for item in first.items if item["SK"] <= cut]
        late = [item for item in second.items if item["SK"] > cut]
        return Page((*early, *late), second.after)

    async def _wait_for_reply(self) -> None:
        if self._turns.running and self._turns.below(100) < SLOW_READ_PCT:
            await self._turns.turns(self._turns.below(20))
