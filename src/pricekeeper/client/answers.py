"""The answers that an app acts on, as values. ``answer`` has the rest, as the contract names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

AS_ASKED: Final = "NORMAL"
"""Why a label is chosen that was asked for itself."""


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


@dataclass(frozen=True, slots=True)
class Settled:
    """What a usage record or a capture came to."""

    id: str
    duplicate: bool
    cost_usd_micros: int
    held_usd_micros: int = 0
    """What had been held for the call, if it was authorized."""
    overrun_usd_micros: int = 0
    """By how much it cost more than that."""

    @classmethod
    def of(cls, entry_id: str, result: Mapping[str, Any]) -> Self:
        """From one result of a batch."""
        return cls(
            entry_id,
            duplicate=result["status"] == "duplicate",
            cost_usd_micros=result["cost_usd_micros"],
            held_usd_micros=result.get("held_usd_micros", 0),
            overrun_usd_micros=result.get("overrun_usd_micros", 0),
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """Tokens that were taken from buckets."""

    id: str
    limits: Mapping[str, Mapping[str, Any]]
    """How each limit stood afterwards: ``remaining``, ``capacity``, ``resets_at``."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """A call that may be made, and what is held for it."""

    id: str
    """By which it is settled; empty, if it was only tried."""
    label: str
    model_id: str
    reason: str
    held_usd_micros: int
    max_output_tokens: int
    """The longest answer that is held for: the call's ``maxTokens``."""
    expires_at: str
    answer: Mapping[str, Any] = field(repr=False)
    is_blind: bool = False
    """Whether it was allowed without the service: nothing is held for it anywhere."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """From the JSON of ``POST /authorizations``."""
        model = answer["model"]
        return cls(
            answer["authorization_id"] or "",
            label=model["label"],
            model_id=model["bedrock_model_id"],
            reason=model["reason"],
            held_usd_micros=answer["held_usd_micros"],
            max_output_tokens=answer["max_output_tokens"],
            expires_at=answer["expires_at"],
            answer=answer,
        )
