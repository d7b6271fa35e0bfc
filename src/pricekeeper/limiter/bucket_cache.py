"""The buckets as this process last saw them, with the store and the clock that they come from.

A write is planned from the cached bucket and carries the conditions under which it is right: a
wrong guess costs a write, never a token.

If a bucket's ``rf`` is in the future, another clock is ahead. Waiting for it could take days, and
moving ``rf`` back would refill twice. So time is counted from its ``rf``, by our monotonic clock
since the bucket was first seen. That is never ahead of the clock that wrote ``rf``, nor behind our
own, so the bound for clocks that wrong holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff, BoundedCache
from pricekeeper.errors import ContendedError, UnreadableItemError
from pricekeeper.limiter.bucket import Bucket
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import RATE_BUCKETS

ATTEMPTS_MAX: Final = 32
REPLIES_LOST_MAX: Final = 3
SEEN_MAX: Final = 20_000

_AT_ONCE: Final = 3
_BACKOFF: Final = Backoff(2, 64)


class _Seen(NamedTuple):
    """A bucket, when last seen.

    Its time is ahead of our monotonic clock by ``offset_ms`` at least. That is used only if the
    bucket is ``ahead`` of our wall clock, or was and has not been brought back since.
    """

    bucket: Bucket
    offset_ms: int
    ahead: bool


class BucketCache:
    """The buckets of one store that one process has seen."""

    def __init__(
        self, store: Store, *, clock: Clock, meter: LimiterMeter, jitter: Callable[[int], int]
    ) -> None:
        self.store = store
        self.clock = clock
        self.meter = meter
        self.jitter = jitter
        self.seen: BoundedCache[Key, _Seen] = BoundedCache(SEEN_MAX)

    def remember(self, key: Key, bucket: Bucket | None) -> None:
        """``None`` removes the bucket."""
        if bucket is None:
            self.seen.pop(key)
            return
        before, refilled_ms = self.seen.peek(key), bucket.refilled_at_ms
        if before is not None and refilled_ms == before.bucket.refilled_at_ms:
            self.seen.put(key, _Seen(bucket, before.offset_ms, before.ahead))
            return
        offset_ms = refilled_ms - self.clock.monotonic_ms()
        ahead = refilled_ms > self.clock.now_ms()
        if before is not None and refilled_ms > before.bucket.refilled_at_ms:
            offset_ms, ahead = max(offset_ms, before.offset_ms), ahead or before.ahead
        self.seen.put(key, _Seen(bucket, offset_ms, ahead))

    def note(self, key: Key, item: Mapping[str, Any] | None) -> Bucket | None:
        try:
            bucket = bucket_of(item)
        except UnreadableItemError:
            self.remember(key, None)
            raise
        self.remember(key, bucket)
        return bucket

    async def read(self, keys: Collection[Key]) -> dict[Key, UnreadableItemError]:
        errors: dict[Key, UnreadableItemError] = {}
        if keys:
            items = await self.store.batch_get([(RATE_BUCKETS, key) for key in keys])
            for key, item in zip(keys, items, strict=True):
                try:
                    self.note(key, item)
                except UnreadableItemError as error:
                    errors[key] = error
        return errors

    def read_now(self, key: Key, now_ms: int) -> tuple[Bucket | None, int]:
        """The bucket, if it is known, and the time that counts for it."""
        seen = self.seen.peek(key)
        if seen is None:
            return None, now_ms
        bucket, refilled_ms = seen.bucket, seen.bucket.refilled_at_ms
        if refilled_ms <= now_ms and not seen.ahead:
            return bucket, now_ms
        if not seen.ahead:
            self.seen.put(key, seen._replace(ahead=True))
        return bucket, max(now_ms, refilled_ms, seen.offset_ms + self.clock.monotonic_ms())

    async def pause(self, attempt: int) -> bool:
        """Wait before an attempt (the first is 0), not at first, then ever longer; if it did."""
        if attempt < _AT_ONCE:
            return False
        await self.clock.sleep_ms(_BACKOFF.pause_ms(attempt - _AT_ONCE + 1, self.jitter))
        return True

    def contended(self, key: Key) -> ContendedError:
        return ContendedError(f"{key.pk} {key.sk}: others changed the bucket {ATTEMPTS_MAX} times")
