"""Limits in memory for the requests that apps send all day.

They stop one client's flood without a store call, so each process has the limit for itself. Each
client has a bucket per kind of request, full at first. Of more than `CALLERS_MAX`, the least
recently used one is dropped, which makes it full again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import Violation
from pricekeeper.limiter import Limit

CALLERS_MAX: Final = 10_000


@dataclass(slots=True)
class _Balance:
    """In the units of its limit."""

    units: int
    as_of_ms: int


class MemoryLimits:
    """The buckets of one process."""

    def __init__(self, limits: Mapping[str, Limit], callers_max: int = CALLERS_MAX) -> None:
        self._limits = dict(limits)
        self._balances: BoundedCache[tuple[str, str], _Balance] = BoundedCache(callers_max)

    def take(self, kind: str, caller: str, now_ms: int, count: int = 1) -> tuple[int, int] | None:
        """Take ``count`` requests: how many remain, and the seconds until the bucket is full.

        ``None`` if too few are left: then nothing is taken. A count of 0 only looks.
        """
        limit, balance = self._limits[kind], self._balances.get((kind, caller))
        if balance is None:
            balance = _Balance(limit.capacity_units, now_ms)
            self._balances.put((kind, caller), balance)
        units = balance.units
        if now_ms > balance.as_of_ms:
            units += (now_ms - balance.as_of_ms) * limit.units_per_ms
            units = min(units, limit.capacity_units)
        left = units - count * limit.units_per_token
        balance.units, balance.as_of_ms = units if left < 0 else left, now_ms
        if left < 0:
            return None
        full_in_ms = -((left - limit.capacity_units) // limit.units_per_ms)
        return left // limit.units_per_token, -(-full_in_ms // 1000)

    def violation(self, kind: str, caller: str) -> Violation:
        limit, balance = self._limits[kind], self._balances.get((kind, caller))
        units = limit.units_per_token - (balance.units if balance else 0)
        return Violation(caller, kind, limit.name, 1, 0, limit.filling_ms(units))
