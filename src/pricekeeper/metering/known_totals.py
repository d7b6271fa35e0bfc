"""The totals under this process's answers, refreshed beside the answers.

An answer shows the last total read plus what this process has counted since. Only the first one of
an account waits; a total older than `REFRESH_MS` is read again, one read at a time for all. The sum
is an estimate, never stored: around the moment of the total, records can be counted twice or not
yet, and records of other instances appear with the next total.

Bounds: `ACCOUNTS_MAX` accounts, the least recently counted are evicted first, and `SLICES_MAX`
slices of time in each.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import StoreError
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total
from pricekeeper.metering.totals import TotalsReader

REFRESH_MS: Final = 30_000
WAIT_MS: Final = 1_000
"""For a total, at each of two attempts."""


class KnownTotals:
    """The totals of the accounts that this process counts for."""

    def __init__(self, reader: TotalsReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._running = RunningTotals()
        self._stale: dict[Account, None] = {}
        self._being_read: dict[Account, None] = {}
        self._refreshing: asyncio.Task[None] | None = None

    def count(self, account: Account, counters: Counters) -> None:
        self._running.count(account, counters, self._clock.now_ms())

    def total(self, account: Account) -> Total | None:
        return self._running.total(account)

    async def wait_for(self, account: Account) -> Total | None:
        """The known total, waiting for a read if there is none."""
        for _ in range(2):  # a read that is under way may have been begun without it
            total = self._running.total(account)
            if total is not None:
                return total
            self.want(account)
            if self._refreshing is not None:
                await asyncio.wait([self._refreshing], timeout=WAIT_MS / 1000)
        return self._running.total(account)

    def want(self, account: Account) -> Total | None:
        """The known total, which is refreshed unless it is recent."""
        age_ms = self._running.age_ms(account, self._clock.monotonic_ms())
        is_old = age_ms is None or age_ms >= REFRESH_MS
        if is_old and account not in self._being_read:
            self._stale[account] = None
            self._refresh_soon()
        return self._running.total(account)

    async def close(self) -> None:
        while self._refreshing is not None:  # one more at most: nothing new is wanted now
            await asyncio.wait([self._refreshing])

    def _refresh_soon(self) -> None:
        if self._stale and self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="pricekeeper-totals")
            self._refreshing.add_done_callback(self._end_refresh)

    def _end_refresh(self, _: asyncio.Task[None]) -> None:
        self._refreshing = None
        self._being_read = {}
        self._refresh_soon()

    async def _refresh(self) -> None:
        accounts = self._being_read = self._stale
        self._stale = {}
        asked_at_ms = self._clock.monotonic_ms()
        try:
            readings = await self._reader.read(accounts, consistent=False)
        except StoreError:
            return  # answers go without, or with an older one; the next record asks again
        for account, total in readings.totals.items():
            self._running.rebase(account, total, asked_at_ms)


ACCOUNTS_MAX: Final = 10_000
SLICES_MAX: Final = 128
SLICE_MS: Final = 1_000


class _Slice(msgspec.Struct):
    last_ms: int
    counters: Counters


class _Running:
    """One account: the last total read, and the counters since, by slices of time."""

    __slots__ = ("asked_at_ms", "base", "own", "slices", "total")

    def __init__(self) -> None:
        self.base: Total | None = None
        self.asked_at_ms = 0
        self.own = NOTHING
        self.slices: list[_Slice] = []
        self.total: Total | None = None

    def add(self, counters: Counters, now_ms: int) -> None:
        self.own += counters
        self.total = None
        last = self.slices[-1] if self.slices else None
        if last is not None and now_ms // SLICE_MS == last.last_ms // SLICE_MS:
            last.last_ms = now_ms
            last.counters += counters
            return
        self.slices.append(_Slice(now_ms, counters))
        if len(self.slices) > SLICES_MAX:
            oldest, second = self.slices[:2]
            self.slices[:2] = [_Slice(second.last_ms, oldest.counters + second.counters)]

    def rebase(self, total: Total) -> None:
        self.base, self.total = total, None
        self.slices = [one for one in self.slices if one.last_ms > total.as_of_ms]
        self.own = sum((one.counters for one in self.slices), NOTHING)


class RunningTotals:
    """The accounts that this process counts for."""

    def __init__(self) -> None:
        self._accounts: BoundedCache[Account, _Running] = BoundedCache(ACCOUNTS_MAX)

    def count(self, account: Account, counters: Counters, now_ms: int) -> None:
        self._recent(account).add(counters, now_ms)

    def rebase(self, account: Account, total: Total, asked_at_ms: int) -> None:
        """Replace the base total. ``asked_at_ms`` is monotonic; the total's moment is wall time."""
        running = self._recent(account)
        running.asked_at_ms = asked_at_ms
        running.rebase(total)

    def total(self, account: Account) -> Total | None:
        running = self._accounts.peek(account)
        if running is None or running.base is None:
            return None
        if running.total is None:
            running.total = Total.of(running.base + running.own, running.base.as_of_ms)
        return running.total

    def age_ms(self, account: Account, now_monotonic_ms: int) -> int | None:
        running = self._accounts.peek(account)
        if running is None or running.base is None:
            return None
        return now_monotonic_ms - running.asked_at_ms

    def _recent(self, account: Account) -> _Running:
        running = self._accounts.peek(account) or _Running()
        self._accounts.put(account, running)
        return running
