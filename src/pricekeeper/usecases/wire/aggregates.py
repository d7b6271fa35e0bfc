"""What a day came to."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from pricekeeper.usecases.wire.values import Response


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
