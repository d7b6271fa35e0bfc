"""Counts for the metrics endpoint: records, folds, and the use of quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.days import day_start_ms, next_midnight_ms
from pricekeeper.telemetry import Family, Kind, Sizes, counted
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel

_RECORDS: Final = Family(
    "pricekeeper_usage_records", "Usage records by what became of them.", ("outcome",)
)
_ESTIMATED: Final = Family(
    "pricekeeper_price_estimated_records",
    "Usage records whose price is not known, counted at the model's highest.",
    ("label",),
)
_COMMITS: Final = Family(
    "pricekeeper_usage_commit_records", "Usage records in one commit.", kind=Kind.SIZES
)
_TAGS_OVER: Final = Family(
    "pricekeeper_tag_values_over", "Tags of an organisation's day with too many values."
)


@dataclass(slots=True)
class FoldMeter:
    """Counts of the folds of one instance."""

    tags_over: int = counted(_TAGS_OVER)
    """Tag keys of an organisation's day with too many values."""


@dataclass(slots=True)
class MeteringMeter:
    """Counts of the records of one instance."""

    accepted: int = counted(_RECORDS, "accepted")
    duplicates: int = counted(_RECORDS, "duplicate")
    failed: int = counted(_RECORDS, "failed")
    """Also of unknown outcome."""
    estimated: Counter[str] = counted(_ESTIMATED, factory=Counter)
    commit_sizes: Sizes = counted(_COMMITS, factory=Sizes)


SCOPES_MAX: Final = 1_000


@dataclass(slots=True)
class QuotaUse:
    """A scope's spend on one label on one day, and its quota."""

    day: str
    ends_at_ms: int
    quota_usd_micros: int
    summed_usd_micros: int = 0
    estimated_usd_micros: int = 0

    @property
    def spend_usd_micros(self) -> int:
        return max(self.summed_usd_micros, self.estimated_usd_micros)


@dataclass(slots=True)
class ScopeUse:
    """A scope's spend by label, and its policy."""

    policy: Policy
    labels: dict[ModelLabel, QuotaUse] = field(default_factory=dict)


class QuotaUses:
    """The latest day of each scope and label, of the first `SCOPES_MAX` scopes.

    A decision's sum is never too high, so the day's largest is kept. An answer's estimate may be
    too high for a moment, so the latest is kept. The metric shows the larger of the two.
    """

    def __init__(self) -> None:
        self.scopes: dict[str, ScopeUse] = {}

    def note_sum(self, policy: Policy, label: ModelLabel, day: str, spend_usd_micros: int) -> None:
        use = self._use(policy, label, day)
        if use is not None:
            use.summed_usd_micros = max(use.summed_usd_micros, spend_usd_micros)

    def note_estimate(
        self, policy: Policy, label: ModelLabel, day: str, spend_usd_micros: int
    ) -> None:
        if label in policy.quotas:
            use = self._use(policy, label, day)
            if use is not None:
                use.estimated_usd_micros = spend_usd_micros

    def _use(self, policy: Policy, label: ModelLabel, day: str) -> QuotaUse | None:
        """The use of that day; ``None`` if a later day is known, or the scopes are full."""
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
