"""Settings as attributes of a client's item, and back. What can't be read raises.

Attributes that this service added to the schema, and those with a default in it, need not be there:
an imported item is one like any other.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from pricekeeper.storage import Item, TypedItem
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import configuration as bounds
from pricekeeper.tenants.alerting import AlertSettings
from pricekeeper.tenants.budget import BUDGETS_MAX, Budget, QuotaEnforcement, is_budget_name
from pricekeeper.tenants.configuration import (
    AppSettings,
    OrgSettings,
    Quotas,
    QuotaScope,
    RateLimit,
    RateLimits,
)
from pricekeeper.tenants.parsing import is_tag_key, is_time_zone
from pricekeeper.values import ModelLabel


def org_settings(item: Item) -> OrgSettings:
    """Read the settings of an organisation."""
    typed = TypedItem(CONFIG, item)
    timezone = typed.text("timezone")
    if not is_time_zone(timezone):
        raise typed.report_unreadable("timezone names no time zone")
    scope = typed.text("quota_scope")
    if scope not in set(QuotaScope):
        raise typed.report_unreadable("quota_scope must be ORG or APP")
    enforcement = typed.text("quota_enforcement", QuotaEnforcement.ADVISORY)
    if enforcement not in set(QuotaEnforcement):
        raise typed.report_unreadable("quota_enforcement must be ADVISORY or STRICT")
    return OrgSettings(
        org_name=typed.text("org_name"),
        timezone=timezone,
        quota_scope=QuotaScope(scope),
        model_ordering=_ordering(typed),
        quotas=_quotas(typed),
        sticky_fallback_enabled=typed.flag("sticky_fallback_enabled", default=True),
        agg_shard_count=shard_count_of(item),
        tight_mode_threshold_pct=typed.whole(
            "tight_mode_threshold_pct", bounds.TIGHT_PCT_DEFAULT, least=0
        ),
        refresh_interval_normal_secs=typed.whole(
            "refresh_interval_normal_secs", bounds.REFRESH_NORMAL_SECS_DEFAULT, least=1
        ),
        refresh_interval_tight_secs=typed.whole(
            "refresh_interval_tight_secs", bounds.REFRESH_TIGHT_SECS_DEFAULT, least=1
        ),
        session_limit=_session_limit(typed, bounds.SESSION_LIMIT_DEFAULT),
        rate_limits=_rate_limits(typed, {}),
        tag_keys=_tag_keys(typed),
        budgets=_budgets(typed, ()),
        quota_enforcement=QuotaEnforcement(enforcement),
        alerts=_alerts(typed),
    )


def shard_count_of(item: Item) -> int:
    """Over how many shards an organisation's usage is spread: it can never be changed."""
    typed = TypedItem(CONFIG, item)
    count: int = typed.whole("agg_shard_count", bounds.SHARD_COUNT_DEFAULT, least=1)
    if count > bounds.SHARD_COUNT_MAX:
        raise typed.report_unreadable(f"agg_shard_count must be at most {bounds.SHARD_COUNT_MAX}")
    return count


def app_settings(item: Item) -> AppSettings:
    """Read what an app overrides."""
    typed = TypedItem(CONFIG, item)
    return AppSettings(
        app_name=typed.text("app_name"),
        model_ordering=_ordering(typed) if "model_ordering" in item else None,
        quotas=_quotas(typed) if "quotas" in item else None,
        tight_mode_threshold_pct=typed.whole("tight_mode_threshold_pct", None, least=0),
        refresh_interval_normal_secs=typed.whole("refresh_interval_normal_secs", None, least=1),
        refresh_interval_tight_secs=typed.whole("refresh_interval_tight_secs", None, least=1),
        session_limit=_session_limit(typed, None),
        rate_limits=_rate_limits(typed, None),
        budgets=_budgets(typed, None),
    )


def stored_settings(settings: OrgSettings | AppSettings) -> Item:
    """The attributes of an item that these settings are."""
    written = {name: value for name, value in asdict(settings).items() if value is not None}
    if "model_ordering" in written:
        written["model_ordering"] = list(written["model_ordering"])
    if "tag_keys" in written:
        written["tag_keys"] = list(written["tag_keys"])
    if "budgets" in written:
        written["budgets"] = [_stored(budget) for budget in written["budgets"]]
    if "alerts" in written:
        written["alerts"] = _as_map(written["alerts"])
    for name in ("quota_scope", "quota_enforcement"):
        if name in written:
            written[name] = str(written[name])
    return written


def _ordering(typed: TypedItem) -> tuple[ModelLabel, ...]:
    return tuple(ModelLabel(label) for label in typed.texts("model_ordering"))


def _tag_keys(typed: TypedItem) -> tuple[str, ...]:
    names = tuple(typed.texts("tag_keys", ()))
    if len(names) > bounds.TAG_KEYS_MAX or not all(map(is_tag_key, names)):
        raise typed.report_unreadable(
            f"tag_keys must be at most {bounds.TAG_KEYS_MAX} names of tags"
        )
    return names


def _quotas(typed: TypedItem) -> Quotas:
    quotas: dict[ModelLabel, int] = typed.mapping("quotas")
    for label, quota in quotas.items():
        if type(quota) is not int or quota < 0:
            raise typed.report_unreadable(
                f"the quota of {label} must be an integer, and not below zero"
            )
    return dict(quotas)


def _session_limit(typed: TypedItem, default: int | None) -> Any:
    limit = typed.whole("session_limit", default, least=bounds.SESSION_LIMIT_RANGE[0])
    if limit is not None and limit > bounds.SESSION_LIMIT_RANGE[1]:
        raise typed.report_unreadable(
            f"session_limit must be at most {bounds.SESSION_LIMIT_RANGE[1]}"
        )
    return limit


def _rate_limits(typed: TypedItem, default: RateLimits | None) -> Any:
    stored = typed.mapping("rate_limits", default)
    if stored is default:
        return default
    try:
        return msgspec.convert(stored, dict[str, dict[str, RateLimit]])
    except msgspec.ValidationError as error:
        raise typed.report_unreadable(f"rate_limits can't be read: {error}") from error


def _stored(budget: Budget) -> Item:
    """The budget as a map, with lists as every store returns them."""
    plain = msgspec.to_builtins(budget)
    lists = {name: list(plain[name]) for name in ("labels", "alert_at_pct")}
    return {name: value for name, value in {**plain, **lists}.items() if value is not None}


def _as_map(alerts: AlertSettings) -> Item:
    """The thresholds as a map, with lists as every store returns them."""
    plain = msgspec.to_builtins(alerts)
    return {**plain, "quota_at_pct": list(alerts.quota_at_pct)}


def _alerts(typed: TypedItem) -> AlertSettings:
    try:
        return msgspec.convert(typed.mapping("alerts", {}), AlertSettings)
    except msgspec.ValidationError as error:
        raise typed.report_unreadable(f"alerts can't be read: {error}") from error


def _budgets(typed: TypedItem, default: tuple[Budget, ...] | None) -> Any:
    """The budgets; a tag that the organisation no longer declares is no reason to lose one."""
    if "budgets" not in typed.item:
        return default
    try:
        budgets = msgspec.convert(typed.item["budgets"], tuple[Budget, ...])
    except msgspec.ValidationError as error:
        raise typed.report_unreadable(f"budgets can't be read: {error}") from error
    names = {budget.name for budget in budgets if is_budget_name(budget.name)}
    if len(budgets) > BUDGETS_MAX or len(names) < len(budgets):
        raise typed.report_unreadable(
            f"budgets must be at most {BUDGETS_MAX}, each with a name of its own"
        )
    if not all(is_tag_key(budget.per_tag) for budget in budgets if budget.per_tag is not None):
        raise typed.report_unreadable("per_tag of budgets must be the name of a tag")
    return budgets
