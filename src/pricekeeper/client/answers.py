"""The answers that an app acts on, as values. ``answer`` has the rest, as the contract names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Selection:
    """Which model to call now, and why."""

    label: str
    bedrock_model_id: str
    reason: str
    """``NORMAL``, ``QUOTA_EXCEEDED``, ``STICKY_FALLBACK`` or ``MANUAL_OVERRIDE``."""
    mode: str
    """``NORMAL``, or ``TIGHT`` when the label's quota is nearly gone."""
    explanation: str
    keep_secs: int
    """For how long the answer may be used without asking again."""
    burn_down_factor_permille: int
    """How many thousandths of a token Bedrock's throttling counts for each output token."""
    answer: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """From the JSON of ``GET /model-selection``."""
        model, guidance = answer["recommended_model"], answer["client_guidance"]
        return cls(
            label=model["label"],
            bedrock_model_id=model["bedrock_model_id"],
            reason=model["reason"],
            mode=answer["quota_status"]["mode"],
            explanation=guidance["explanation"],
            keep_secs=guidance["cache_duration_secs"],
            burn_down_factor_permille=model.get("burn_down_factor_permille", 1000),
            answer=answer,
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """A usage record that counts: because of this submission, or of an earlier one."""

    request_id: str
    duplicate: bool
    cost_usd_micros: int
    price_estimated: bool
    """Whether what was served has no prices, so that the highest of the model were taken."""
    org_day: str
    answer: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """From the JSON of ``POST /usage``."""
        return cls(
            request_id=answer["request_id"],
            duplicate=answer["status"] == "duplicate",
            cost_usd_micros=answer["cost_usd_micros"],
            price_estimated=answer.get("price_estimated", False),
            org_day=answer["org_day"],
            answer=answer,
        )

    @property
    def mode(self) -> str:
        """How the label's quota stands: ``NORMAL``, ``TIGHT``, ``EXCEEDED``; empty if unknown."""
        total = self.answer.get("daily_total")
        return "" if total is None else str(total["mode"])


@dataclass(frozen=True, slots=True)
class Captured(Recorded):
    """The usage of a call that was authorized, and what had been held for it."""

    @property
    def held_usd_micros(self) -> int:
        """What had been held."""
        held: int = self.answer["held_usd_micros"]
        return held

    @property
    def overrun_usd_micros(self) -> int:
        """By how much the call cost more than that."""
        overrun: int = self.answer["overrun_usd_micros"]
        return overrun
