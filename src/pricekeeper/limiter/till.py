"""What everything that writes to buckets shares: the store, the clock, and what was last seen.

A write is planned from what this process last saw of a bucket, and sent without reading
first. That may be out of date, but every write carries the conditions under which it is right:
a wrong guess costs a write, never a token.

A bucket that was refilled further in the future than clocks may differ was refilled by a clock
that had leapt, or ours has. Waiting for ours to get there could take days, and moving ``rf`` back
would refill the difference once more if it is ours that is wrong. So for such a bucket time goes
on from its ``rf``: by as much as has passed here, on the monotonic clock, since it was first seen
there. Such a reading is never ahead of the clock that wrote ``rf``, nor behind our own. Hence no
more is admitted than what the bound allows for clocks that are wrong by that much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, full_jitter_ms
from pricekeeper.errors import ContendedError
from pricekeeper.limiter.bucket import Bucket, Draw, is_ahead
from pricekeeper.limiter.items import bucket_key
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.storage import Key, Store

ATTEMPTS_MAX: Final = 16
"""Writes that may be refused because others came first, before it is called contended."""
SEEN_MAX: Final = 10_000
"""Buckets that a process remembers."""

_AT_ONCE: Final = 3
"""Attempts without a pause before them: most races are over after the second."""
_PAUSE_MS_FIRST: Final = 2
_PAUSE_MS_MAX: Final = 64


class _Seen(NamedTuple):
    """A bucket as it was last seen.

    ``offset_ms`` is by how much its time is ahead of our monotonic clock, at the least. That
    counts where it is ``ahead`` of the wall clock, or once was and has not been brought back.
    """

    bucket: Bucket
    offset_ms: int
    ahead: bool


class Till:
    """One store's buckets, as one process deals with them."""

    def __init__(
        self, store: Store, *, clock: Clock, meter: LimiterMeter, jitter: Callable[[int], int]
    ) -> None:
        self.store = store
        self.clock = clock
        self.meter = meter
        self._jitter = jitter
        self._seen: BoundedCache[Key, _Seen] = BoundedCache(SEEN_MAX)
        self._some_ahead = False
        """Whether any bucket was ever seen ahead: else there is no need to look for one."""

    def recall(self, draw: Draw) -> Bucket | None:
        """The bucket as it was last seen here, if it was."""
        seen = self._seen.get(bucket_key(draw.entity, draw.resource))
        return None if seen is None else seen.bucket

    def remember(self, draw: Draw, bucket: Bucket | None) -> None:
        """Keep what was seen of a bucket; the one not asked for longest makes room."""
        key = bucket_key(draw.entity, draw.resource)
        if bucket is None:
            self._seen.pop(key)
            return
        offset_ms = bucket.refilled_at_ms - self.clock.monotonic_ms()
        ahead, before = is_ahead(bucket, self.clock.now_ms()), self._seen.peek(key)
        if before is not None and bucket.refilled_at_ms >= before.bucket.refilled_at_ms:
            offset_ms, ahead = max(offset_ms, before.offset_ms), ahead or before.ahead
        self._seen.put(key, _Seen(bucket, offset_ms, ahead))
        self._some_ahead = self._some_ahead or ahead

    def reading_ms(self, draw: Draw, bucket: Bucket | None, now_ms: int, monotonic_ms: int) -> int:
        """What time it is for the bucket when our clocks show that."""
        ahead = bucket is not None and is_ahead(bucket, now_ms)
        if bucket is None or not (ahead or self._some_ahead):
            return now_ms
        seen = self._seen.peek(bucket_key(draw.entity, draw.resource))
        if seen is None or seen.bucket.refilled_at_ms != bucket.refilled_at_ms:
            return bucket.refilled_at_ms if ahead else now_ms
        if not ahead and not seen.ahead:
            return now_ms
        return max(now_ms, bucket.refilled_at_ms, seen.offset_ms + monotonic_ms)

    def read_clock_ms(self, draw: Draw, bucket: Bucket | None) -> int:
        """What time it is for the bucket now."""
        return self.reading_ms(draw, bucket, self.clock.now_ms(), self.clock.monotonic_ms())

    async def pause(self, attempt: int) -> None:
        """Wait before an attempt, counted from 0: not at first, then ever longer."""
        if attempt >= _AT_ONCE:
            pause_ms = full_jitter_ms(
                attempt - _AT_ONCE + 1,
                first_ms=_PAUSE_MS_FIRST,
                longest_ms=_PAUSE_MS_MAX,
                randbelow=self._jitter,
            )
            await self.clock.sleep_ms(pause_ms)

    def contended(self, draw: Draw) -> ContendedError:
        """What to raise when the attempts are used up."""
        return ContendedError(
            f"{draw.entity} {draw.resource}: others changed the bucket {ATTEMPTS_MAX} times"
        )
