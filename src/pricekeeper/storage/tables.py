"""The tables: the one source for their creation, for deployment templates and for tests.

A table has a string partition key ``PK``, most have a string sort key ``SK``. With ``expires``,
readers lose an item at its ``expires_at_epoch`` (seconds); the store removes it later.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage.values import (
    PARTITION_KEY,
    PARTITION_KEY_BYTES_MAX,
    SORT_KEY,
    SORT_KEY_BYTES_MAX,
    Value,
    text_bytes,
)


class Key(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The key of an item. ``sk`` is ``None`` in a table without sort key."""

    pk: str
    sk: str | None = None

    @property
    def attributes(self) -> dict[str, Value]:
        if self.sk is None:
            return {PARTITION_KEY: self.pk}
        return {PARTITION_KEY: self.pk, SORT_KEY: self.sk}


class Table(msgspec.Struct, frozen=True):
    """A table's name and shape."""

    name: str
    sorted: bool = True
    expires: bool = True

    def key_of(self, item: dict[str, Value]) -> Key:
        pk, sk = item.get(PARTITION_KEY), item.get(SORT_KEY)
        if type(pk) is not str or (sk is not None and type(sk) is not str):
            raise InvalidOperationError(f"{self.name}: an item's key attributes are strings")
        return self.checked(Key(pk, sk))

    def checked(self, key: Key) -> Key:
        pk, sk = key.pk, key.sk
        if (sk is not None) is not self.sorted:
            wants = "PK and SK" if self.sorted else "PK alone"
            raise InvalidOperationError(f"{self.name}: a key of this table is {wants}")
        if not pk.isascii() or not 0 < len(pk) <= PARTITION_KEY_BYTES_MAX:
            self._check_text(PARTITION_KEY, pk, PARTITION_KEY_BYTES_MAX)
        if sk is not None and (not sk.isascii() or not 0 < len(sk) <= SORT_KEY_BYTES_MAX):
            self._check_text(SORT_KEY, sk, SORT_KEY_BYTES_MAX)
        return key

    def _check_text(self, name: str, text: str, bytes_max: int) -> None:
        if not 0 < text_bytes(text) <= bytes_max:
            raise InvalidOperationError(f"{self.name}: {name} must have 1 to {bytes_max} bytes")


CONFIG: Final = Table("Config", expires=False)
STICKY_STATE: Final = Table("StickyState")
USAGE_AGG_SHARDED: Final = Table("UsageAggSharded")
DAILY_TOTAL: Final = Table("DailyTotal")
PRICING_CACHE: Final = Table("PricingCache")
REVOKED_TOKENS: Final = Table("RevokedTokens", sorted=False)
SECRET_RETRIEVAL_TOKENS: Final = Table("SecretRetrievalTokens", sorted=False)
REQUEST_DEDUP: Final = Table("RequestDedup", sorted=False)
SESSIONS: Final = Table("Sessions")
RATE_BUCKETS: Final = Table("RateBuckets")
ALERTS: Final = Table("Alerts")
AUDIT_TRAIL: Final = Table("AuditTrail")
ACTIVITY: Final = Table("Activity")

ALL_TABLES: Final = (
    CONFIG,
    STICKY_STATE,
    USAGE_AGG_SHARDED,
    DAILY_TOTAL,
    PRICING_CACHE,
    REVOKED_TOKENS,
    SECRET_RETRIEVAL_TOKENS,
    REQUEST_DEDUP,
    SESSIONS,
    RATE_BUCKETS,
    ALERTS,
    AUDIT_TRAIL,
    ACTIVITY,
)
