"""How soon a worker may send again to buckets that other processes write to as well.

DynamoDB cancels a transaction that meets another one on an item, and the store sends it again after
a pause that grows with every conflict. Whoever was not cancelled does not pause, so a process that
sent back to back would keep the others out until they give up. Hence after a transaction its
worker leaves the buckets alone for a random time, of the order of a quick transaction.

That lets others in. After a batch that met others the time is longer, so that all of them together
do not send most of the time. Its bound is `ROOM_MS_MAX` then, and shrinks with every batch that met
nobody, down to what a quick transaction takes.
The store does not tell of conflicts that it has waited out, but they show in how long a transaction
took, compared with the quickest of late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from pricekeeper.concurrency import BoundedCache
from pricekeeper.storage import Key

ROOM_MS_MAX: Final = 192
"""The longest that buckets are left to other processes; it is half of that on average."""
SHRINKING: Final = 16
"""A batch that met nobody shrinks the bound by one part in 16."""
QUICK_FACTOR: Final = 3
"""The least bound: so many times as long as the quickest transaction of late took."""
SLOW_FACTOR: Final = 2
SLOW_MS: Final = 8
"""A transaction met others if it took this much longer than so many times the quickest one."""
RECENT_MAX: Final = 64
"""Transactions among which the quickest is looked for."""
CHAINS_MAX: Final = 10_000
"""Chains whose bounds are remembered."""


class Pacer:
    """The bounds of all chains on which this process has met others."""

    def __init__(self, jitter: Callable[[int], int]) -> None:
        self._jitter = jitter
        self._rooms: BoundedCache[Key, tuple[int, int]] = BoundedCache(CHAINS_MAX)
        """By chain: the bound, and until when its buckets are left alone."""
        self._recent_ms: deque[int] = deque(maxlen=RECENT_MAX)

    def wait_ms(self, chain: Key, now_ms: int) -> int:
        """For how long the buckets of that chain are still to be left alone."""
        room = self._rooms.peek(chain)
        return 0 if room is None else max(0, room[1] - now_ms)

    def note(self, chain: Key, took_ms: int, now_ms: int) -> None:
        """Take note of a batch whose slowest transaction took so long."""
        quickest_ms = min(self._recent_ms, default=took_ms)
        self._recent_ms.append(took_ms)
        bound_ms = (self._rooms.peek(chain) or (0, 0))[0]
        if took_ms > SLOW_FACTOR * quickest_ms + SLOW_MS:
            bound_ms = ROOM_MS_MAX
        else:
            bound_ms -= -(-bound_ms // SHRINKING)
        bound_ms = min(ROOM_MS_MAX, max(bound_ms, QUICK_FACTOR * min(took_ms, quickest_ms)))
        if bound_ms:
            self._rooms.put(chain, (bound_ms, now_ms + self._jitter(bound_ms + 1)))
        else:
            self._rooms.pop(chain)
