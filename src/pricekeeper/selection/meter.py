"""Counts selections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import Reason
from pricekeeper.telemetry import Family, counted

EXHAUSTED: Final = "EXHAUSTED"

_SELECTIONS: Final = Family("pricekeeper_selections", "Model selections by reason.", ("reason",))
_FLIPS: Final = Family(
    "pricekeeper_sticky_flips", "Fallbacks to another model by outcome.", ("outcome",)
)


@dataclass(slots=True)
class SelectionMeter:
    """The decisions of one instance, and the results of its flips."""

    warm: int = counted(_SELECTIONS, "warm")
    decisions: Counter[str] = counted(_SELECTIONS, shown=(*Reason, EXHAUSTED), factory=Counter)
    flips: int = counted(_FLIPS, "made")
    flips_lost: int = counted(_FLIPS, "lost")
    flips_unknown: int = counted(_FLIPS, "unknown")
    """They were sent again."""
    flips_failed: int = counted(_FLIPS, "failed")
    """The decision still held."""

    def count_decision(self, decision: Decision) -> None:
        choice = decision.choice
        self.decisions[EXHAUSTED if choice.label is None else choice.reason.value] += 1
