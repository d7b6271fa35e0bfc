"""The admin keys that were used last, as they were read at most half a minute ago.

So a key that is deleted or rotated elsewhere stops counting here within `KEY_AGE_MS_MAX`. What
this instance changes it forgets at once, and a read that was under way meanwhile is not kept.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pricekeeper.admin_keys.items import StoredKey
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache

KEY_AGE_MS_MAX: Final = 30_000
KEYS_MAX: Final = 1_000

Reading: TypeAlias = tuple[int, int]
"""The moment a read began: how much had changed here by then, and until when it is good."""


class KeyCache:
    """At most `KEYS_MAX` keys; those that do not exist are not remembered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: BoundedCache[str, tuple[int, StoredKey]] = BoundedCache(KEYS_MAX)
        self.changes = 0
        """How many changes were made here: a read from before one may have missed it."""

    def get(self, key_id: str) -> StoredKey | None:
        """The key, if it was read recently enough."""
        entry = self._entries.get(key_id)
        if entry is None:
            return None
        good_until_ms, stored = entry
        if self._clock.monotonic_ms() >= good_until_ms:
            self._entries.pop(key_id)
            return None
        return stored

    def reading(self) -> Reading:
        """Call this before a read, and hand the result to `keep` with what was read."""
        return self.changes, self._clock.monotonic_ms() + KEY_AGE_MS_MAX

    def keep(self, stored: StoredKey, reading: Reading) -> None:
        """Remember the key, unless something changed here while it was being read."""
        changes, good_until_ms = reading
        if changes == self.changes:
            self._entries.put(stored.key.key_id, (good_until_ms, stored))

    def replace(self, stored: StoredKey) -> None:
        """Remember more of a key that is remembered; it gets no older by that, and no younger."""
        entry = self._entries.peek(stored.key.key_id)
        if entry is not None and entry[1].rotations == stored.rotations:
            self._entries.put(stored.key.key_id, (entry[0], stored))

    def forget(self, key_id: str) -> None:
        """Remove a key that was changed here."""
        self.changes += 1
        self._entries.pop(key_id)
