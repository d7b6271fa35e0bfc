"""What the service last said, to price and bound calls while it can't be reached.

An app's processes share the hourly `Allowance`, so a restart does not renew it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pricekeeper.bedrock import AUTO
from pricekeeper.wire.authorizations import BudgetAfter, BudgetAnswer, BudgetList
from pricekeeper.wire.runtime import SelectionAnswer
from pricekeeper.wire.spend import AggregateAnswer

_PER_MILLION: Final = 1_000_000
_INPUT_PRICES: Final = (
    "input_price_usd_micros_per_1m",
    "cache_write_5m_price_usd_micros_per_1m",
    "cache_write_1h_price_usd_micros_per_1m",
)


class Snapshot(msgspec.Struct, frozen=True):
    """The model, labels and budgets of an app at one time."""

    label: str
    model_id: str
    input_price_usd_micros_per_1m: int
    output_price_usd_micros_per_1m: int
    labels: Mapping[str, str]
    hard: frozenset[str]
    """Hard budgets that hold for the model's calls, by scope and name."""
    remaining_usd_micros: int | None
    """The least that is left; ``None`` without hard budgets."""

    @classmethod
    def of(
        cls, selection: SelectionAnswer, totals: AggregateAnswer, budgets: BudgetList
    ) -> Snapshot:
        """From the selected model, the day's totals and the budgets."""
        model, pricing = selection.recommended_model, selection.pricing
        labels = {one.bedrock_model_id: label for label, one in totals.models.items()}
        labels[model.bedrock_model_id] = model.label
        others = {f"quota-{label}" for label in labels.values()} - {f"quota-{model.label}"}
        hard = [
            one for one in budgets.budgets if one.enforcement == "HARD" and one.name not in others
        ]
        return cls(
            label=model.label,
            model_id=model.bedrock_model_id,
            input_price_usd_micros_per_1m=max(pricing.get(name) or 0 for name in _INPUT_PRICES),
            output_price_usd_micros_per_1m=pricing["output_price_usd_micros_per_1m"],
            labels=labels,
            hard=frozenset(_name(one) for one in hard),
            remaining_usd_micros=min((one.remaining_usd_micros for one in hard), default=None),
        )

    def find(self, model: str) -> tuple[str, str] | None:
        """The label and id of a model, if both are known."""
        if model in (AUTO, self.label, self.model_id):
            return self.label, self.model_id
        if model in self.labels:
            return self.labels[model], model
        return next(((label, one) for one, label in self.labels.items() if label == model), None)

    def worst_case_usd_micros(
        self, label: str, input_tokens: int, output_tokens: int
    ) -> int | None:
        """``None`` if the prices of its label are unknown."""
        if label != self.label:
            return None
        cost = input_tokens * self.input_price_usd_micros_per_1m
        cost += output_tokens * self.output_price_usd_micros_per_1m
        return -(-cost // _PER_MILLION)

    def after(self, budgets: Sequence[BudgetAfter]) -> Snapshot:
        """The snapshot after an authorization. What is left only shrinks until the next one."""
        left = [one.remaining_usd_micros for one in budgets if _name(one) in self.hard]
        return self if not left else self.with_at_most(min(left))

    def with_at_most(self, remaining_usd_micros: int) -> Snapshot:
        """The snapshot with at most that much left."""
        before = self.remaining_usd_micros
        if before is None or before <= remaining_usd_micros:
            return self
        return msgspec.structs.replace(self, remaining_usd_micros=remaining_usd_micros)


def is_model_id(model: str) -> bool:
    """Whether a name is a model id or ARN, not a label. Bedrock refuses unknown ids for free."""
    return model != AUTO and ("." in model or ":" in model)


def _name(budget: BudgetAfter | BudgetAnswer) -> str:
    return f"{budget.scope} {budget.name}"


HOUR_MS: Final = 3_600_000


class Allowance(msgspec.Struct, frozen=True):
    """What is taken of an hour's allowance, at each call's maximum cost."""

    began_at_ms: int = 0
    """Start of the hour, by the machine's clock."""
    taken_usd_micros: int = 0

    def take(self, cost_usd_micros: int, limit_usd_micros: int, now_ms: int) -> Allowance | None:
        """The allowance after this cost; ``None`` if it does not fit.

        A clock that moves back by less than an hour starts no new hour.
        """
        is_same_hour = abs(now_ms - self.began_at_ms) < HOUR_MS
        taken = cost_usd_micros + (self.taken_usd_micros if is_same_hour else 0)
        if taken > limit_usd_micros:
            return None
        return Allowance(self.began_at_ms if is_same_hour else now_ms, taken)
