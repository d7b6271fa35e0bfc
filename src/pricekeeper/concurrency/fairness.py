"""Shares and turns: an organisation that floods a queue delays only itself.

**Shares** bound what waits: places held plus places wanted must not exceed the free ones. So one
organisation gets half, and n that flood get ``1 / (n + 1)`` each. One that holds nothing is refused
only if no place is left. Places of a named client count twice, so one client gets a third.

**Turns** order what waits: a queue for each organisation, served in rotation, a few entries at a
time. `Places` combines both, with a bounded wait. No I/O, and no clock but the event loop's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from pricekeeper.errors import OverloadedError

_Entry = TypeVar("_Entry")


class Shares:
    """How many of ``places_max`` places each organisation and client holds."""

    def __init__(self, places_max: int) -> None:
        self._places_max: Final = places_max
        self.held: dict[str, int] = {}
        self._total = 0

    def room(self, org_id: str, client_id: str = "") -> int:
        """How many more places the organisation, or this client of it, may take now."""
        own = self.held.get(org_id, 0) + (self.held.get(client_id, 0) if client_id else 0)
        return max(0, self._places_max - self._total - own)

    def take(self, org_id: str, count: int = 1, client_id: str = "") -> bool:
        if count > self.room(org_id, client_id):
            return False
        self._add(org_id, count, client_id)
        return True

    def give_back(self, org_id: str, count: int = 1, client_id: str = "") -> None:
        self._add(org_id, -count, client_id)

    def _add(self, org_id: str, count: int, client_id: str) -> None:
        for holder in (org_id, client_id) if client_id else (org_id,):
            left = self.held.get(holder, 0) + count
            if left < 0:
                raise ValueError(f"{holder} gives back places that it does not hold")
            if left:
                self.held[holder] = left
            else:
                self.held.pop(holder, None)
        self._total += count


class TurnQueue(Generic[_Entry]):
    """Queues of organisations in rotation, ``turn_entries`` of each; its clients rotate, too."""

    def __init__(self, turn_entries: int = 1) -> None:
        self._turn_entries = turn_entries
        self._orgs: OrderedDict[str, OrderedDict[str, deque[_Entry]]] = OrderedDict()
        self._left_in_turn = turn_entries
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, org_id: str, entry: _Entry, client_id: str = "") -> None:
        clients = self._orgs.setdefault(org_id, OrderedDict())
        clients.setdefault(client_id, deque()).append(entry)
        self._length += 1

    def pop(self) -> _Entry:
        org_id, clients = next(iter(self._orgs.items()))
        client_id, queue = next(iter(clients.items()))
        entry = queue.popleft()
        self._length -= 1
        self._left_in_turn -= 1
        if queue:
            clients.move_to_end(client_id)
        else:
            del clients[client_id]
        if not clients:
            del self._orgs[org_id]
            self._left_in_turn = self._turn_entries
        elif not self._left_in_turn:
            self._orgs.move_to_end(org_id)
            self._left_in_turn = self._turn_entries
        return entry


class FairSlots:
    """At most ``slots_max`` executions at once; organisations take turns to start.

    The queue has no bound of its own: each caller must hold a place of a `Shares`.
    """

    def __init__(self, slots_max: int) -> None:
        self._free = slots_max
        self._waiting: TurnQueue[asyncio.Future[None]] = TurnQueue()

    async def acquire(self, org_id: str, client_id: str = "") -> None:
        if self._free:
            self._free -= 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(org_id, admitted, client_id)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # let in and cancelled in one turn
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            admitted = self._waiting.pop()
            if not admitted.done():  # else it was cancelled while it waited
                admitted.set_result(None)
                return
        self._free += 1


class FairLine:
    """A queue for something costly: `FairSlots`, bounded by a `Shares`."""

    def __init__(self, slots_max: int, places_max: int) -> None:
        self._slots = FairSlots(slots_max)
        self._shares = Shares(places_max)
        self.length = 0

    @asynccontextmanager
    async def turn(self, org_id: str) -> AsyncIterator[None]:
        """Wait for a turn, or raise `OverloadedError` at once if no share is left."""
        if not self._shares.take(org_id):
            raise OverloadedError("too many are waiting for their turn")
        self.length += 1
        try:
            await self._slots.acquire(org_id)
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self.length -= 1
            self._shares.give_back(org_id)


LOOKED_AT_MAX: Final = 32
"""Clients considered when places become free; the others are first next time."""


class _Waiting(NamedTuple):
    wanted: int
    admitted: asyncio.Future[None]


class Places:
    """Places that clients hold for long; a client without room waits up to ``wait_secs``.

    At most ``waiting_max`` requests wait, with a share for each client, in order.
    """

    def __init__(self, places_max: int, waiting_max: int, wait_secs: float) -> None:
        self.shares = Shares(places_max)
        self._waiting_shares = Shares(waiting_max)
        self._wait_secs = wait_secs
        self._queues: OrderedDict[tuple[str, str], deque[_Waiting]] = OrderedDict()

    def take_at_once(self, org_id: str, client_id: str, count: int = 1) -> bool:
        """Take all or none, but never ahead of this client's waiting requests."""
        if (org_id, client_id) in self._queues:
            return False
        return self.shares.take(org_id, count, client_id)

    async def take(self, org_id: str, client_id: str, count: int = 1) -> None:
        """Take all or none; raises `OverloadedError` if none became free in time."""
        if self.take_at_once(org_id, client_id, count):
            return
        if not self._waiting_shares.take(org_id, 1, client_id):
            raise OverloadedError("too many are waiting for a place")
        waiting = _Waiting(count, asyncio.get_running_loop().create_future())
        self._queues.setdefault((org_id, client_id), deque()).append(waiting)
        try:
            async with asyncio.timeout(self._wait_secs):
                await waiting.admitted
        except BaseException as error:
            if waiting.admitted.done() and not waiting.admitted.cancelled():
                self.give_back(org_id, client_id, count)  # let in, and stopped in the same turn
            else:
                self._forget((org_id, client_id), waiting)
                self._let_in()  # those behind it may want less
            if isinstance(error, TimeoutError):
                raise OverloadedError("no place has become free in time") from None
            raise
        finally:
            self._waiting_shares.give_back(org_id, 1, client_id)

    def give_back(self, org_id: str, client_id: str, count: int = 1) -> None:
        self.shares.give_back(org_id, count, client_id)
        if self._queues:
            self._let_in()

    def _let_in(self) -> None:
        for _ in range(min(len(self._queues), LOOKED_AT_MAX)):
            client, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(client)
            org_id, client_id = client
            while queue:
                if queue[0].admitted.done():  # cancelled, and its task has not run yet
                    queue.popleft()
                elif self.shares.take(org_id, queue[0].wanted, client_id):
                    queue.popleft().admitted.set_result(None)
                else:
                    break
            if not queue:
                del self._queues[client]

    def _forget(self, client: tuple[str, str], waiting: _Waiting) -> None:
        queue = self._queues.get(client)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._queues[client]
