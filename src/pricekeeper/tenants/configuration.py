"""The settings of organisations and apps: fields, defaults and bounds.

The bounds are those of stored settings; `wire.settings` has those of requests. Strict quotas are
budgets with reserved names. Alert channels are no settings: they hold secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from pricekeeper.values import ModelLabel
from pricekeeper.wire.bounds import (
    ANOMALY_PCT_DEFAULT,
    BUDGET_NAME,
    DENIED_PCT_DEFAULT,
    OUTPUT_CAP_RANGE,
    QUOTA_AT_PCT_DEFAULT,
    REFRESH_NORMAL_SECS_DEFAULT,
    REFRESH_SECS_RANGE,
    REFRESH_TIGHT_SECS_DEFAULT,
    SECRET_DAYS_DEFAULT,
    SESSION_LIMIT_DEFAULT,
    SESSION_LIMIT_RANGE,
    SHARD_COUNT_DEFAULT,
    TIGHT_PCT_DEFAULT,
    UNSETTLED_PCT_DEFAULT,
)

_BUDGET_NAME: Final = re.compile(BUDGET_NAME)


class Window(StrEnum):
    """The period of a budget, by the organisation's calendar; weeks begin on Monday."""

    HOUR = "HOUR"
    DAY = "DAY"
    WEEK = "WEEK"
    MONTH = "MONTH"


class Enforcement(StrEnum):
    """Whether an exhausted budget denies calls, or only alerts."""

    HARD = "HARD"
    SOFT = "SOFT"


class QuotaEnforcement(StrEnum):
    """Whether daily quotas only guide the choice of a model, or are hard budgets too."""

    ADVISORY = "ADVISORY"
    STRICT = "STRICT"


class Budget(Struct, frozen=True):
    """A limit for each window, on some labels or all, or for each value of a tag."""

    name: str
    window: Window
    limit_usd_micros: Annotated[int, Meta(ge=0)]
    labels: tuple[ModelLabel, ...] = ()
    per_tag: str | None = None
    """Each value of this tag has a budget of its own."""
    enforcement: Enforcement = Enforcement.HARD
    alert_at_pct: tuple[Annotated[int, Meta(ge=1)], ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "alert_at_pct", tuple(sorted(set(self.alert_at_pct))))


def is_budget_name(name: str) -> bool:
    """Check a name, which becomes a part of keys."""
    return _BUDGET_NAME.fullmatch(name) is not None


class AlertSettings(Struct, frozen=True):
    """The alert thresholds of an organisation; an empty list or 0 means no alert."""

    quota_at_pct: tuple[Annotated[int, Meta(ge=1)], ...] = QUOTA_AT_PCT_DEFAULT
    denied_pct: Annotated[int, Meta(ge=0)] = DENIED_PCT_DEFAULT
    """The share of an app's calls denied in ten minutes."""
    unsettled_pct: Annotated[int, Meta(ge=0)] = UNSETTLED_PCT_DEFAULT
    """The share of an hour's charges for calls that were never settled."""
    anomaly_pct: Annotated[int, Meta(ge=0)] = ANOMALY_PCT_DEFAULT
    """Today's spend, as a percentage of the usual."""
    secret_days: Annotated[int, Meta(ge=0)] = SECRET_DAYS_DEFAULT

    def __post_init__(self) -> None:
        force_setattr(self, "quota_at_pct", tuple(sorted(set(self.quota_at_pct))))


ALERTS_DEFAULT: Final = AlertSettings()
SHARD_COUNT_MAX: Final = 1_024
"""For imported items; settings allow only a few counts."""
ANY_LABEL: Final = "*"


class QuotaScope(StrEnum):
    """Whether an organisation's apps share its quotas, or have their own."""

    ORG = "ORG"
    APP = "APP"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket of ``capacity`` that gets ``refill_amount`` in each period."""

    capacity: int
    refill_amount: int
    refill_period_ms: int


_Percent: TypeAlias = Annotated[int, Meta(ge=0)]
_Seconds: TypeAlias = Annotated[int, Meta(ge=REFRESH_SECS_RANGE[0])]
_Sessions: TypeAlias = Annotated[int, Meta(ge=SESSION_LIMIT_RANGE[0], le=SESSION_LIMIT_RANGE[1])]
_OutputCap: TypeAlias = Annotated[int, Meta(ge=OUTPUT_CAP_RANGE[0], le=OUTPUT_CAP_RANGE[1])]
ShardCount: TypeAlias = Annotated[int, Meta(ge=1, le=SHARD_COUNT_MAX)]
Quotas: TypeAlias = Mapping[ModelLabel, Annotated[int, Meta(ge=0)]]
RateLimits: TypeAlias = Mapping[str, Mapping[str, RateLimit]]


@dataclass(frozen=True, slots=True)
class OrgSettings:
    """The settings of an organisation, which its apps inherit."""

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
    budgets: tuple[Budget, ...] = ()
    quota_enforcement: QuotaEnforcement = QuotaEnforcement.ADVISORY
    alerts: AlertSettings = ALERTS_DEFAULT
    max_output_tokens_cap: _OutputCap | None = None


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The overrides of an app; ``None`` means inherited. Budgets add to the organisation's."""

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


INHERITED: Final = tuple(
    one.name for one in fields(AppSettings) if one.name not in {"app_name", "budgets"}
)
