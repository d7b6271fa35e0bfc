"""Spend: totals of a day, reports, single usage records, forecasts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.wire.values import Response, Spent


class ModelAggregate(Spent, frozen=True):
    """One label's day."""

    bedrock_model_id: str
    quota_usd_micros: int
    quota_pct: float
    quota_status: str
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


class SpendSum(Spent, frozen=True, kw_only=True):
    """Spend and usage. Micro-dollars are rounded down; fractions are counted."""

    requests: int
    errors: int
    held_usd_micros: int
    unsettled_usd_micros: int


SpendRow = Annotated[
    dict[str, str | int],
    Meta(
        description="The values of `group_by` under their names, then the same fields as "
        "`total`. A missing tag and an unknown app are empty texts.",
        examples=[{"app": "web", "tag:team": "red", "cost_usd_micros": 12, "requests": 3}],
    ),
]


class SpendAnswer(Response, frozen=True):
    """Spend by group, in order; the total is the exact sum of the rows."""

    rows: list[SpendRow]
    total: SpendSum
    as_of: str | None
    """Everything acknowledged before this time is included; null before the first aggregation."""


class UsageRecord(Response, frozen=True, omit_defaults=True):
    """A usage record, or a correction that removes one from the totals."""

    request_id: str
    app_id: str | None
    model_label: str
    happened_at: str
    recorded_at: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    cost_usd_micros: int
    service_tier: str | None
    pricing_version: str
    price_estimated: bool
    calling_region: str | None
    tags: dict[str, str]
    status: Literal["OK", "ERROR"]
    voids: Annotated[
        str | UnsetType,
        Meta(
            description="Of a correction, whose amounts are negative: the record that it removes."
        ),
    ] = UNSET
    voided_at: Annotated[
        str | UnsetType, Meta(description="Of a voided record: when it was voided.")
    ] = UNSET
    correction_id: Annotated[
        str | UnsetType, Meta(description="Of a voided record: the correction that removes it.")
    ] = UNSET


class UsageList(Response, frozen=True, omit_defaults=True):
    """Usage records, the newest first. A page may be empty and have a next."""

    records: list[UsageRecord]
    next: str | UnsetType = UNSET


class ForecastAnswer(Response, frozen=True, omit_defaults=True):
    """The forecast of one window. An unknown value is null."""

    kind: Literal["BUDGET", "QUOTA", "TOTAL"]
    """`TOTAL` is all spend of the window, whether a budget counts it or not."""
    scope: Literal["ORG", "APP"]
    window: Literal["HOUR", "DAY", "WEEK", "MONTH"]
    window_started_at: str
    resets_at: str
    spent_usd_micros: int
    """Includes charges for calls that expired without settlement."""
    expected_usd_micros: int | None
    """At the end of the window."""
    low_usd_micros: int | None
    """The end is between this and `high_usd_micros` in 80 % of cases."""
    high_usd_micros: int | None
    straight_line_usd_micros: int | None
    """The end at the average rate so far."""
    method: Literal["PROFILE", "STRAIGHT_LINE", "NONE"]
    """`PROFILE` uses recorded weekdays and hours, `STRAIGHT_LINE` the average rate if those are too
    few."""
    history_hours: int
    name: str | UnsetType = UNSET
    limit_usd_micros: int | UnsetType = UNSET
    spent_at: str | UnsetType = UNSET
    """When the limit is expected to be spent, if within this window."""
    spent_at_earliest: str | UnsetType = UNSET
    """When it would be spent if the window ended at `high_usd_micros`."""
    label: str | UnsetType = UNSET
    """Of a quota only."""
    tag: dict[str, str] | UnsetType = UNSET
    """Of a budget per value of a tag only."""


class ForecastList(Response, frozen=True):
    """A forecast for every budget that applies, and for the total of today and of this month."""

    forecasts: list[ForecastAnswer]
