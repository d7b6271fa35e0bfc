"""Shares and turns: one organisation's flood fills its own part of a queue and delays itself.

**Shares** bound what waits. An organisation may take places only if those it holds plus those it
wants do not exceed the free places. So one organisation alone gets half of the places, two that
flood get a third each, and n get ``1 / (n + 1)`` each, and the last such part stays free for
whoever comes next. The share shrinks by itself as more organisations become active, and an
organisation that holds nothing is refused only when no place at all is left. Where a client of an
organisation is named, what it holds counts once more, so one client alone gets a third.

**Turns** order what waits. Each organisation has a queue of its own. They are served in rotation,
a few entries at a time, so an entry waits for a few of each other organisation, however many
those have queued.

No I/O, no clock.
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
    """How many of ``places_max`` places each organisation holds, and in it each client."""

    def __init__(self, places_max: int) -> None:
        self._places_max: Final = places_max
        self.held: dict[str, int] = {}
        """By organisation, and by client where one was named."""
        self._total = 0

    def room(self, org_id: str, client_id: str = "") -> int:
        """How many more places the organisation may take now; or one client of it."""
        own = self.held.get(org_id, 0) + (self.held.get(client_id, 0) if client_id else 0)
        return max(0, self._places_max - self._total - own)

    def take(self, org_id: str, count: int = 1, client_id: str = "") -> bool:
        """Take so many places, all or none."""
        if count > self.room(org_id, client_id):
            return False
        self._add(org_id, count, client_id)
        return True

    def give_back(self, org_id: str, count: int = 1, client_id: str = "") -> None:
        """Give places back; an organisation that holds none is forgotten."""
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
    """Queues of organisations, served in rotation: ``turn_entries`` of one, then of the next.

    The clients of an organisation take its turns in rotation, one entry each.
    """

    def __init__(self, turn_entries: int = 1) -> None:
        self._turn_entries = turn_entries
        self._orgs: OrderedDict[str, OrderedDict[str, deque[_Entry]]] = OrderedDict()
        self._left_in_turn = turn_entries
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, org_id: str, entry: _Entry, client_id: str = "") -> None:
        """Add to the end of the client's queue; a new queue gets the last turn."""
        clients = self._orgs.setdefault(org_id, OrderedDict())
        clients.setdefault(client_id, deque()).append(entry)
        self._length += 1

    def first(self) -> _Entry:
        """The entry that `pop` would take."""
        return next(iter(next(iter(self._orgs.values())).values()))[0]

    def pop(self) -> _Entry:
        """Take the next entry of the organisation whose turn it is."""
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
    """At most ``slots_max`` at work at once; those that wait are let in by organisation, in turns.

    It does not bound how many wait: each of them has to hold a place of a `Shares`.
    """

    def __init__(self, slots_max: int) -> None:
        self._free = slots_max
        self._waiting: TurnQueue[asyncio.Future[None]] = TurnQueue()

    async def acquire(self, org_id: str, client_id: str = "") -> None:
        """Wait for a slot, and hold it until `release`."""
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
        """Let the next one in, or keep the slot free if nobody waits."""
        while self._waiting:
            admitted = self._waiting.pop()
            if not admitted.done():  # else it was cancelled while it waited
                admitted.set_result(None)
                return
        self._free += 1


class FairLine:
    """A line in front of something costly: `FairSlots`, and a share of the line for everybody."""

    def __init__(self, slots_max: int, places_max: int) -> None:
        self._slots = FairSlots(slots_max)
        self._shares = Shares(places_max)
        self.length = 0
        """How many are in it, those whose turn it is with them."""

    @asynccontextmanager
    async def turn(self, org_id: str) -> AsyncIterator[None]:
        """Wait for a turn; `OverloadedError` at once if the organisation's share is used up."""
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
"""How many clients are considered when places are given back; the others come first next time."""


class _Waiting(NamedTuple):
    wanted: int
    admitted: asyncio.Future[None]


class Places:
    """``places_max`` places, and ``waiting_max`` that wait for ``wait_secs`` at the most."""

    def __init__(self, places_max: int, waiting_max: int, wait_secs: float) -> None:
        self.shares = Shares(places_max)
        self._waiting_shares = Shares(waiting_max)
        self._wait_secs = wait_secs
        self._queues: OrderedDict[tuple[str, str], deque[_Waiting]] = OrderedDict()

    def take_at_once(self, org_id: str, client_id: str, count: int = 1) -> bool:
        """Take places, all or none; not ahead of requests of the client that wait."""
        if (org_id, client_id) in self._queues:
            return False
        return self.shares.take(org_id, count, client_id)

    async def take(self, org_id: str, client_id: str, count: int = 1) -> None:
        """Take places, all or none; raises `OverloadedError` if there are none in time."""
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
        """Give places back, and admit requests that wait and now have room."""
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
