"""What the workers of a process share: the store, and accounts and buckets as they were last seen.

Bounds: `SEEN_MAX` items of accounts, as many buckets, and as many organisations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Final

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.books import Balances, BucketKey
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.pace import Pace
from pricekeeper.authorizations.regions import Regions
from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import balances_of
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.limiter.bucket import Bucket
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.metering.journal import new_sheet
from pricekeeper.metering.posting import Poster
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import RATE_BUCKETS

SEEN_MAX: Final = 20_000
NONCE_BYTES: Final = 6


class Desk:
    """The store, and what was seen of it."""

    def __init__(
        self, store: Store, clock: Clock, poster: Poster, random: Random, meter: AuthorizationMeter
    ) -> None:
        self.store = store
        self.clock = clock
        self.poster = poster
        self.regions = Regions(store, clock, poster.retention_days)
        self.random = random
        self.meter = meter
        self.give_up: Callable[[str, Authorization], None] = lambda *_: None
        """What to do with a grant that nobody has been told of."""
        self._accounts: BoundedCache[Key, Balances] = BoundedCache(SEEN_MAX)
        self._buckets: BoundedCache[BucketKey, Bucket] = BoundedCache(SEEN_MAX)
        self._paces: BoundedCache[str, Pace] = BoundedCache(SEEN_MAX)

    def new_nonce(self) -> bytes:
        """By which a command knows its own write again: no secret, but never the same twice."""
        return self.random.randbytes(NONCE_BYTES)

    def new_sheet(self) -> str:
        """The sort key of a sheet that begins now."""
        return new_sheet(self.clock.now_ms(), self.random.getrandbits(62))

    def pace_of(self, org_id: str) -> Pace:
        """How soon the worker of an organisation sends its next transaction."""
        pace = self._paces.get(org_id)
        if pace is None:
            pace = Pace()
            self._paces.put(org_id, pace)
        return pace

    async def recall(
        self, keys: Collection[Key], buckets: Collection[BucketKey]
    ) -> tuple[dict[Key, Balances | None], dict[BucketKey, Bucket | None], bool]:
        """These accounts and buckets, and whether all of them were read just now.

        What was not seen before, or is not there, is read.
        """
        items: dict[Key, Balances | None] = {key: self._accounts.get(key) for key in keys}
        seen: dict[BucketKey, Bucket | None] = {key: self._buckets.get(key) for key in buckets}
        missing = [key for key, item in items.items() if item is None]
        unseen = [key for key, bucket in seen.items() if bucket is None]
        if missing or unseen:
            found = await self.store.batch_get(
                [
                    *((RATE_BUCKETS, key) for key in missing),
                    *((RATE_BUCKETS, bucket_key(*key)) for key in unseen),
                ]
            )
            for key, item in zip(missing, found, strict=False):
                items[key] = self.note_item(key, item)
            for bucket, item in zip(unseen, found[len(missing) :], strict=True):
                seen[bucket] = bucket_of(item)
                self.note_bucket(bucket, seen[bucket])
        return items, seen, len(missing) == len(items) and len(unseen) == len(seen)

    def note_item(self, key: Key, item: Mapping[str, Any] | None) -> Balances | None:
        """Remember the accounts of an item as they are now."""
        balances = balances_of(item)
        if balances is None:
            self._accounts.pop(key)
        else:
            self._accounts.put(key, balances)
        return balances

    def note_changes(self, key: Key, changes: Mapping[str, Balance]) -> None:
        """Remember what was added to accounts of an item, if it was seen."""
        before = self._accounts.peek(key)
        if before is not None:
            after = dict(before)
            for name, change in changes.items():
                balance = before.get(name)
                if isinstance(balance, Balance):
                    after[name] = balance + change
            self._accounts.put(key, after)

    def note_bucket(self, key: BucketKey, bucket: Bucket | None) -> None:
        """Remember a bucket as it is now."""
        if bucket is None:
            self._buckets.pop(key)
        else:
            self._buckets.put(key, bucket)

    def seen_balances(self, key: Key) -> Balances | None:
        """The accounts of an item as they were last seen."""
        return self._accounts.peek(key)

    def seen_bucket(self, key: BucketKey) -> Bucket | None:
        """The bucket as it was last seen."""
        return self._buckets.peek(key)

    def forget(self, items: Collection[object]) -> None:
        """Read these anew, which are keys of items or of buckets."""
        for one in items:
            if isinstance(one, Key):
                self._accounts.pop(one)
            elif isinstance(one, tuple):
                self._buckets.pop((one[0], one[1]))
