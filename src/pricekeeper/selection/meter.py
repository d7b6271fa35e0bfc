"""Counts what selection does, for the metrics and for tests of its costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.selection.decision import Decision

EXHAUSTED: Final = "EXHAUSTED"
"""The reason of a decision that there is no model to call."""


@dataclass(slots=True)
class SelectionMeter:
    """The decisions that one instance made, and the results of its flips."""

    warm: int = 0
    """Answers from memory."""

    decisions: Counter[str] = field(default_factory=Counter)
    """Decisions made anew, by reason; `EXHAUSTED` if there was no label."""

    flips: int = 0
    """Sticky states that this instance moved forward."""

    flips_lost: int = 0
    """Flips that another instance made first."""

    flips_unknown: int = 0
    """Flips whose reply was lost; they were sent again."""

    flips_failed: int = 0
    """Flips that the store could not take. The decision held all the same."""

    overrides: Counter[str] = field(default_factory=Counter)
    """Commands of operators: ``set`` and ``cleared``."""

    def count_decision(self, decision: Decision) -> None:
        """Count a decision that was made anew."""
        choice = decision.choice
        self.decisions[EXHAUSTED if choice.label is None else choice.reason.value] += 1
