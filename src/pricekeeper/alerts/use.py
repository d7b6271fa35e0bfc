"""How much of a limit is charged, and which of its thresholds that reaches. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pricekeeper.pricing import PICOS_PER_MICRO


class Use(NamedTuple):
    """How much of a limit was charged, and one of its thresholds that this reaches."""

    charged_usd_picos: int
    limit_usd_picos: int
    threshold_pct: int

    @property
    def facts(self) -> dict[str, int]:
        """The same as JSON has it; what was charged is rounded up, as everywhere."""
        return {
            "threshold_pct": self.threshold_pct,
            "charged_pct": self.charged_pct,
            "charged_usd_micros": -(-self.charged_usd_picos // PICOS_PER_MICRO),
            "limit_usd_micros": self.limit_usd_picos // PICOS_PER_MICRO,
        }

    @property
    def charged_pct(self) -> int:
        """How much of the limit that is, in whole percent; all of it if there is no limit."""
        if not self.limit_usd_picos:
            return 100
        return self.charged_usd_picos * 100 // self.limit_usd_picos


def uses(charged: int, limit: int, at_pct: Iterable[int]) -> Iterator[Use]:
    """The thresholds that are reached, each by itself.

    A limit of nothing is reached with the first thing that is charged.
    """
    for pct in at_pct:
        if charged > 0 and charged * 100 >= pct * limit:
            yield Use(charged, limit, pct)
