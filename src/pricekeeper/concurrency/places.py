"""Places that clients hold for long, with a share for each client and a bounded wait.

A client that holds its share waits until places are given back, for ``wait_secs`` at most. How
many may wait is bounded, too, with a share for each client. A client's requests are admitted in
order, and clients take turns. No I/O.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from pricekeeper.concurrency.fairness import Shares
from pricekeeper.errors import OverloadedError

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
