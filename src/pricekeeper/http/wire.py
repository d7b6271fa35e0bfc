"""The shapes of the API's JSON, exactly as the contract names them.

These are the types that requests are parsed into and answers are encoded from, and the OpenAPI
document is generated from them. Times are RFC 3339 text in UTC, money is integer micro-dollars.

A rule in `extra_json_schema` is only told here: whoever reads the field keeps it, and says what is
wrong in better words than a pattern has.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Tokens = Annotated[int, Meta(ge=0, le=10**9)]
Micros = Annotated[int, Meta(ge=0, le=10**15)]
Uuid = Annotated[
    str,
    Meta(pattern="^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"),
]
APP_ID: Final = r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}$"
Label = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
LabelOrAny = Annotated[str, Meta(pattern=r"^(\*|[a-z0-9][a-z0-9._-]{0,63})$")]
LimitName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,31}$")]
Amount = Annotated[int, Meta(ge=0, le=10**12)]
Delta = Annotated[int, Meta(ge=-(10**12), le=10**12)]
ShortText = Annotated[str, Meta(max_length=256)]
TIMESTAMP: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
Timestamp = Annotated[
    str,
    Meta(
        min_length=20,
        max_length=40,
        examples=["2026-01-23T15:30:45Z"],
        extra_json_schema={"format": "date-time", "pattern": TIMESTAMP},
    ),
]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller sends: an unknown field is a mistake, not a wish."""


class Response(msgspec.Struct, frozen=True):
    """What we send back."""


class Mistake(Response, frozen=True):
    """One bad field."""

    field: str
    message: str


class ProblemBody(Response, frozen=True):
    """RFC 9457, with our stable code, the request's id and typed extras."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Mistake] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET


class OAuthError(Response, frozen=True):
    """RFC 6749, section 5.2."""

    error: str
    error_description: str


# -- provisioning -------------------------------------------------------------------------


class RateLimitBody(Request, frozen=True):
    """A token bucket. From empty to full in ten years at most."""

    capacity: Annotated[int, Meta(ge=1, le=10**12)]
    refill_amount: Annotated[int, Meta(ge=1, le=10**12)]
    refill_period_ms: Annotated[int, Meta(ge=1, le=31 * 86_400_000)]


Name = Annotated[
    str,
    Meta(
        pattern=r"\S",
        min_length=1,
        max_length=200,
        description="Printable characters; blanks around them do not count.",
    ),
]
TimeZone = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$",
        max_length=64,
        description="The name of an IANA time zone.",
        examples=["America/New_York"],
    ),
]
Ordering = Annotated[
    list[Label],
    Meta(
        min_length=1,
        max_length=64,
        description="Labels of this deployment, the first choice first, each once.",
        extra_json_schema={"uniqueItems": True},
    ),
]
Quotas = Annotated[
    dict[Label, Micros],
    Meta(description="Micro-dollars a day, for every label of the ordering at least."),
]
RateLimits = Annotated[
    dict[LabelOrAny, Annotated[dict[LimitName, RateLimitBody], Meta(max_length=16)]],
    Meta(description="Token buckets by label, or * for any, and then by name."),
]


class OrgBody(Request, frozen=True):
    """An organisation's settings; null is as good as left out."""

    org_name: Name
    timezone: TimeZone
    quota_scope: Literal["ORG", "APP"]
    model_ordering: Ordering
    quotas: Quotas
    sticky_fallback_enabled: bool | None = True
    agg_shard_count: Literal[8, 16, 32, 64] | None = 8
    tight_mode_threshold_pct: Annotated[int, Meta(ge=50, le=100)] | None = 95
    refresh_interval_normal_secs: Annotated[int, Meta(ge=1, le=86_400)] | None = 300
    refresh_interval_tight_secs: Annotated[int, Meta(ge=1, le=86_400)] | None = 60
    session_limit: Annotated[int, Meta(ge=1, le=100)] | None = 5
    rate_limits: RateLimits | None = {}


class AppBody(Request, frozen=True):
    """An app's settings: its name, and what it overrides."""

    app_name: Name
    model_ordering: Ordering | None = None
    quotas: Quotas | None = None
    tight_mode_threshold_pct: Annotated[int, Meta(ge=50, le=100)] | None = None
    refresh_interval_normal_secs: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    refresh_interval_tight_secs: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    session_limit: Annotated[int, Meta(ge=1, le=100)] | None = None
    rate_limits: RateLimits | None = None


class SecretRetrieval(Response, frozen=True):
    """A one-time token that can be claimed for the secret."""

    token: str
    expires_at: str


class Configuration(Response, frozen=True):
    """What is in force, inherited or not."""

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


class OrgAnswer(Response, frozen=True, omit_defaults=True):
    """An organisation."""

    org_id: str
    org_name: str
    client_id: str
    configuration: Configuration
    status: str | UnsetType = UNSET
    secret_retrieval: SecretRetrieval | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET


class AppAnswer(Response, frozen=True, omit_defaults=True):
    """An app."""

    org_id: str
    app_id: str
    app_name: str
    client_id: str
    configuration: Configuration
    inherited_fields: list[str]
    status: str | UnsetType = UNSET
    secret_retrieval: SecretRetrieval | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET


class OrgList(Response, frozen=True, omit_defaults=True):
    """Organisations, and where to go on."""

    orgs: list[OrgAnswer]
    next: str | UnsetType = UNSET


class AppList(Response, frozen=True, omit_defaults=True):
    """Apps, and where to go on."""

    apps: list[AppAnswer]
    next: str | UnsetType = UNSET


class RotateBody(Request, frozen=True):
    """How long the old secret lives on once the new one has been claimed."""

    grace_period_hours: Annotated[int, Meta(ge=0, le=168)]


class Rotated(Response, frozen=True):
    """The way to the new secret."""

    client_id: str
    secret_retrieval: SecretRetrieval
    grace_period_hours: int


class ClaimBody(Request, frozen=True):
    """The one-time token."""

    token: Annotated[str, Meta(min_length=1, max_length=256)]


class Claimed(Response, frozen=True, omit_defaults=True):
    """The secret: shown now and never again."""

    client_id: str
    client_secret: str
    old_secret_expires_at: str | UnsetType = UNSET


class OverrideBody(Request, frozen=True):
    """The label to use until the end of the organisation's day."""

    model_label: Label


class OverrideAnswer(Response, frozen=True):
    """The override in force."""

    model_label: str
    org_day: str
    expires_at: str


# -- identity -----------------------------------------------------------------------------


class TokenBody(Request, frozen=True):
    """Client credentials; HTTP Basic may carry the client instead."""

    grant_type: Annotated[str, Meta(extra_json_schema={"const": "client_credentials"})]
    client_id: ShortText = ""
    client_secret: ShortText = ""
    scope: ShortText = ""


class RefreshBody(Request, frozen=True):
    """A refresh token."""

    grant_type: Annotated[str, Meta(extra_json_schema={"const": "refresh_token"})]
    refresh_token: Annotated[str, Meta(max_length=4096)]


class RevokeBody(Request, frozen=True):
    """A token of one's own; the client may be named here or by HTTP Basic or Bearer."""

    token: Annotated[str, Meta(max_length=8192)]
    token_type_hint: ShortText = ""
    client_id: ShortText = ""
    client_secret: ShortText = ""


class TokenAnswer(Response, frozen=True):
    """RFC 6749, section 5.1, with our session."""

    access_token: str
    refresh_token: str
    token_type: str
    expires_in: int
    refresh_expires_in: int
    scope: str
    session_id: str


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
    """My live sessions, the oldest first."""

    sessions: list[SessionAnswer]
    limit: int


class Empty(Response, frozen=True):
    """Nothing to say."""


class Claims(Response, frozen=True, omit_defaults=True):
    """RFC 7662: what a token says, if it counts."""

    active: bool
    iss: str | UnsetType = UNSET
    sub: str | UnsetType = UNSET
    aud: str | UnsetType = UNSET
    exp: int | UnsetType = UNSET
    iat: int | UnsetType = UNSET
    jti: str | UnsetType = UNSET
    sid: str | UnsetType = UNSET
    org_id: str | UnsetType = UNSET
    app_id: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    token_type: str | UnsetType = UNSET


class Metadata(Response, frozen=True):
    """RFC 8414."""

    issuer: str
    token_endpoint: str
    revocation_endpoint: str
    introspection_endpoint: str
    jwks_uri: str
    grant_types_supported: list[str]
    response_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]
    revocation_endpoint_auth_methods_supported: list[str]
    service_documentation: str


class Jwks(Response, frozen=True):
    """RFC 7517."""

    keys: list[dict[str, Any]]


# -- runtime ------------------------------------------------------------------------------


ModelId = Annotated[
    str,
    Meta(min_length=1, max_length=2048, description="What was called; it must be the label's."),
]
ServiceTier = Annotated[
    str,
    Meta(
        max_length=32,
        description="The tier that served the call, as Bedrock's response says.",
        extra_json_schema={"enum": ["default", "priority", "flex", "reserved"]},
    ),
]
Region = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$", examples=["us-east-1"])]


class UsageBody(Request, frozen=True):
    """What one model call used."""

    request_id: Uuid
    model_label: Label
    input_tokens: Tokens
    output_tokens: Tokens
    cache_read_tokens: Tokens = 0
    cache_write_5m_tokens: Tokens = 0
    cache_write_1h_tokens: Tokens = 0
    service_tier: ServiceTier | None = None
    batch: bool = False
    bedrock_model_id: ModelId | None = None
    calling_region: Region | None = None
    status: Literal["OK", "ERROR"] = "OK"
    timestamp: Timestamp | None = None
    tags: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=64)],
            Annotated[str, Meta(max_length=256)],
        ],
        Meta(max_length=16),
    ] = {}


class BatchBody(Request, frozen=True):
    """Up to a hundred records; each is judged by itself."""

    requests: Annotated[list[UsageBody], Meta(min_length=1, max_length=100)]


class DailyTotalAnswer(Response, frozen=True):
    """Today's sum for this label, as far as it is known here."""

    cost_usd_micros: int
    requests: int
    quota_pct: float
    mode: str
    as_of: str


class UsageAnswer(Response, frozen=True):
    """What was counted."""

    request_id: str
    status: str
    cost_usd_micros: int
    pricing_version: str
    shard_id: int
    org_day: str
    daily_total: DailyTotalAnswer | None


class BatchResult(Response, frozen=True, omit_defaults=True):
    """What became of one record."""

    request_id: str | None
    status: str
    cost_usd_micros: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class BatchAnswer(Response, frozen=True):
    """What became of each record, in order."""

    accepted: int
    duplicates: int
    failed: int
    results: list[BatchResult]


class RecommendedModel(Response, frozen=True):
    """Which model to call now, and why."""

    label: str
    bedrock_model_id: str
    reason: str
    description: str


class ModelStatus(Response, frozen=True):
    """How far a label's quota is used up."""

    spend_usd_micros: int
    quota_usd_micros: int
    quota_pct: float
    status: str


class QuotaStatus(Response, frozen=True):
    """The quotas that were looked at."""

    scope: str
    mode: str
    current_model: str
    spend_usd_micros: int
    quota_usd_micros: int
    quota_pct: float
    sticky_fallback_active: bool
    models_status: dict[str, ModelStatus]


class Guidance(Response, frozen=True):
    """When to ask again, and the decision in words."""

    check_frequency: str
    cache_duration_secs: int
    explanation: str


class SelectionAnswer(Response, frozen=True):
    """The model to call now."""

    recommended_model: RecommendedModel
    quota_status: QuotaStatus
    pricing: dict[str, Any]
    client_guidance: Guidance
    checked_at: str
    org_day: str
    org_local_time: str
    resets_at: str


class ModelAggregate(Response, frozen=True):
    """One label's day."""

    bedrock_model_id: str
    cost_usd_micros: int
    quota_usd_micros: int
    quota_pct: float
    quota_status: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    requests: int
    average_cost_usd_micros: int


class AggregateAnswer(Response, frozen=True, omit_defaults=True):
    """One day of an organisation or an app."""

    org_id: str
    date: str
    timezone: str
    quota_scope: str
    models: dict[str, ModelAggregate]
    total_cost_usd_micros: int
    total_quota_usd_micros: int
    total_quota_pct: float
    sticky_fallback_active: bool
    current_active_model: str | None
    updated_at: str | None
    app_id: str | UnsetType = UNSET
    apps: dict[str, int] | UnsetType = UNSET


class AggregateRange(Response, frozen=True, omit_defaults=True):
    """Several days, the earliest first."""

    org_id: str
    days: list[AggregateAnswer]
    app_id: str | UnsetType = UNSET


class AcquireBody(Request, frozen=True):
    """What to take from the buckets of a label."""

    resource: Label
    consume: Annotated[dict[LimitName, Amount], Meta(min_length=1, max_length=16)]
    lease_id: Uuid | None = None


class LimitState(Response, frozen=True):
    """One limit after the call."""

    remaining: int
    capacity: int
    resets_at: str


class Acquired(Response, frozen=True):
    """A lease."""

    lease_id: str
    granted: bool
    limits: dict[str, LimitState]


class AdjustBody(Request, frozen=True):
    """What was really used, as the difference to what was taken."""

    adjustment_id: Uuid
    delta: Annotated[dict[LimitName, Delta], Meta(min_length=1, max_length=16)]


class Adjusted(Response, frozen=True):
    """The lease that was adjusted."""

    lease_id: str


class LimitList(Response, frozen=True):
    """The buckets of this app: by resource, then by limit."""

    resources: dict[str, dict[str, LimitState]]


class Health(Response, frozen=True):
    """A word about the process."""

    status: str
