"""What the company knows it sent, kept apart from what the service says it counted.

The two must be equal to the last token and micro-dollar, for every app, day and model. The costs
here are made by multiplying the deployment file's prices, not by asking the service.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pricekeeper.cli.demo.traffic import Planned, cost_usd_picos
from pricekeeper.pricing import Catalogue, split_micros

NUMBERS = ("requests", "input_tokens", "output_tokens", "cache_read_tokens")


class Sums(Counter[str]):
    """What was used: `NUMBERS`, and the exact cost."""

    @property
    def cost_usd_micros(self) -> int:
        """The whole micro-dollars of the exact sum: this is how totals are shown."""
        return split_micros(self["cost_usd_picos"])[0]

    def answer(self) -> dict[str, int]:
        """By the names of the REST contract."""
        return {**{name: self[name] for name in NUMBERS}, "cost_usd_micros": self.cost_usd_micros}


class Mismatch(NamedTuple):
    """A number that should be equal and is not."""

    app_id: str
    day: str
    label: str
    number: str
    sent: int
    counted: int


class DemoLedger:
    """Sums by app, day (yyyy-mm-dd) and label."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.sums: defaultdict[tuple[str, str, str], Sums] = defaultdict(Sums)

    def add(self, call: Planned, day: str, label: str) -> Sums:
        """One call was made and reported; what it adds up to."""
        sums = self.sums[call.app_id, day, label]
        cost = cost_usd_picos(call, self.catalogue.model(label).default_pricing)
        sums["requests"] += 1
        sums["cost_usd_picos"] += cost
        for name in NUMBERS[1:]:
            sums[name] += getattr(call, name)
        return sums

    def whole(self) -> Sums:
        """Everything that was sent."""
        whole = Sums()
        for sums in self.sums.values():
            whole.update(sums)
        return whole

    def differences(
        self, app_id: str, day: str, models: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[Mismatch]:
        """Compare with a day of an app as ``GET /aggregates`` tells it."""
        sent_labels = {label for app, on, label in self.sums if (app, on) == (app_id, day)}
        for label in sorted(sent_labels | models.keys()):
            sent, counted = self.sums.get((app_id, day, label), Sums()), models.get(label, {})
            for number, count in sent.answer().items():
                if counted.get(number, 0) != count:
                    yield Mismatch(app_id, day, label, number, count, counted.get(number, 0))
