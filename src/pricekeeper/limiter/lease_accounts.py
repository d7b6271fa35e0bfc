"""What a lease holds, and how often that may change: once per id, whatever goes wrong.

A lease that its caller did not name exists in this process only, and so does its account. Its
writes are plain ones that nobody may repeat: if the reply to one is lost, it may or may not
have been applied. Then what was being given back counts as given back, what was being taken
counts as not held, and that id is never sent again. Tokens may be lost until they refill, but
they are never taken twice and never made. A caller that needs more names the lease.

A lease with a name has its account in the store, beside the buckets: see `records`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.limiter.records import (
    ADJUSTMENTS_MAX,
    another_adjustment,
    capacities_of,
    check_delta,
    check_held,
    mark_of,
    newer_record,
    released_already,
    too_many_adjustments,
)
from pricekeeper.limiter.worker import Workers


class UnnamedAccount:
    """The account of a lease without a name."""

    def __init__(
        self, workers: Workers, debits: Sequence[Debit], tokens: Mapping[str, int]
    ) -> None:
        self._workers = workers
        self._debits = tuple(debits)
        self._held = dict(tokens)
        self._outcomes: dict[str, tuple[dict[str, int], bool]] = {}
        """By the id that was sent: what was asked for, and whether we know that it was applied."""
        self._released = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def held(self) -> Mapping[str, int]:
        """Tokens by limit."""
        return dict(self._held)

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, or give some back; sent once for the same id."""
        async with self._one_at_a_time:
            if adjustment_id is not None and adjustment_id in self._outcomes:
                asked, applied = self._outcomes[adjustment_id]
                if asked != delta:
                    raise another_adjustment()
                if applied:
                    return
                raise OutcomeUnknownError("this adjustment may or may not have been applied")
            if self._released:
                raise released_already()
            capacities = capacities_of(self._debits)
            check_delta(delta, capacities)
            check_held(delta, self._held, capacities)
            if adjustment_id is not None and len(self._outcomes) >= ADJUSTMENTS_MAX:
                raise too_many_adjustments()
            try:
                taken = await self._move(delta)
            except OutcomeUnknownError:
                self._note({name: min(0, n) for name, n in delta.items()})
                if adjustment_id is not None:
                    self._outcomes[adjustment_id] = (dict(delta), False)
                raise
            self._note(taken)
            if adjustment_id is not None:
                self._outcomes[adjustment_id] = (dict(delta), True)

    async def release(self) -> None:
        """Give everything back; sent once."""
        async with self._one_at_a_time:
            if self._released:
                return
            self._released = True
            try:
                await self._move({name: -tokens for name, tokens in self._held.items() if tokens})
            except OutcomeUnknownError:
                self._held.clear()
                raise
            except StoreError:
                self._released = False  # surely not applied: it can be tried again
                raise
            self._held.clear()

    async def _move(self, delta: Mapping[str, int]) -> Mapping[str, int]:
        """Take these tokens from the buckets of the lease; those below zero are given back.

        Returns how much was really taken.
        """
        return await self._workers.move(self._debits, delta)

    def _note(self, taken: Mapping[str, int]) -> None:
        for name, tokens in taken.items():
            self._held[name] = self._held.get(name, 0) + tokens


class RecordedAccount:
    """The account of a lease with a name; it knows the record as it was last seen."""

    def __init__(self, workers: Workers, record: LeaseRecord) -> None:
        self._workers = workers
        self._record = record

    @property
    def held(self) -> Mapping[str, int]:
        return {} if self._record.released else dict(self._record.held)

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, or give some back; applied once for the same id, from any instance."""
        mark = mark_of(adjustment_id or str(uuid.uuid4()), delta)
        self._note(await self._workers.adjust(self._record, delta, mark))

    async def release(self) -> None:
        """Give everything back; applied once, from any instance."""
        self._note(await self._workers.release(self._record))

    def _note(self, record: LeaseRecord) -> None:
        self._record = newer_record(record, self._record)


class EmptyAccount:
    """The account of a lease that was granted because the store did not answer. It is empty."""

    @property
    def held(self) -> Mapping[str, int]:
        return {}

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Change nothing, since no bucket was debited."""
        del delta, adjustment_id

    async def release(self) -> None:
        """Give nothing back, for that would make tokens."""


LeaseAccount: TypeAlias = UnnamedAccount | RecordedAccount | EmptyAccount
"""What one lease holds."""
