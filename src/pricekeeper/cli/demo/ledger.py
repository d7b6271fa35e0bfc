"""What the company knows it sent, kept apart from what the service says it counted.

The two must be equal to the last token and micro-dollar, for every app, day and model. The costs
here are made by multiplying the deployment file's prices, not by asking the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pricekeeper.cli.demo.traffic import Planned, cost_usd_picos
from pricekeeper.pricing import Catalogue, split_micros


@dataclass(slots=True)
class Sums:
    """What was used."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd_picos: int = 0

    @property
    def cost_usd_micros(self) -> int:
        """The whole micro-dollars of the exact sum: this is how totals are shown."""
        return split_micros(self.cost_usd_picos)[0]

    def told(self) -> dict[str, int]:
        """By the names of the REST contract."""
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cost_usd_micros": self.cost_usd_micros,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that should be equal and is not."""

    app_id: str
    day: str
    label: str
    number: str
    sent: int
    counted: int


@dataclass(slots=True)
class Ledger:
    """Sums by app, day (yyyy-mm-dd) and label."""

    catalogue: Catalogue
    sums: dict[tuple[str, str, str], Sums] = field(default_factory=dict)

    def add(self, call: Planned, day: str, label: str) -> None:
        """One call was made and reported."""
        sums = self.sums.setdefault((call.app_id, day, label), Sums())
        sums.requests += 1
        sums.input_tokens += call.input_tokens
        sums.output_tokens += call.output_tokens
        sums.cache_read_tokens += call.cache_read_tokens
        rates = self.catalogue.model(label).default_pricing
        sums.cost_usd_picos += cost_usd_picos(call, rates)

    def of(self, app_id: str, day: str, label: str) -> Sums:
        """What was sent; nothing, if there was nothing."""
        return self.sums.get((app_id, day, label)) or Sums()

    def whole(self) -> Sums:
        """Everything that was sent."""
        names = Sums.__dataclass_fields__
        return Sums(*(sum(getattr(one, name) for one in self.sums.values()) for name in names))

    def differences(
        self, app_id: str, day: str, models: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[Difference]:
        """Compare with a day of an app as ``GET /aggregates`` tells it."""
        sent_labels = {label for app, on, label in self.sums if (app, on) == (app_id, day)}
        for label in sorted(sent_labels | models.keys()):
            counted = models.get(label, {})
            for number, sent in self.of(app_id, day, label).told().items():
                if counted.get(number, 0) != sent:
                    yield Difference(app_id, day, label, number, sent, counted.get(number, 0))
