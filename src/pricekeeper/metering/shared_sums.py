"""Live sums that callers share, so that asking often costs what asking once does.

To sum a scope reads what its organisation has posted in the last minutes. Callers who ask while a
sum is being made get its result, and it is used again for `REUSE_MS` from the moment it began.

But a caller never gets a sum that lacks what this process counted before it asked: an app that
records a call and asks then finds it. A sum that is under way and lacks it is waited for, and the
next one serves everybody who has come meanwhile. So at most one sum of a scope is under way. What
other processes counted is seen within `REUSE_MS`.

Bound: `SCOPES_MAX` scopes; beyond that the one that was summed longest ago is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.metering.counters import Total
from pricekeeper.metering.totals import TotalsReader
from pricekeeper.values import ModelLabel

REUSE_MS: Final = 1_000
RECORDS_PER_MS: Final = 5
"""A sum that read many records is used again for a while even though this process has counted more
since: so sums read at most so many records a millisecond, however busy a scope is."""
SCOPES_MAX: Final = 10_000


class _ScopeSum:
    """One sum of a scope, made or being made."""

    __slots__ = ("began_at_ms", "day", "number", "outdated", "records", "task")

    def __init__(
        self, number: int, day: str, began_at_ms: int, task: asyncio.Task[dict[ModelLabel, Total]]
    ) -> None:
        self.number = number
        self.day = day
        self.began_at_ms = began_at_ms
        """On the monotonic clock."""
        self.task = task
        self.records = 0
        """Records that were read while it ran, by it or others."""
        self.outdated = False
        """Whether this process has counted something for the scope since it began."""


class SharedSums:
    """The sums that were made a moment ago or are being made, by scope."""

    def __init__(self, reader: TotalsReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._sums: BoundedCache[str, _ScopeSum] = BoundedCache(SCOPES_MAX)
        self._begun = 0

    async def read_totals(self, scope_key: str, day: str) -> Mapping[ModelLabel, Total]:
        """What a scope has spent on every label that it has used that day."""
        begun_before = self._begun
        while True:  # ends: a sum that begins after we came serves us
            known = self._sums.peek(scope_key)
            if known is None or known.day != day:
                return await asyncio.shield(self._begin(scope_key, day).task)
            if known.number > begun_before or self._is_fresh(known):
                return await asyncio.shield(known.task)
            if known.task.done():
                return await asyncio.shield(self._begin(scope_key, day).task)
            await asyncio.wait([known.task])

    def note_counted(self, scope_key: str) -> None:
        """This process has counted something for the scope: older sums lack it."""
        known = self._sums.peek(scope_key)
        if known is not None:
            known.outdated = True

    def _is_fresh(self, known: _ScopeSum) -> bool:
        age_ms = self._clock.monotonic_ms() - known.began_at_ms
        if known.outdated:
            return known.task.done() and age_ms < known.records // RECORDS_PER_MS - REUSE_MS
        return not known.task.done() or age_ms < REUSE_MS

    def _begin(self, scope_key: str, day: str) -> _ScopeSum:
        # A task of its own, so that the caller who happened to be first can be cancelled
        # without taking the others along.
        self._begun += 1
        task = asyncio.create_task(self._reader.read_active(scope_key, day), name="pricekeeper-sum")
        made = _ScopeSum(self._begun, day, self._clock.monotonic_ms(), task)
        made.records = -self._reader.records_read
        self._sums.put(scope_key, made)
        task.add_done_callback(lambda done: self._note_end(scope_key, made, done))
        return made

    def _note_end(
        self, scope_key: str, made: _ScopeSum, task: asyncio.Task[dict[ModelLabel, Total]]
    ) -> None:
        """Forget a sum that failed. Everybody who waited may be gone: asyncio wants it seen."""
        made.records += self._reader.records_read
        failed = task.cancelled() or task.exception() is not None
        if failed and self._sums.peek(scope_key) is made:
            self._sums.pop(scope_key)
