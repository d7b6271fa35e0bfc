"""Organisations and apps: settings, credentials, sessions, overrides and containment."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.values import REASON_LENGTH_MAX
from pricekeeper.wire.bounds import GRACE_HOURS_MAX
from pricekeeper.wire.settings import AlertsBody, BudgetBody, RateLimitBody
from pricekeeper.wire.values import Label, RequestBody, Response


class SessionAnswer(Response, frozen=True):
    """A live session."""

    session_id: str
    created_at: str
    last_used_at: str
    expires_at: str
    user_agent: str
    address: str
    current: bool


class SessionList(Response, frozen=True):
    """The live sessions of a client, the oldest first."""

    sessions: list[SessionAnswer]
    limit: int


class SecretRetrieval(Response, frozen=True):
    """A one-time token that can be claimed for the secret."""

    token: str
    expires_at: str


class Configuration(Response, frozen=True):
    """The settings in force, inherited or not; the budgets are the client's own."""

    timezone: str
    quota_scope: str
    model_ordering: list[str]
    quotas: dict[str, int]
    sticky_fallback_enabled: bool
    agg_shard_count: int
    tight_mode_threshold_pct: int
    refresh_interval_normal_secs: int
    refresh_interval_tight_secs: int
    session_limit: int
    rate_limits: dict[str, dict[str, RateLimitBody]]
    tag_keys: list[str]
    budgets: list[BudgetBody]
    quota_enforcement: str
    alerts: AlertsBody
    max_output_tokens_cap: int | None


class Frozen(Response, frozen=True):
    """The reason, the time, and whether the organisation or only the app is frozen."""

    reason: str
    at: str
    scope: Literal["ORG", "APP"]


class ClientAnswer(Response, frozen=True, omit_defaults=True, kw_only=True):
    """Fields of both organisations and apps."""

    status: str | UnsetType = UNSET
    secret_retrieval: SecretRetrieval | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    client_secret_created_at: str | UnsetType = UNSET
    frozen: Frozen | UnsetType = UNSET


class OrgAnswer(ClientAnswer, frozen=True, omit_defaults=True):
    """An organisation."""

    org_id: str
    org_name: str
    client_id: str
    configuration: Configuration


class AppAnswer(ClientAnswer, frozen=True, omit_defaults=True):
    """An app."""

    org_id: str
    app_id: str
    app_name: str
    client_id: str
    configuration: Configuration
    inherited_fields: list[str]


class OrgList(Response, frozen=True, omit_defaults=True):
    """A page of organisations."""

    orgs: list[OrgAnswer]
    next: str | UnsetType = UNSET


class AppList(Response, frozen=True, omit_defaults=True):
    """A page of apps."""

    apps: list[AppAnswer]
    next: str | UnsetType = UNSET


class RotateBody(RequestBody, frozen=True):
    """How long the old secret works after the new one was claimed."""

    grace_period_hours: Annotated[int, Meta(ge=0, le=GRACE_HOURS_MAX)]


class Rotated(Response, frozen=True):
    """How to get the new secret."""

    client_id: str
    secret_retrieval: SecretRetrieval
    grace_period_hours: int


class ClaimBody(RequestBody, frozen=True):
    """The one-time token."""

    token: Annotated[str, Meta(min_length=1, max_length=256)]


class Claimed(Response, frozen=True, omit_defaults=True):
    """The secret; only this answer shows it."""

    client_id: str
    client_secret: str
    old_secret_expires_at: str | UnsetType = UNSET


class ProvisioningKey(Response, frozen=True):
    """The organisation's own key; only this answer shows it."""

    org_id: str
    provisioning_key: str


class OverrideBody(RequestBody, frozen=True):
    """The label to use until the end of the organisation's day."""

    model_label: Label


class OverrideAnswer(Response, frozen=True):
    """The override in force."""

    model_label: str
    org_day: str
    expires_at: str


Reason = Annotated[
    str,
    Meta(
        pattern=r"\S",
        min_length=1,
        max_length=REASON_LENGTH_MAX,
        description="Why, for people: printable characters without a secret.",
        examples=["found in a public repository"],
    ),
]


class ReasonBody(RequestBody, frozen=True):
    """The reason of a change."""

    reason: Reason


class RevokeCredentialsBody(RequestBody, frozen=True):
    """The reason, and which secrets: all, or only the old one in its grace period."""

    reason: Reason
    secrets: Literal["ALL", "PREVIOUS"] = "ALL"


class CredentialsRevoked(Response, frozen=True):
    """The client whose secrets and tokens were revoked."""

    client_id: str
    status: str
    secrets: str


class FreezeAnswer(Response, frozen=True):
    """The freeze in force."""

    client_id: str
    frozen: Frozen


class LimitsReset(Response, frozen=True):
    """The labels whose buckets were filled. If none is listed, all were full."""

    client_id: str
    labels: list[str]


class UsageVoided(Response, frozen=True):
    """The voided record and its correction. Both stay listed."""

    request_id: str
    status: str
    correction_id: str
    voided_at: str
    app_id: str | None
    model_label: str
    cost_usd_micros: int


class AuthorizationVoided(Response, frozen=True):
    """The voided authorization and its client."""

    authorization_id: str
    status: str
    client_id: str
