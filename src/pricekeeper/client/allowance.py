"""What may be spent in an hour while the service can't be reached.

It is shared by all processes of an app on one machine, also by those that are started anew: else a
program that crashes and begins again would have another allowance each time.
"""

from __future__ import annotations

from typing import Final

import msgspec

HOUR_MS: Final = 3_600_000


class Allowance(msgspec.Struct, frozen=True):
    """How much of an hour's sum is taken. Calls take the most that they can cost."""

    began_at_ms: int = 0
    """When the hour has begun, by the machine's clock."""
    taken_usd_micros: int = 0

    def take(self, cost_usd_micros: int, limit_usd_micros: int, now_ms: int) -> Allowance | None:
        """The allowance without that much; ``None`` if it is not there.

        A clock that goes back by less than an hour begins no hour.
        """
        is_same_hour = abs(now_ms - self.began_at_ms) < HOUR_MS
        taken = cost_usd_micros + (self.taken_usd_micros if is_same_hour else 0)
        if taken > limit_usd_micros:
            return None
        return Allowance(self.began_at_ms if is_same_hour else now_ms, taken)
