"""Caches decisions, so that most answers cost no store call.

A cached decision is used, counted from when its reads began,

- for five seconds while the chosen quota is NORMAL: totals change once a minute;
- for one second once the quota is TIGHT or exhausted.

It ends with the organisation's day, with its policy, and with an override command on this instance.
A decision that was being made during a command is not cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import QuotaStatus
from pricekeeper.tenants import Client, Policy

STALENESS_NORMAL_MS_MAX: Final = 5_000
STALENESS_TIGHT_MS_MAX: Final = 1_000
DECISIONS_MAX: Final = 10_000


@dataclass(slots=True)
class _CachedDecision:
    read_at_ms: int
    good_until_ms: int
    decision: Decision


class DecisionCache:
    """The most recently used decisions, at most ``entries_max``."""

    def __init__(self, clock: Clock, entries_max: int = DECISIONS_MAX) -> None:
        self._clock = clock
        self._entries: BoundedCache[Client, _CachedDecision] = BoundedCache(entries_max)
        self._commands = 0

    def get(self, policy: Policy) -> Decision | None:
        entry = self._entries.get(policy.client)
        if entry is None:
            return None
        decision = entry.decision
        if (
            self._clock.monotonic_ms() >= entry.good_until_ms
            or not decision.day_starts_at_ms <= self._clock.now_ms() < decision.resets_at_ms
            or (decision.policy is not policy and decision.policy != policy)
        ):
            return None
        return decision

    def last(self, client: Client) -> Decision | None:
        entry = self._entries.peek(client)
        return None if entry is None else entry.decision

    def reading(self) -> tuple[int, int]:
        """Call this before reading, and pass the result to `keep`."""
        return self._commands, self._clock.monotonic_ms()

    def keep(self, decision: Decision, reading: tuple[int, int]) -> bool:
        """Cache the decision, unless a command came or a newer one was cached meanwhile."""
        commands, read_at_ms = reading
        client = decision.policy.client
        known = self._entries.peek(client)
        if commands != self._commands or (known is not None and known.read_at_ms > read_at_ms):
            return False
        calm = decision.mode is QuotaStatus.NORMAL
        good_until_ms = read_at_ms + (STALENESS_NORMAL_MS_MAX if calm else STALENESS_TIGHT_MS_MAX)
        self._entries.put(client, _CachedDecision(read_at_ms, good_until_ms, decision))
        return True

    def forget(self, client: Client) -> None:
        self._commands += 1
        for known in self._entries:
            if known == client or (client.app_id is None and known.org_id == client.org_id):
                entry = self._entries.peek(known)
                if entry is not None:  # it is expired, but kept to see whether the next one differs
                    entry.good_until_ms = entry.read_at_ms
