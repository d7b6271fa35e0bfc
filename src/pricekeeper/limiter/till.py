"""What everything that writes to buckets shares: the store, the clock, and what was last seen.

A write is planned from what this process last saw of a bucket, and sent without reading
first. That may be out of date, but every write carries the conditions under which it is right:
a wrong guess costs a write, never a token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import ContendedError
from pricekeeper.limiter.bucket import Bucket, Draw
from pricekeeper.limiter.items import bucket_key
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.storage import Key, Store

ATTEMPTS_MAX: Final = 16
"""Writes that may be refused because others came first, before it is called contended."""
SEEN_MAX: Final = 10_000
"""Buckets that a process remembers."""

_AT_ONCE: Final = 3
"""Attempts without a pause before them: most races are over after the second."""
_PAUSE_MS_MAX: Final = 64


class Till:
    """One store's buckets, as one process deals with them."""

    def __init__(
        self, store: Store, *, clock: Clock, meter: LimiterMeter, jitter: Callable[[int], int]
    ) -> None:
        self.store = store
        self.clock = clock
        self.meter = meter
        self._jitter = jitter
        self._seen: OrderedDict[Key, Bucket] = OrderedDict()

    def recall(self, draw: Draw) -> Bucket | None:
        """The bucket as it was last seen here, if it was."""
        key = bucket_key(draw.entity, draw.resource)
        bucket = self._seen.get(key)
        if bucket is not None:
            self._seen.move_to_end(key)
        return bucket

    def remember(self, draw: Draw, bucket: Bucket | None) -> None:
        """Keep what was seen of a bucket; the one not asked for longest makes room."""
        key = bucket_key(draw.entity, draw.resource)
        if bucket is None:
            self._seen.pop(key, None)
            return
        self._seen[key] = bucket
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    async def pause(self, attempt: int) -> None:
        """Wait before an attempt, counted from 0: not at first, then ever longer."""
        if attempt >= _AT_ONCE:
            longest_ms = min(_PAUSE_MS_MAX, 1 << (attempt - _AT_ONCE + 1))
            await self.clock.sleep_ms(self._jitter(longest_ms + 1))

    def contended(self, draw: Draw) -> ContendedError:
        """What to raise when the attempts are used up."""
        return ContendedError(
            f"{draw.entity} {draw.resource}: others changed the bucket {ATTEMPTS_MAX} times"
        )
