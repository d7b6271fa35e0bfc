"""Decisions made a moment ago, so that a warm client costs no store call.

How old an answer may be, from the moment its reads began:

- five seconds while the chosen quota is NORMAL. The totals themselves move once a minute, so this
  adds a twelfth to a lag that is there anyway, and it is the time in which an instance learns of
  a flip or an override made elsewhere;
- one second once it is TIGHT or exhausted, where that matters most.

No answer outlives the organisation's day, the policy it was made for, or an override command on
this instance: the command forgets what it touched, and a decision that was being made meanwhile
may have missed it, so it is not kept.
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
class _Entry:
    read_at_ms: int
    good_until_ms: int
    decision: Decision


class DecisionCache:
    """The decisions used last, at most ``entries_max`` of them."""

    def __init__(self, clock: Clock, entries_max: int = DECISIONS_MAX) -> None:
        self._clock = clock
        self._entries: BoundedCache[Client, _Entry] = BoundedCache(entries_max)
        self._commands = 0

    def get(self, policy: Policy) -> Decision | None:
        """What was decided under that policy, if it may still be used."""
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
        """What was decided last, however long ago: to tell whether something changed."""
        entry = self._entries.peek(client)
        return None if entry is None else entry.decision

    def reading(self) -> tuple[int, int]:
        """Call this before reading, and hand the result to `keep` with what was decided."""
        return self._commands, self._clock.monotonic_ms()

    def keep(self, decision: Decision, reading: tuple[int, int]) -> bool:
        """Remember the decision, unless there was a command while it was being made.

        One that was begun earlier than what is known is not news either.
        """
        commands, read_at_ms = reading
        client = decision.policy.client
        known = self._entries.peek(client)
        if commands != self._commands or (known is not None and known.read_at_ms > read_at_ms):
            return False
        calm = decision.mode is QuotaStatus.NORMAL
        good_until_ms = read_at_ms + (STALENESS_NORMAL_MS_MAX if calm else STALENESS_TIGHT_MS_MAX)
        self._entries.put(client, _Entry(read_at_ms, good_until_ms, decision))
        return True

    def forget(self, client: Client) -> None:
        """There was a command about the client: an organisation's concerns all of its apps."""
        self._commands += 1
        for known in self._entries:
            if known == client or (client.app_id is None and known.org_id == client.org_id):
                entry = self._entries.peek(known)
                if entry is not None:  # it is out of use, but kept to tell whether it changed
                    entry.good_until_ms = entry.read_at_ms
