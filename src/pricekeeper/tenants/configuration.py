"""What an organisation and an app can be configured with: fields, defaults and bounds.

Values of these types are valid: they come out of `parsing` or out of the store. Their bounds are
those of what is stored; `wire.settings` has those of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from pricekeeper.tenants.alerting import DEFAULTS, AlertSettings
from pricekeeper.tenants.budget import Budget, QuotaEnforcement
from pricekeeper.values import ModelLabel
from pricekeeper.wire.bounds import (
    OUTPUT_CAP_RANGE,
    REFRESH_NORMAL_SECS_DEFAULT,
    REFRESH_SECS_RANGE,
    REFRESH_TIGHT_SECS_DEFAULT,
    SESSION_LIMIT_DEFAULT,
    SESSION_LIMIT_RANGE,
    SHARD_COUNT_DEFAULT,
    TIGHT_PCT_DEFAULT,
)

SHARD_COUNT_MAX: Final = 1_024
"""The most shards in an imported item; settings allow only a few counts."""


ANY_LABEL: Final = "*"

INHERITED: Final = (
    "model_ordering",
    "quotas",
    "tight_mode_threshold_pct",
    "refresh_interval_normal_secs",
    "refresh_interval_tight_secs",
    "session_limit",
    "rate_limits",
    "max_output_tokens_cap",
)
"""What an app may override; everything else is the org's alone."""


class QuotaScope(StrEnum):
    """Whether the apps of an organisation share its quotas or have their own."""

    ORG = "ORG"
    APP = "APP"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket: up to ``capacity``, and ``refill_amount`` more in every period."""

    capacity: int
    refill_amount: int
    refill_period_ms: int


_Percent: TypeAlias = Annotated[int, Meta(ge=0)]
_Seconds: TypeAlias = Annotated[int, Meta(ge=REFRESH_SECS_RANGE[0])]
_Sessions: TypeAlias = Annotated[int, Meta(ge=SESSION_LIMIT_RANGE[0], le=SESSION_LIMIT_RANGE[1])]
_OutputCap: TypeAlias = Annotated[int, Meta(ge=OUTPUT_CAP_RANGE[0], le=OUTPUT_CAP_RANGE[1])]
ShardCount: TypeAlias = Annotated[int, Meta(ge=1, le=SHARD_COUNT_MAX)]
Quotas: TypeAlias = Mapping[ModelLabel, Annotated[int, Meta(ge=0)]]
"""Micro-dollars a day by label."""
RateLimits: TypeAlias = Mapping[str, Mapping[str, RateLimit]]
"""By label, or `ANY_LABEL`, then by the limit's name."""


@dataclass(frozen=True, slots=True)
class OrgSettings:
    """What an organisation is configured with; its apps inherit it."""

    org_name: str
    timezone: str
    quota_scope: QuotaScope
    model_ordering: tuple[ModelLabel, ...]
    quotas: Quotas
    sticky_fallback_enabled: bool = True
    agg_shard_count: ShardCount = SHARD_COUNT_DEFAULT
    tight_mode_threshold_pct: _Percent = TIGHT_PCT_DEFAULT
    refresh_interval_normal_secs: _Seconds = REFRESH_NORMAL_SECS_DEFAULT
    refresh_interval_tight_secs: _Seconds = REFRESH_TIGHT_SECS_DEFAULT
    session_limit: _Sessions = SESSION_LIMIT_DEFAULT
    rate_limits: RateLimits = field(default_factory=dict)
    tag_keys: tuple[str, ...] = ()
    """Spend is totalled by the values of these tags, too."""
    budgets: tuple[Budget, ...] = ()
    """All of its apps spend from them."""
    quota_enforcement: QuotaEnforcement = QuotaEnforcement.ADVISORY
    """Whether the quotas are hard budgets, too."""
    alerts: AlertSettings = DEFAULTS
    """The thresholds of alerts; budgets have their own."""
    max_output_tokens_cap: _OutputCap | None = None
    """The longest answer that a call may have; ``None`` is no cap."""


@dataclass(frozen=True, slots=True)
class AppSettings:
    """What an app overrides; ``None`` is inherited. Budgets are its own, beside the org's."""

    app_name: str
    model_ordering: tuple[ModelLabel, ...] | None = None
    quotas: Quotas | None = None
    tight_mode_threshold_pct: _Percent | None = None
    refresh_interval_normal_secs: _Seconds | None = None
    refresh_interval_tight_secs: _Seconds | None = None
    session_limit: _Sessions | None = None
    rate_limits: RateLimits | None = None
    budgets: tuple[Budget, ...] | None = None
    max_output_tokens_cap: _OutputCap | None = None
