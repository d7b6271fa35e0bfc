"""What this process knows of the totals under its answers: read now and then, beside the answers.

The first answer of an account waits for its total. From then on the total that was read last is
shown with what this process has counted since (`metering.running`), and a newer one is read when
that one is `REFRESH_MS` old: one read at a time, for all accounts that want one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreError
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.running import RunningTotals
from pricekeeper.metering.totals import TotalsReader

REFRESH_MS: Final = 30_000
"""How old the total under an answer may get before a newer one is read, beside the answer."""
WAIT_MS: Final = 1_000
"""How long an answer waits for a total at each of two attempts."""


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
        """Add what was committed just now."""
        self._running.count(account, counters, self._clock.now_ms())

    def total(self, account: Account) -> Total | None:
        """What is known of the account; ``None`` if nothing."""
        return self._running.total(account)

    async def wait_for(self, account: Account) -> Total | None:
        """The same; if nothing is known yet, it waits for a read."""
        for _ in range(2):  # a read that is under way may have been begun without it
            total = self._running.total(account)
            if total is not None:
                return total
            self.want(account)
            if self._refreshing is not None:
                await asyncio.wait([self._refreshing], timeout=WAIT_MS / 1000)
        return self._running.total(account)

    def want(self, account: Account) -> bool:
        """Have its total read, unless it was recently; returns whether one is known."""
        age_ms = self._running.age_ms(account, self._clock.monotonic_ms())
        if age_ms is not None and age_ms < REFRESH_MS:
            return True
        if account not in self._being_read:
            self._stale[account] = None
            self._refresh_soon()
        return age_ms is not None

    async def close(self) -> None:
        """Let a read that is under way end."""
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
