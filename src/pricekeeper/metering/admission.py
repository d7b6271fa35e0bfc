"""Admission: a record or batch gets places in the commit queue, waits for them, or is refused.

Requests of an organisation without a free place wait up to `WAIT_MS_MAX`, unparsed, then get
`OverloadedError`: a client that retries at once must not use the processor for refusals. A batch
takes `BATCH_MAX` places before its body is parsed. `AT_WORK_MAX` batches are priced at a time, and
`GROUP_RECORDS` records in one turn of the loop; others wait, in turns by organisation.

Bounds: ``places_max`` places, and `WAITING_MAX` waiting requests, shared by organisation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import FairSlots, Shares
from pricekeeper.errors import OverloadedError
from pricekeeper.wire.bounds import BATCH_MAX

WAIT_MS_MAX: Final = 1_000
REFUSE_EVERY_MS: Final = 10
WAITING_MAX: Final = 2_000
AT_WORK_MAX: Final = 4
GROUP_RECORDS: Final = 10
"""Read or priced in one turn of the loop: under a millisecond."""


@dataclass(slots=True, eq=False)
class PlaceRequest:
    """A request that waits for places."""

    org_id: str
    count: int
    deadline_ms: int
    """On the monotonic clock."""
    tell: Callable[[bool], None]
    is_admitted: bool | None = None


class Admission:
    """Hands out the places of the commit queue, and the slots in which batches are read."""

    def __init__(self, clock: Clock, places_max: int) -> None:
        self._clock = clock
        self.shares = Shares(places_max)
        self._waiting_shares = Shares(WAITING_MAX)
        self._queues: dict[str, deque[PlaceRequest]] = {}
        self._by_deadline: deque[PlaceRequest] = deque()
        self._refusing: asyncio.Task[None] | None = None
        self._admitting = False
        self.slots = FairSlots(AT_WORK_MAX)

    async def take(self, org_id: str, count: int = 1) -> None:
        if self.take_at_once(org_id, count):
            return
        decided = asyncio.Event()
        request = self.wait(org_id, count, lambda _: decided.set())
        if request is None:
            raise _refusal()
        try:
            await decided.wait()
        except asyncio.CancelledError:
            self.withdraw(request)
            raise
        if not request.is_admitted:
            raise _refusal()

    def take_at_once(self, org_id: str, count: int = 1) -> bool:
        return org_id not in self._queues and self.shares.take(org_id, count)

    def wait(self, org_id: str, count: int, tell: Callable[[bool], None]) -> PlaceRequest | None:
        """``tell`` gets whether it got the places in time; ``None`` if too many wait."""
        if not self._waiting_shares.take(org_id):
            return None
        request = PlaceRequest(org_id, count, self._clock.monotonic_ms() + WAIT_MS_MAX, tell)
        self._queues.setdefault(org_id, deque()).append(request)
        while self._by_deadline and self._by_deadline[0].is_admitted is not None:
            self._by_deadline.popleft()
        self._by_deadline.append(request)
        if self._refusing is None or self._refusing.done():
            self._refusing = asyncio.create_task(self._refuse(), name="pricekeeper-refusals")
        return request

    def withdraw(self, request: PlaceRequest) -> None:
        if request.is_admitted:
            self.give_back(request.org_id, request.count)  # admitted and cancelled in one turn
        elif request.is_admitted is None:
            self._decide(request, admitted=False)

    def give_back(self, org_id: str, count: int = 1) -> None:
        """Return places; waiting requests get them at the end of this turn of the loop."""
        self.shares.give_back(org_id, count)
        if self._queues and not self._admitting:
            self._admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    def queue_batch(self, org_id: str, go_on: Callable[[BatchPlaces | None], None]) -> bool:
        """``False`` if it need not wait. ``go_on`` gets its places, or ``None`` if it got none."""
        if org_id not in self._queues and self.shares.room(org_id) >= BATCH_MAX:
            return False

        def tell(admitted: bool) -> None:  # noqa: FBT001
            go_on(BatchPlaces(org_id, self) if admitted else None)

        if self.wait(org_id, BATCH_MAX, tell) is None:
            go_on(None)
        return True

    @asynccontextmanager
    async def admit_batch(self, org_id: str) -> AsyncIterator[BatchPlaces]:
        """Hold places for a batch until the end of the block or `BatchPlaces.end_work`."""
        await self.take(org_id, BATCH_MAX)
        places = BatchPlaces(org_id, self)
        try:
            yield places
        finally:
            places.end_work()

    async def close(self) -> None:
        """Stop refusing by time. Waiting requests are admitted when places return."""
        if self._refusing is not None:
            self._refusing.cancel()
            await asyncio.wait([self._refusing])

    def _admit(self) -> None:
        self._admitting = False
        for org_id, queue in tuple(self._queues.items()):
            while queue and self.shares.take(org_id, queue[0].count):
                request = queue[0]
                self._decide(request, admitted=True)
                request.tell(True)  # noqa: FBT003

    async def _refuse(self) -> None:
        """Refuse expired requests. All wait equally long, so the oldest is first."""
        while self._by_deadline:
            now_ms = self._clock.monotonic_ms()
            until_ms = max(self._by_deadline[0].deadline_ms, now_ms + REFUSE_EVERY_MS)
            await self._clock.sleep_ms(until_ms - now_ms)
            while self._by_deadline and self._by_deadline[0].deadline_ms <= until_ms:
                request = self._by_deadline.popleft()
                if request.is_admitted is None:
                    self._decide(request, admitted=False)
                    request.tell(False)  # noqa: FBT003

    def _decide(self, request: PlaceRequest, *, admitted: bool) -> None:
        request.is_admitted, org_id = admitted, request.org_id
        self._waiting_shares.give_back(org_id)
        queue = self._queues[org_id]
        while queue and queue[0].is_admitted is not None:
            queue.popleft()
        if not queue:
            del self._queues[org_id]


class BatchPlaces:
    """The places of a batch, and its slot while it is read."""

    __slots__ = ("_admission", "_at_work", "_left", "_org_id")

    def __init__(self, org_id: str, admission: Admission) -> None:
        self._org_id = org_id
        self._admission = admission
        self._left = BATCH_MAX
        self._at_work = False

    async def begin_work(self) -> None:
        await self._admission.slots.acquire(self._org_id)
        self._at_work = True

    def use(self) -> None:
        self._left -= 1

    def end_work(self) -> None:
        if self._at_work:
            self._at_work = False
            self._admission.slots.release()
        if self._left:
            self._admission.give_back(self._org_id, self._left)
            self._left = 0


def _refusal() -> OverloadedError:
    return OverloadedError("the organisation's share of the queue is used up by records that wait")
