"""Policies that were read a moment ago, so that a warm client costs no store call.

A policy is kept for `POLICY_AGE_MS_MAX` from the moment its read began. Half a minute
rather than the whole one that settings would bear, because a policy also says whether a
client still stands, and that must be known everywhere within thirty seconds.

A change that this instance makes is seen by it at once: the change forgets what it touched,
and a read that was under way meanwhile may have missed it, so its answer is not kept.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.tenants.client import Client
from pricekeeper.tenants.policy import Policy

POLICY_AGE_MS_MAX: Final = 30_000
POLICIES_MAX: Final = 10_000

Reading: TypeAlias = tuple[int, int]
"""The moment a read began: what had changed by then, and until when its answer is good."""


class PolicyCache:
    """The policies used last, at most ``entries_max`` of them."""

    def __init__(self, clock: Clock, entries_max: int = POLICIES_MAX) -> None:
        self._clock = clock
        self._entries: BoundedCache[Client, tuple[int, Policy]] = BoundedCache(entries_max)
        self._changes = 0

    def get(self, client: Client) -> Policy | None:
        """What is known of the client and still young enough."""
        entry = self._entries.get(client)
        if entry is None:
            return None
        good_until_ms, policy = entry
        if self._clock.monotonic_ms() >= good_until_ms:
            self._entries.pop(client)
            return None
        return policy

    @property
    def changes(self) -> int:
        """How many changes were made here: a read from before one may have missed it."""
        return self._changes

    def reading(self) -> Reading:
        """Call this before a read, and hand the result to `keep` with what was read."""
        return self._changes, self._clock.monotonic_ms() + POLICY_AGE_MS_MAX

    def keep(self, policy: Policy, reading: Reading) -> None:
        """Remember what was read, unless something changed while it was being read."""
        changes, good_until_ms = reading
        if changes != self._changes:
            return
        self._entries.put(policy.client, (good_until_ms, policy))

    def drop(self, client: Client) -> None:
        """The client was read, and is no more."""
        self._entries.pop(client)

    def forget(self, client: Client) -> None:
        """The client was changed: an organisation takes the policies of its apps with it."""
        self._changes += 1
        self._entries.pop(client)
        if client.app_id is None:
            for known in [known for known in self._entries if known.org_id == client.org_id]:
                self._entries.pop(known)
