"""Views of answers that apps act on; ``answer`` is the whole answer of the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pricekeeper.wire.authorizations import AuthorizedAnswer, CapturedAnswer
from pricekeeper.wire.runtime import Acquired, SelectionAnswer, UsageAnswer

Recorded = UsageAnswer
Captured = CapturedAnswer
Lease = Acquired
AS_ASKED: Final = "NORMAL"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which model to call now, and why."""

    label: str
    bedrock_model_id: str
    reason: str
    """``NORMAL``, ``QUOTA_EXCEEDED``, ``STICKY_FALLBACK`` or ``MANUAL_OVERRIDE``."""
    mode: str
    """``NORMAL``, or ``TIGHT`` when the label's quota is nearly spent."""
    explanation: str
    keep_secs: int
    """How long the answer may be used without asking again."""
    burn_down_factor_permille: int
    """How many thousandths of a token Bedrock's throttling counts for each output token."""
    answer: SelectionAnswer = field(repr=False)

    @classmethod
    def of(cls, answer: SelectionAnswer) -> Self:
        model, guidance = answer.recommended_model, answer.client_guidance
        return cls(
            label=model.label,
            bedrock_model_id=model.bedrock_model_id,
            reason=model.reason,
            mode=answer.quota_status.mode,
            explanation=guidance.explanation,
            keep_secs=guidance.cache_duration_secs,
            burn_down_factor_permille=model.burn_down_factor_permille,
            answer=answer,
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """The cost of a usage record or a capture."""

    id: str
    duplicate: bool
    cost_usd_micros: int
    held_usd_micros: int = 0
    """The hold of the call, if it was authorized."""
    overrun_usd_micros: int = 0
    """By how much it cost more than its hold."""

    @classmethod
    def of(cls, entry_id: str, result: Mapping[str, Any]) -> Self:
        return cls(
            entry_id,
            duplicate=result["status"] == "duplicate",
            cost_usd_micros=result["cost_usd_micros"],
            held_usd_micros=result.get("held_usd_micros", 0),
            overrun_usd_micros=result.get("overrun_usd_micros", 0),
        )


@dataclass(frozen=True, slots=True)
class Authorization:
    """A call that may be made, and its hold."""

    id: str
    """Settles it; empty after a dry run."""
    label: str
    model_id: str
    reason: str
    held_usd_micros: int
    max_output_tokens: int
    """The longest answer that the hold covers: the call's ``maxTokens``."""
    expires_at: str
    answer: AuthorizedAnswer | None = field(default=None, repr=False)
    """``None`` if the service was not asked."""
    is_blind: bool = False
    """Whether it was allowed without the service: there is no hold."""

    @classmethod
    def of(cls, answer: AuthorizedAnswer) -> Self:
        return cls(
            answer.authorization_id or "",
            label=answer.model.label,
            model_id=answer.model.bedrock_model_id,
            reason=answer.model.reason,
            held_usd_micros=answer.held_usd_micros,
            max_output_tokens=answer.max_output_tokens,
            expires_at=answer.expires_at,
            answer=answer,
        )
