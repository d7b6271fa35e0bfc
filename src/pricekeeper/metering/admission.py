"""Admission: a record or a batch gets places in the commit queue, waits for them, or is refused.

An organisation whose share of the queue is used up is the one that waits: for `WAIT_MS_MAX`, in the
order in which its requests came, and with nothing of them parsed. Then it is refused with
`OverloadedError`. A client that repeats a refused request at once would otherwise be answered again
and again, and the refusals alone would take the processor from everybody's records.

To read and price a hundred records takes milliseconds of the event loop. So a batch takes
`BATCH_MAX` places before its body is parsed, `AT_WORK_MAX` batches are read and priced at once, and
`GROUP_RECORDS` of their records in one turn of the loop. The others wait, in turns by organisation.

Bounds: ``places_max`` places, `WAITING_MAX` requests that wait for some (each organisation has its
share of these, too), and the two above.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import FairSlots, Shares
from pricekeeper.errors import OverloadedError
from pricekeeper.metering.usage import BATCH_MAX

WAIT_MS_MAX: Final = 1_000
WAITING_MAX: Final = 2_000
AT_WORK_MAX: Final = 4
GROUP_RECORDS: Final = 10
"""Records that are read or priced before other requests get their turn: under a millisecond."""


class _Request:
    """A request that waits for places."""

    __slots__ = ("admitted", "count", "deadline_ms", "org_id")

    def __init__(self, org_id: str, count: int, deadline_ms: int) -> None:
        self.org_id = org_id
        self.count = count
        self.deadline_ms = deadline_ms
        """On the monotonic clock."""
        self.admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Admission:
    """Hands out the places of the commit queue, and the slots in which batches are read."""

    def __init__(self, clock: Clock, places_max: int) -> None:
        self._clock = clock
        self.shares = Shares(places_max)
        self._waiting_shares = Shares(WAITING_MAX)
        self._queues: dict[str, deque[_Request]] = {}
        self._by_deadline: deque[_Request] = deque()
        self._refusing: asyncio.Task[None] | None = None
        self._admitting = False
        self.slots = FairSlots(AT_WORK_MAX)

    async def take(self, org_id: str, count: int = 1) -> None:
        """Take so many places, or wait for them, or raise `OverloadedError`."""
        if org_id not in self._queues and self.shares.take(org_id, count):
            return
        if not self._waiting_shares.take(org_id):
            raise _refusal(org_id)
        request = self._enqueue(org_id, count)
        try:
            admitted = await request.admitted
        except asyncio.CancelledError:
            if not request.admitted.cancelled() and request.admitted.result():
                self.give_back(org_id, count)  # admitted and cancelled in one turn
            raise
        finally:
            self._waiting_shares.give_back(org_id)
            self._tidy(org_id)
        if not admitted:
            raise _refusal(org_id)

    def give_back(self, org_id: str, count: int = 1) -> None:
        """Give places back; those who wait get them at the end of this turn of the loop."""
        self.shares.give_back(org_id, count)
        if self._queues and not self._admitting:
            self._admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    @asynccontextmanager
    async def admit_batch(self, org_id: str) -> AsyncIterator[BatchPlaces]:
        """Places for a whole batch until the end of the block or `BatchPlaces.end_work`."""
        await self.take(org_id, BATCH_MAX)
        places = BatchPlaces(org_id, self)
        try:
            yield places
        finally:
            places.end_work()

    async def close(self) -> None:
        """Stop refusing by time. Those who wait are admitted when places come back."""
        if self._refusing is not None:
            self._refusing.cancel()
            await asyncio.wait([self._refusing])

    def _enqueue(self, org_id: str, count: int) -> _Request:
        request = _Request(org_id, count, self._clock.monotonic_ms() + WAIT_MS_MAX)
        self._queues.setdefault(org_id, deque()).append(request)
        while self._by_deadline and self._by_deadline[0].admitted.done():
            self._by_deadline.popleft()
        self._by_deadline.append(request)
        if self._refusing is None or self._refusing.done():
            self._refusing = asyncio.create_task(self._refuse(), name="pricekeeper-refusals")
        return request

    def _admit(self) -> None:
        """Let in whoever has room now: of each organisation, those who came first."""
        self._admitting = False
        for org_id in tuple(self._queues):
            for request in self._queues[org_id]:
                if request.admitted.done():
                    continue
                if not self.shares.take(org_id, request.count):
                    break
                request.admitted.set_result(True)
            self._tidy(org_id)

    async def _refuse(self) -> None:
        """Refuse whoever has waited long enough; all wait equally long, so the oldest is first."""
        while self._by_deadline:
            until_ms = self._by_deadline[0].deadline_ms
            await self._clock.sleep_ms(max(0, until_ms - self._clock.monotonic_ms()))
            while self._by_deadline and self._by_deadline[0].deadline_ms <= until_ms:
                request = self._by_deadline.popleft()
                if not request.admitted.done():
                    request.admitted.set_result(False)
                    self._tidy(request.org_id)

    def _tidy(self, org_id: str) -> None:
        """Forget what waits no longer, and a queue in which nobody does."""
        queue = self._queues.get(org_id)
        while queue and queue[0].admitted.done():
            queue.popleft()
        if queue is not None and not queue:
            del self._queues[org_id]


class BatchPlaces:
    """The places that a batch holds for its records, and its slot while it is being read."""

    __slots__ = ("_admission", "_at_work", "_left", "_org_id")

    def __init__(self, org_id: str, admission: Admission) -> None:
        self._org_id = org_id
        self._admission = admission
        self._left = BATCH_MAX
        self._at_work = False

    async def begin_work(self) -> None:
        """Wait until the batch may be read and priced."""
        await self._admission.slots.acquire(self._org_id)
        self._at_work = True

    def use(self) -> None:
        """Hand one place over to a record that has been submitted: its answer gives it back."""
        self._left -= 1

    def end_work(self) -> None:
        """Let the next batch work, and give back the places that no record uses."""
        if self._at_work:
            self._at_work = False
            self._admission.slots.release()
        if self._left:
            self._admission.give_back(self._org_id, self._left)
            self._left = 0


def _refusal(org_id: str) -> OverloadedError:
    return OverloadedError(f"the records of {org_id} that wait have used up its share of the queue")
