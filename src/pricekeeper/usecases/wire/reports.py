"""Spend broken down, and single usage records."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.usecases.wire.values import Response


class SpendSum(Response, frozen=True):
    """What was spent. Micro-dollars are whole; what is below one is counted and not shown."""

    cost_usd_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    requests: int
    errors: int
    held_usd_micros: int
    unsettled_usd_micros: int


SpendRow = Annotated[
    dict[str, str | int],
    Meta(
        description="What the row is of, under the names of `group_by`, and then the same fields "
        "as `total`. What has no such tag, and an app that is not known, is an empty text.",
        examples=[{"app": "web", "tag:team": "red", "cost_usd_micros": 12, "requests": 3}],
    ),
]


class SpendAnswer(Response, frozen=True):
    """Spend by group, in order; the total is the exact sum of the rows."""

    rows: list[SpendRow]
    total: SpendSum
    as_of: str | None
    """Everything that was acknowledged before is in it; null, if nothing was aggregated yet."""


class UsageRecord(Response, frozen=True, omit_defaults=True):
    """One usage record as it was counted, or a correction that takes one out."""

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
        Meta(description="Of a correction, whose amounts are negative: the record it takes out."),
    ] = UNSET
    voided_at: Annotated[
        str | UnsetType, Meta(description="Of a voided record: since when it does not count.")
    ] = UNSET
    correction_id: Annotated[
        str | UnsetType, Meta(description="Of a voided record: the correction that takes it out.")
    ] = UNSET


class UsageList(Response, frozen=True, omit_defaults=True):
    """Usage records, the newest first, and where to go on. A page may be empty and have a next."""

    records: list[UsageRecord]
    next: str | UnsetType = UNSET
