"""What metering has counted, counted: for the metrics endpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pricekeeper.telemetry import Sizes


@dataclass(slots=True)
class FoldMeter:
    """What the folds of one instance have met."""

    tags_over: int = 0
    """Tag keys of an organisation's day with more values than are told apart."""


@dataclass(slots=True)
class MeteringMeter:
    """What became of the records of one instance."""

    accepted: int = 0
    """Records that this instance has counted."""

    duplicates: int = 0
    """Records that had been counted before, with the same body or another one."""

    failed: int = 0
    """Records that the store could not take, or about which nobody knows."""

    estimated: Counter[str] = field(default_factory=Counter)
    """Records that this instance has counted at an estimated price, by model label."""

    commit_sizes: Sizes = field(default_factory=Sizes)
    """How many records each commit counted."""
