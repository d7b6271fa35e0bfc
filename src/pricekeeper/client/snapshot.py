"""What the service said when it was last there, for the time in which it can't be reached.

Which model is in force and what it costs, which labels the models have, and what is left of the
hard budgets. A call is priced with it as the service would, for the worst case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pricekeeper.bedrock import AUTO

_PER_MILLION: Final = 1_000_000
_INPUT_PRICES: Final = (
    "input_price_usd_micros_per_1m",
    "cache_write_5m_price_usd_micros_per_1m",
    "cache_write_1h_price_usd_micros_per_1m",
)


class Snapshot(msgspec.Struct, frozen=True):
    """The model in force, the labels and the budgets of an app, at one moment."""

    label: str
    model_id: str
    input_price_usd_micros_per_1m: int
    output_price_usd_micros_per_1m: int
    labels: Mapping[str, str]
    """The label of each Bedrock model id."""
    hard: frozenset[str]
    """The hard budgets that calls of the model are held against, by scope and name."""
    remaining_usd_micros: int | None
    """What is left of the tightest of them; ``None`` if there is none."""

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
            hard=frozenset(_name(one) for one in hard),
            remaining_usd_micros=min((one["remaining_usd_micros"] for one in hard), default=None),
        )

    def find(self, model: str) -> tuple[str, str] | None:
        """The label and the id of the model that is asked for, if both are known."""
        if model in (AUTO, self.label, self.model_id):
            return self.label, self.model_id
        if model in self.labels:
            return self.labels[model], model
        return next(((label, one) for one, label in self.labels.items() if label == model), None)

    def worst_case_usd_micros(
        self, label: str, input_tokens: int, output_tokens: int
    ) -> int | None:
        """The most that a call can cost; ``None`` if the prices of its label are not known."""
        if label != self.label:
            return None
        cost = input_tokens * self.input_price_usd_micros_per_1m
        cost += output_tokens * self.output_price_usd_micros_per_1m
        return -(-cost // _PER_MILLION)

    def after(self, budgets: Sequence[Mapping[str, Any]]) -> Snapshot:
        """The same, with what an authorization says is left; never more than before.

        What others release meanwhile is seen by the next snapshot.
        """
        left = [one["remaining_usd_micros"] for one in budgets if _name(one) in self.hard]
        return self if not left else self.with_at_most(min(left))

    def with_at_most(self, remaining_usd_micros: int) -> Snapshot:
        """The same, with no more than that left."""
        before = self.remaining_usd_micros
        if before is None or before <= remaining_usd_micros:
            return self
        return msgspec.structs.replace(self, remaining_usd_micros=remaining_usd_micros)


def is_model_id(model: str) -> bool:
    """Whether that can be sent to Bedrock as it is: its ids have a provider, ARNs have parts.

    Bedrock refuses what is none, at no cost.
    """
    return model != AUTO and ("." in model or ":" in model)


def _name(budget: Mapping[str, Any]) -> str:
    return f"{budget['scope']} {budget['name']}"
