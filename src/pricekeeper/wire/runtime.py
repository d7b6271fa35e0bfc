"""Usage, model selection and rate limits of apps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from pricekeeper.tags import TAG_BYTES_MAX, TAGS_MAX
from pricekeeper.wire.bounds import BATCH_MAX
from pricekeeper.wire.values import (
    Amount,
    Delta,
    Label,
    LimitName,
    RequestBody,
    Response,
    Timestamp,
    Tokens,
    Uuid,
)

ModelId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        description="The model that was called; it must be the label's.",
    ),
]
ServiceTier = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9._-]{1,32}$",
        description="The tier that served the call, from Bedrock's response. A tier without "
        "prices is charged at the model's highest, and marked price_estimated.",
        examples=["default", "priority", "flex", "reserved"],
    ),
]
Region = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$", examples=["us-east-1"])]
Tags = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=TAG_BYTES_MAX)],
        Annotated[str, Meta(max_length=TAG_BYTES_MAX)],
    ],
    Meta(
        max_length=TAGS_MAX + 1,  # with our own mark, `BLIND_TAG`
        description="Stored with the record: at most 16. A name and a value have at most 256 "
        "bytes in UTF-8.",
    ),
]


class UsedBody(RequestBody, frozen=True, kw_only=True):
    """The usage of one model call."""

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
    tags: Tags = field(default_factory=dict)


class UsageBody(UsedBody, frozen=True):
    """A usage record: the usage of one model call, its id and its label."""

    request_id: Uuid
    model_label: Label


class BatchBody(RequestBody, frozen=True):
    """Up to a hundred records; each is judged by itself."""

    requests: Annotated[list[UsageBody], Meta(min_length=1, max_length=BATCH_MAX)]


class DailyTotalAnswer(Response, frozen=True):
    """Today's total of this label, as of the last aggregation."""

    cost_usd_micros: int
    requests: int
    quota_pct: float
    mode: str
    as_of: str


class UsageAnswer(Response, frozen=True):
    """The counted usage."""

    request_id: str
    status: str
    cost_usd_micros: int
    pricing_version: str
    shard_id: int
    org_day: str
    daily_total: DailyTotalAnswer | None
    price_estimated: bool
    """Whether the tier has no prices, so that the model's highest were used."""

    @property
    def duplicate(self) -> bool:
        """Whether an earlier submission counts, and this one does not."""
        return self.status == "duplicate"

    @property
    def mode(self) -> str:
        """Of the label's quota: ``NORMAL``, ``TIGHT``, ``EXCEEDED``; empty if unknown."""
        return "" if self.daily_total is None else self.daily_total.mode


class BatchResult(Response, frozen=True, omit_defaults=True):
    """The outcome of one record."""

    request_id: str | None
    status: str
    cost_usd_micros: int | UnsetType = UNSET
    price_estimated: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class BatchAnswer(Response, frozen=True):
    """The outcome of each record, in order."""

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
    burn_down_factor_permille: int
    """How many thousandths of a token Bedrock's throttling counts for each output token."""


class ModelStatus(Response, frozen=True):
    """The use of a label's quota."""

    spend_usd_micros: int
    quota_usd_micros: int
    quota_pct: float
    status: str


class QuotaStatus(Response, frozen=True):
    """The quotas that decided."""

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


class AcquireBody(RequestBody, frozen=True):
    """The amounts to take from the buckets of a label."""

    resource: Label
    consume: Annotated[dict[LimitName, Amount], Meta(min_length=1, max_length=16)]
    lease_id: Uuid | None = None


class LimitState(Response, frozen=True):
    """A limit after the call. What remains is below zero in debt."""

    remaining: int
    capacity: int
    resets_at: str


class Acquired(Response, frozen=True):
    """A lease."""

    lease_id: str
    granted: bool
    limits: dict[str, LimitState]
    burn_down_factor_permille: int
    """For settling the lease: what Bedrock's throttling counts for each output token."""

    @property
    def id(self) -> str:
        return self.lease_id


class AdjustBody(RequestBody, frozen=True):
    """The difference between the real use and the amounts taken."""

    adjustment_id: Uuid
    delta: Annotated[dict[LimitName, Delta], Meta(min_length=1, max_length=16)]


class Adjusted(Response, frozen=True):
    """The adjusted lease and what it holds now: less than asked if a debt is at its bound."""

    lease_id: str
    held: dict[str, int]


class BucketState(LimitState, frozen=True):
    """A limit of a bucket."""

    consumed: int
    """Tokens taken and not given back, over the life of the bucket."""


class LimitList(Response, frozen=True):
    """The buckets that an acquire of this app takes from, by resource and limit."""

    resources: dict[str, dict[str, BucketState]]
    org_resources: dict[str, dict[str, BucketState]]
    """Of its organisation, shared with the other apps."""
