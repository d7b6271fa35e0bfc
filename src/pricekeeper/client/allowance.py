"""What may be spent while the service can't be reached.

What is needed for that is fetched while the service is there: which model is in force and what it
costs, which labels the models have, and what is left of the hard budgets. A call is priced with
it as the service would, for the worst case. The allowance is for each process, because processes
that can't reach the service can't agree either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

HOUR_MS: Final = 3_600_000
_PER_MILLION: Final = 1_000_000
_INPUT_PRICES: Final = (
    "input_price_usd_micros_per_1m",
    "cache_write_5m_price_usd_micros_per_1m",
    "cache_write_1h_price_usd_micros_per_1m",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the service said when it was last there."""

    label: str
    model_id: str
    input_price_usd_micros_per_1m: int
    output_price_usd_micros_per_1m: int
    labels: Mapping[str, str]
    """The label of each Bedrock model id."""
    remaining_usd_micros: int | None
    """What is left of the tightest hard budget; ``None`` if there is none."""

    @classmethod
    def of(
        cls, selection: Mapping[str, Any], totals: Mapping[str, Any], budgets: Mapping[str, Any]
    ) -> Snapshot:
        """From the answers about the model in force, the day's totals and the budgets."""
        model, pricing = selection["recommended_model"], selection["pricing"]
        labels = {one["bedrock_model_id"]: label for label, one in totals.get("models", {}).items()}
        labels[model["bedrock_model_id"]] = model["label"]
        others = {f"quota-{label}" for label in labels.values()} - {f"quota-{model['label']}"}
        hard = [
            one
            for one in budgets["budgets"]
            if one["enforcement"] == "HARD" and one["name"] not in others
        ]
        return cls(
            label=model["label"],
            model_id=model["bedrock_model_id"],
            input_price_usd_micros_per_1m=max(pricing.get(name) or 0 for name in _INPUT_PRICES),
            output_price_usd_micros_per_1m=pricing["output_price_usd_micros_per_1m"],
            labels=labels,
            remaining_usd_micros=min((one["remaining_usd_micros"] for one in hard), default=None),
        )

    def find(self, model: str) -> tuple[str, str] | None:
        """The label and the id of the model that is asked for, if both are known."""
        if model in ("auto", self.label, self.model_id):
            return self.label, self.model_id
        if model in self.labels:
            return self.labels[model], model
        return next(((label, one) for one, label in self.labels.items() if label == model), None)

    def worst_case_usd_micros(
        self, model_id: str, input_tokens: int, output_tokens: int
    ) -> int | None:
        """The most that a call can cost; ``None`` if the model's prices are not known."""
        if model_id != self.model_id:
            return None
        cost = input_tokens * self.input_price_usd_micros_per_1m
        cost += output_tokens * self.output_price_usd_micros_per_1m
        return -(-cost // _PER_MILLION)


class Allowance:
    """A sum for each hour, of which calls take the most that they can cost."""

    __slots__ = ("_hour_ends_ms", "_limit_usd_micros", "_since_snapshot", "_this_hour")

    def __init__(self, limit_usd_micros: int) -> None:
        self._limit_usd_micros = limit_usd_micros
        self._this_hour = 0
        self._since_snapshot = 0
        self._hour_ends_ms = 0

    def take(self, cost_usd_micros: int, remaining_usd_micros: int | None, now_ms: int) -> bool:
        """Take that much, if it is there; ``remaining`` is what the budgets last had."""
        if now_ms >= self._hour_ends_ms:
            self._this_hour, self._hour_ends_ms = 0, now_ms + HOUR_MS
        if self._this_hour + cost_usd_micros > self._limit_usd_micros:
            return False
        if remaining_usd_micros is not None:
            if self._since_snapshot + cost_usd_micros > remaining_usd_micros:
                return False
            self._since_snapshot += cost_usd_micros
        self._this_hour += cost_usd_micros
        return True

    def note_snapshot(self) -> None:
        """Note that what is left of the budgets was read anew."""
        self._since_snapshot = 0
