"""Today's total as this process knows it, without a read for every record.

The last `Total` that was read, plus what this process has counted since the moment up to which
that total is complete. So the answer to a record contains the record itself and what went before it
here; what other instances counted since that moment comes with the next total.

It is an estimate for showing and for guidance, and never stored. Around the moment of the
total, and by as much as the clocks of the instances differ, records can be in it twice or not
yet; the next total puts that right.

Bounds: `ACCOUNTS_MAX` accounts, the least recently counted go first, and `SLICES_MAX` slices of
time in each.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.concurrency import BoundedCache
from pricekeeper.metering.counters import NOTHING, Account, Counters, Total

ACCOUNTS_MAX: Final = 10_000
SLICES_MAX: Final = 128
SLICE_MS: Final = 1_000


class _Slice(msgspec.Struct):
    last_ms: int
    counters: Counters


class _Running:
    """One account: the total read last, and what was counted here since, by slices of time."""

    __slots__ = ("asked_at_ms", "base", "own", "slices", "total")

    def __init__(self) -> None:
        self.base: Total | None = None
        self.asked_at_ms = 0
        self.own = NOTHING
        self.slices: list[_Slice] = []
        self.total: Total | None = None
        """What both come to, once somebody has asked."""

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
        """Add what was committed just now."""
        self._recent(account).add(counters, now_ms)

    def rebase(self, account: Account, total: Total, asked_at_ms: int) -> None:
        """Stand on this total from now on; ``asked_at_ms`` is monotonic, the total's is not."""
        running = self._recent(account)
        running.asked_at_ms = asked_at_ms
        running.rebase(total)

    def total(self, account: Account) -> Total | None:
        """The estimate; ``None`` if there is no total yet to stand on."""
        running = self._accounts.peek(account)
        if running is None or running.base is None:
            return None
        if running.total is None:
            running.total = Total.of(running.base + running.own, running.base.as_of_ms)
        return running.total

    def age_ms(self, account: Account, now_monotonic_ms: int) -> int | None:
        """How long ago its total was read; ``None`` if never."""
        running = self._accounts.peek(account)
        if running is None or running.base is None:
            return None
        return now_monotonic_ms - running.asked_at_ms

    def _recent(self, account: Account) -> _Running:
        running = self._accounts.peek(account) or _Running()
        self._accounts.put(account, running)
        return running
