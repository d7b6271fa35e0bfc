"""What metering has counted, counted: for the metrics endpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, Kind, Sizes, counted

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
    "pricekeeper_tag_values_over",
    "Tags of an organisation's day with more values than are told apart.",
)


@dataclass(slots=True)
class FoldMeter:
    """What the folds of one instance have met."""

    tags_over: int = counted(_TAGS_OVER)
    """Tag keys of an organisation's day with more values than are told apart."""


@dataclass(slots=True)
class MeteringMeter:
    """What became of the records of one instance."""

    accepted: int = counted(_RECORDS, "accepted")
    """Records that this instance has counted."""
    duplicates: int = counted(_RECORDS, "duplicate")
    """Records that had been counted before, with the same body or another one."""
    failed: int = counted(_RECORDS, "failed")
    """Records that the store could not take, or about which nobody knows."""
    estimated: Counter[str] = counted(_ESTIMATED, factory=Counter)
    """Records that this instance has counted at an estimated price, by model label."""
    commit_sizes: Sizes = counted(_COMMITS, factory=Sizes)
    """How many records each commit counted."""
