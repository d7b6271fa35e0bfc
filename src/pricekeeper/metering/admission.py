"""Admission of batches: a batch is refused as a whole and early, or it is taken.

To read and price a hundred records takes milliseconds of the event loop. So a batch is refused
before its body is parsed if its organisation's share of the commit queue has no room for it, and
of those that are taken, `AT_WORK_MAX` are read and priced at once, `GROUP_RECORDS` records in one
turn of the loop. The others wait, in turns by organisation. A batch that waits holds `BATCH_MAX`
places of its organisation's share, which bounds how many can wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pricekeeper.errors import OverloadedError
from pricekeeper.metering.fairness import FairSlots, Shares
from pricekeeper.metering.usage import BATCH_MAX

AT_WORK_MAX: Final = 8
GROUP_RECORDS: Final = 10
"""Records that are read or priced before other requests get their turn: under a millisecond."""


class BatchPlaces:
    """The places that a batch holds for its records, and its slot while it is being read."""

    __slots__ = ("_at_work", "_left", "_org_id", "_shares", "_slots")

    def __init__(self, org_id: str, shares: Shares, slots: FairSlots) -> None:
        self._org_id = org_id
        self._shares = shares
        self._slots = slots
        self._left = 0
        self._at_work = False

    async def take(self) -> None:
        """Take the places or raise `OverloadedError`; then wait for a slot."""
        if not self._shares.take(self._org_id, BATCH_MAX):
            raise full(self._org_id)
        self._left = BATCH_MAX
        await self._slots.acquire(self._org_id)
        self._at_work = True

    def use(self) -> None:
        """Hand one place over to a record that has been submitted: its answer gives it back."""
        self._left -= 1

    def end_work(self) -> None:
        """Let the next batch work, and give back the places that no record uses."""
        if self._at_work:
            self._at_work = False
            self._slots.release()
        if self._left:
            self._shares.give_back(self._org_id, self._left)
            self._left = 0


class BatchAdmission:
    """Decides which batches are taken, and which of them are worked on now."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._slots = FairSlots(AT_WORK_MAX)

    def require_room(self, org_id: str) -> None:
        """Raise `OverloadedError` if a batch would be refused now."""
        if self._shares.room(org_id) < BATCH_MAX:
            raise full(org_id)

    @asynccontextmanager
    async def admit(self, org_id: str) -> AsyncIterator[BatchPlaces]:
        """Hold places for a whole batch until the end of the block or `BatchPlaces.end_work`."""
        places = BatchPlaces(org_id, self._shares, self._slots)
        try:
            await places.take()
            yield places
        finally:
            places.end_work()


def full(org_id: str) -> OverloadedError:
    """What an organisation is told whose share of the queue is used up."""
    return OverloadedError(f"the records of {org_id} that wait have used up its share of the queue")
