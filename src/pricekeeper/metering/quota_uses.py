"""How much of each quota is used, as this process knows it: for the metrics.

There are two sources. A decision reads a sum. A sum is never too high, so we keep the day's
largest. A counted record gives an estimate. It can be too high for a moment, so we keep only the
latest. The metric shows the larger of the two.

Bound: the first `SCOPES_MAX` scopes. A metric with a line for each of a million helps nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pricekeeper.days import day_start_ms, next_midnight_ms
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel

SCOPES_MAX: Final = 1_000


@dataclass(slots=True)
class QuotaUse:
    """What one scope has spent of one label's quota on one day."""

    day: str
    ends_at_ms: int
    quota_usd_micros: int
    summed_usd_micros: int = 0
    estimated_usd_micros: int = 0

    @property
    def spend_usd_micros(self) -> int:
        """What is known to be spent."""
        return max(self.summed_usd_micros, self.estimated_usd_micros)


@dataclass(slots=True)
class ScopeUse:
    """What one scope has spent, by label, and its policy, which has its names."""

    policy: Policy
    labels: dict[ModelLabel, QuotaUse] = field(default_factory=dict)


class QuotaUses:
    """The latest day of each scope and label."""

    def __init__(self) -> None:
        self.scopes: dict[str, ScopeUse] = {}

    def note_sum(self, policy: Policy, label: ModelLabel, day: str, spend_usd_micros: int) -> None:
        """Note a sum that was read: no more than that was spent when it was made."""
        use = self._use(policy, label, day)
        if use is not None:
            use.summed_usd_micros = max(use.summed_usd_micros, spend_usd_micros)

    def note_estimate(
        self, policy: Policy, label: ModelLabel, day: str, spend_usd_micros: int
    ) -> None:
        """Note what a record's answer says."""
        if label in policy.quotas:
            use = self._use(policy, label, day)
            if use is not None:
                use.estimated_usd_micros = spend_usd_micros

    def _use(self, policy: Policy, label: ModelLabel, day: str) -> QuotaUse | None:
        """What is known of that day; ``None`` if a later day is known, or there are too many."""
        scope = self.scopes.get(policy.scope_key)
        if scope is None:
            if len(self.scopes) >= SCOPES_MAX:
                return None
            scope = self.scopes[policy.scope_key] = ScopeUse(policy)
        scope.policy, labels = policy, scope.labels
        use = labels.get(label)
        if use is None or use.day < day:
            ends_at_ms = next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day))
            use = labels[label] = QuotaUse(day, ends_at_ms, 0)
        if use.day > day:
            return None
        use.quota_usd_micros = policy.quotas.get(label, 0)
        return use
