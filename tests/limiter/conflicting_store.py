"""DynamoDB's transaction conflicts in front of a store, in simulated time.

A write takes `WRITE_MS`. While a transaction is in flight, every other write on one of its items is
cancelled with a conflict, plain or transactional. Then this store acts like the DynamoDB adapter:
it retries after a pause with full jitter, and finally raises `ContendedError`, with the adapter's
own figures.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from limiter.forwarding_store import ForwardingStore
from limiter.simulation import World
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import ContendedError
from pricekeeper.storage import Key, Store, Write
from pricekeeper.storage.dynamodb.client import Limits

_T = TypeVar("_T")
_ItemId: TypeAlias = tuple[str, Key]

WRITE_MS = 6
READ_MS = 3
ADAPTER = Limits()


@dataclass
class Traffic:
    """All instances' transactions in flight, and counts of conflicts and calls."""

    in_flight: dict[_ItemId, int] = field(default_factory=dict)
    """Each item of a transaction in flight, with the instance that sent it."""
    conflicts: int = 0
    own_conflicts: int = 0
    """Conflicts of an instance with a transaction of its own."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls of the store by instances, without retries."""


class ConflictingStore(ForwardingStore):
    """The store as one instance sees it; ``traffic`` is shared by all instances."""

    def __init__(self, store: Store, world: World, traffic: Traffic, instance: int) -> None:
        super().__init__(store)
        self._world = world
        self._traffic = traffic
        self._instance = instance

    async def _read(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        self._traffic.calls[name] += 1
        await self._world.sleep_ms(READ_MS)
        return await send()

    async def _write(
        self, name: str, operations: Sequence[Write], send: Callable[[], Awaitable[_T]]
    ) -> _T:
        traffic, world = self._traffic, self._world
        traffic.calls[name] += 1
        items = [(one.table.name, one.key) for one in operations]
        for attempt in range(1, ADAPTER.attempts_max + 1):
            others = [traffic.in_flight[item] for item in items if item in traffic.in_flight]
            if not others:
                return await self._apply(items if name == "transact" else [], send)
            traffic.conflicts += 1
            traffic.own_conflicts += self._instance in others
            await world.sleep_ms(WRITE_MS)
            if attempt < ADAPTER.attempts_max:
                backoff = Backoff(ADAPTER.pause_first_ms, ADAPTER.pause_max_ms)
                await world.sleep_ms(backoff.pause_ms(attempt, world.random.randrange))
        raise ContendedError("TransactionConflict, to the end")

    async def _apply(self, items: Sequence[_ItemId], send: Callable[[], Awaitable[_T]]) -> _T:
        in_flight = self._traffic.in_flight
        in_flight.update(dict.fromkeys(items, self._instance))
        try:
            await self._world.sleep_ms(WRITE_MS)
            return await send()
        finally:
            for item in items:
                del in_flight[item]
