"""Limits that each process keeps in memory, for what apps send all day.

They end one client's flood at the gate, before it costs its neighbours anything, and they are so
wide that nobody else meets them. So they need not be exact across processes, and they cost no
store call: kept in the store, they would add up to two writes to a record that is one write. A
client whose requests go to several processes has the limit at each of them.

Each client has a bucket per kind of request, full at first. `CALLERS_MAX` buckets are kept; beyond
that the one that was used longest ago is forgotten, which makes it full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import Violation
from pricekeeper.limiter import Denial, Limit, LimitStatus

CALLERS_MAX: Final = 10_000


class _Balance:
    """What a bucket held at a moment, in the units of its limit."""

    __slots__ = ("as_of_ms", "units")

    def __init__(self, units: int, as_of_ms: int) -> None:
        self.units = units
        self.as_of_ms = as_of_ms


class MemoryLimits:
    """The buckets of one process."""

    def __init__(self, limits: Mapping[str, Limit], callers_max: int = CALLERS_MAX) -> None:
        self._limits = dict(limits)
        self._balances: BoundedCache[tuple[str, str], _Balance] = BoundedCache(callers_max)

    def __contains__(self, kind: object) -> bool:
        return kind in self._limits

    def take(self, kind: str, caller: str, now_ms: int) -> LimitStatus | Denial:
        """Take one request; how the limit stands then, or why it was denied."""
        limit = self._limits[kind]
        balance = self._refill(kind, caller, limit, now_ms)
        missing_units = limit.units_per_token - balance.units
        if missing_units > 0:
            wait_ms = limit.filling_ms(missing_units)
            return Denial((Violation(caller, kind, limit.name, 1, 0, wait_ms),))
        balance.units -= limit.units_per_token
        return _status(limit, balance, now_ms)

    def take_at_once(self, kind: str, caller: str, now_ms: int) -> tuple[int, int] | None:
        """Take one request, as nearly always: what remains, and in how many seconds all is there.

        ``None`` if it is not that simple: `take` does it then, or says why not.
        """
        balance = self._balances.get((kind, caller))
        if balance is None:
            return None
        limit, units = self._limits[kind], balance.units
        if now_ms > balance.as_of_ms:
            units += (now_ms - balance.as_of_ms) * limit.units_per_ms
            units = min(units, limit.capacity_units)
        units -= limit.units_per_token
        if units < 0:
            return None
        balance.units, balance.as_of_ms = units, now_ms
        full_in_ms = -((units - limit.capacity_units) // limit.units_per_ms)
        return units // limit.units_per_token, -(-full_in_ms // 1000)

    def refill_and_get_status(self, kind: str, caller: str, now_ms: int) -> LimitStatus:
        """How the limit stands, without taking anything."""
        limit = self._limits[kind]
        return _status(limit, self._refill(kind, caller, limit, now_ms), now_ms)

    def _refill(self, kind: str, caller: str, limit: Limit, now_ms: int) -> _Balance:
        """Refill the bucket up to now. A clock that was set back refills nothing."""
        balance = self._balances.get((kind, caller))
        if balance is None:
            balance = _Balance(limit.capacity_units, now_ms)
            self._balances.put((kind, caller), balance)
            return balance
        refill_units = max(0, now_ms - balance.as_of_ms) * limit.units_per_ms
        balance.units = min(limit.capacity_units, balance.units + refill_units)
        balance.as_of_ms = now_ms
        return balance


def _status(limit: Limit, balance: _Balance, now_ms: int) -> LimitStatus:
    remaining = balance.units // limit.units_per_token
    full_at_ms = now_ms + limit.filling_ms(limit.capacity_units - balance.units)
    return LimitStatus(limit, remaining, full_at_ms, 0)
