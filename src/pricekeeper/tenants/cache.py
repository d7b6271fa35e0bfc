"""A cache of policies, so that most requests cost no store call.

A policy is kept for `POLICY_AGE_MS_MAX` from the moment its read began. For settings a whole
minute would do. But a policy also says whether a client still exists, and that must be known
everywhere within thirty seconds: what is concluded from it may be used for a second longer.

An instance sees its own changes at once: a change removes the policies that it concerns. A read
that was in flight meanwhile may have missed the change, so its result is not cached.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.tenants.policy import Policy

POLICY_AGE_MS_MAX: Final = 29_000
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
        """The client's cached policy, if it is not too old."""
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
        """Cache the policy, unless something changed while it was being read."""
        changes, good_until_ms = reading
        if changes != self._changes:
            return
        self._entries.put(policy.client, (good_until_ms, policy))

    def drop(self, client: Client) -> None:
        """Remove the policy of a client that does not exist any more."""
        self._entries.pop(client)

    def forget(self, client: Client) -> None:
        """Remove the policy of a client that was changed; for an organisation, its apps' too."""
        self._changes += 1
        self._entries.pop(client)
        if client.app_id is None:
            for known in [known for known in self._entries if known.org_id == client.org_id]:
                self._entries.pop(known)
