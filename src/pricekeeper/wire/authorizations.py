"""Authorizations, their settlements, and budgets.

Money is rounded pessimistically to whole micro-dollars: spent, held and needed amounts up,
remaining amounts down.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from pricekeeper.wire.bounds import CAPTURES_MAX, CONSUME_MAX, HOLD_SECS_DEFAULT, HOLD_SECS_RANGE
from pricekeeper.wire.provisioning import Reason
from pricekeeper.wire.runtime import (
    LimitState,
    ServiceTier,
    Tags,
    UsageAnswer,
    UsedBody,
)
from pricekeeper.wire.values import LimitName, RequestBody, Response, Tokens, Uuid

HoldSecs = Annotated[
    int,
    Meta(
        ge=HOLD_SECS_RANGE[0],
        le=HOLD_SECS_RANGE[1],
        description="How long the hold lasts, unless it is settled before.",
    ),
]
ModelName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        description="`auto`, a label, or a Bedrock model id that the deployment file knows.",
        examples=["auto", "premium"],
    ),
]


USES_MAX: Final = 16
Use = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        description="A unit of the deployment file, or its beginning.",
        examples=["guardrail", "tool_call:nova_grounding"],
    ),
]


class AuthorizeBody(RequestBody, frozen=True):
    """A call that is about to be made."""

    input_tokens: Annotated[Tokens, Meta(description="An upper bound of the whole prompt.")]
    max_output_tokens: Tokens
    authorization_id: Uuid | None = None
    """The same request with the same id is the same grant."""
    model: ModelName = "auto"
    fallback: bool | None = None
    """Whether a label further down may be used; by default only for `auto`."""
    cache_write: Literal["none", "5m", "1h"] = "none"
    service_tier: ServiceTier | None = None
    batch: bool = False
    uses: Annotated[list[Use], Meta(max_length=USES_MAX)] = field(default_factory=list)
    """Refused if the deployment file has no price for one."""
    window_tokens: Tokens = 0
    """The requested window, if a beta opens a longer one."""
    consume: Annotated[dict[LimitName, Tokens], Meta(max_length=CONSUME_MAX)] | None = None
    tags: Tags = field(default_factory=dict)
    allow_lower_max_output: bool = False
    min_output_tokens: Tokens = 1
    hold_secs: HoldSecs = HOLD_SECS_DEFAULT
    dry_run: bool = False


class AuthorizedModel(Response, frozen=True):
    """Which model to call, and why."""

    label: str
    bedrock_model_id: str
    reason: str
    description: str


class BudgetState(Response, frozen=True, kw_only=True):
    """A budget in a window. What remains is below zero if it is overdrawn."""

    name: str
    scope: Literal["ORG", "APP"]
    window: Literal["HOUR", "DAY", "WEEK", "MONTH"]
    limit_usd_micros: int
    spent_usd_micros: int
    held_usd_micros: int
    remaining_usd_micros: int
    resets_at: str


class BudgetAfter(BudgetState, frozen=True):
    """A budget with the hold of the call included. What remains is below zero if overdrawn.

    Charges for authorizations that expired without settlement count as spent.
    """


class ConsideredLabel(Response, frozen=True, omit_defaults=True):
    """A label that was considered, and why it was skipped."""

    label: str
    outcome: Literal["CHOSEN", "SKIPPED"]
    because: str | UnsetType = UNSET


GrantStatus = Literal["authorized", "captured", "voided", "unsettled"]


class AuthorizedAnswer(Response, frozen=True, omit_defaults=True):
    """The grant. `status` is its present state, for one that is settled already."""

    authorization_id: str | None
    """Settles it; null after a dry run."""
    status: GrantStatus
    model: AuthorizedModel
    held_usd_micros: int
    max_output_tokens: int
    expires_at: str
    budgets: list[BudgetAfter]
    limits: dict[str, LimitState]
    considered: list[ConsideredLabel]
    dry_run: bool | UnsetType = UNSET


class CaptureBody(UsedBody, frozen=True):
    """The usage of the call, like a usage record without id and label."""


class CaptureOne(CaptureBody, frozen=True, kw_only=True):
    """One capture of several."""

    authorization_id: Uuid


class CapturesBody(RequestBody, frozen=True):
    """Up to a hundred captures; each is judged by itself."""

    captures: Annotated[list[CaptureOne], Meta(min_length=1, max_length=CAPTURES_MAX)]


class CapturedAnswer(UsageAnswer, frozen=True):
    """The counted usage, and its hold."""

    status: Literal["captured", "duplicate"]
    held_usd_micros: int
    overrun_usd_micros: int
    """By how much the call cost more than its hold."""


class CaptureResult(Response, frozen=True, omit_defaults=True):
    """The outcome of one capture."""

    authorization_id: str | None
    status: Literal["captured", "duplicate", "failed"]
    cost_usd_micros: int | UnsetType = UNSET
    held_usd_micros: int | UnsetType = UNSET
    overrun_usd_micros: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class CapturesAnswer(Response, frozen=True):
    """The outcome of each capture, in order."""

    captured: int
    duplicates: int
    failed: int
    results: list[CaptureResult]


class VoidBody(RequestBody, frozen=True):
    """Why the model was never reached."""

    reason: Reason | None = None


class ExtendBody(RequestBody, frozen=True):
    """How long the hold lasts from now."""

    hold_secs: HoldSecs


class AuthorizationAnswer(Response, frozen=True, omit_defaults=True):
    """An authorization and its present state."""

    authorization_id: str
    status: Literal["open", "captured", "voided", "unsettled"]
    model_label: str
    held_usd_micros: int
    max_output_tokens: int
    authorized_at: str
    expires_at: str
    tags: dict[str, str]
    reason: str
    considered: list[ConsideredLabel]
    cost_usd_micros: int | UnsetType = UNSET
    overrun_usd_micros: int | UnsetType = UNSET
    settled_at: str | UnsetType = UNSET
    void_reason: str | UnsetType = UNSET


class AuthorizationList(Response, frozen=True, omit_defaults=True):
    """Authorizations that are open or unsettled, the newest first."""

    authorizations: list[AuthorizationAnswer]
    next: str | UnsetType = UNSET


class BudgetAnswer(BudgetState, frozen=True, omit_defaults=True, kw_only=True):
    """A budget in its present window. What remains is below zero if it is overdrawn."""

    enforcement: Literal["HARD", "SOFT"]
    kind: Literal["BUDGET", "QUOTA"]
    unsettled_usd_micros: int
    window_started_at: str
    label: str | UnsetType = UNSET
    """Of a quota only."""
    tag: dict[str, str] | UnsetType = UNSET
    """Of a budget per value of a tag only."""


class BudgetList(Response, frozen=True):
    """Every budget that applies, including strict quotas.

    Of a budget per value of a tag, up to 100 values that were used in its window.
    """

    budgets: list[BudgetAnswer]


class ClientBudget(BudgetAnswer, frozen=True, omit_defaults=True, kw_only=True):
    """A budget and its owner."""

    org_id: str
    org_name: str
    app_id: str | UnsetType = UNSET
    """Left out of an organisation's budget."""
    app_name: str | UnsetType = UNSET


class AllBudgets(Response, frozen=True, omit_defaults=True):
    """Budgets of an organisation, of its apps, and of the next organisation.

    A page may be empty and have a next.
    """

    budgets: list[ClientBudget]
    next: str | UnsetType = UNSET
