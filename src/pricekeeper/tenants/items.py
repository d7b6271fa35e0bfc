"""Config items: keys, attributes, and what a condition on them says.

An organisation is ``ORG#{org}`` / ``ORG``, its apps are ``ORG#{org}`` / ``APP#{app}``: one
partition holds an organisation and everything in it. ``ORGS`` / ``{org}`` exists for each
organisation, so that listing them is a query and never a scan.

The item also holds the client's credentials, which are not ours: settings are written
attribute by attribute and never replace the item. Attributes that this service added to the
schema, and those with a default in it, need not be there: an imported item is one like any
other. An item that lacks more than that, or holds something else than it must, can't be read:
`UnreadableItemError` is raised to callers that ask about that client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

import msgspec

from pricekeeper.client_ids import Client
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Action,
    Add,
    Condition,
    Item,
    Key,
    Put,
    Query,
    Remove,
    Set,
    TypedItem,
    Update,
    Value,
    attr,
)
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
from pricekeeper.tenants.freeze import Freeze, FreezeScope
from pricekeeper.tenants.parsing import is_tag_key, is_time_zone
from pricekeeper.tenants.policy import (
    Generation,
    Life,
    Policy,
    app_policy,
    org_policy,
    unregistered_policy,
)
from pricekeeper.values import AppId, ModelLabel, OrgId

INDEX_PK: Final = "ORGS"
ORG_SORT_KEY: Final = "ORG"
APP_PREFIX: Final = "APP#"
ALERTS_SORT_KEY: Final = "ALERTS"
"""The item of an organisation's alert channels; the form of it is `pricekeeper.alerts`' own."""

INCARNATION: Final = "incarnation"
ORG_INCARNATION: Final = "org_incarnation"
VERSION: Final = "version"
CREATED_AT: Final = "created_at_epoch"
UPDATED_AT: Final = "updated_at_epoch"
TOKEN_GENERATION: Final = "token_generation"  # noqa: S105 - the name of an attribute
TOKENS_VALID_FROM: Final = "tokens_valid_from_epoch_ms"
SECRET_CREATED_AT: Final = "client_secret_created_at_epoch"  # noqa: S105
"""Written with the client's secret; read here because a policy tells how old the secret is."""
FREEZE: Final = "freeze"
FREEZE_VERSION: Final = "freeze_version"
"""Moved on by every change of the freeze, and left when the freeze is lifted.

An organisation's is also moved on when an administrator freezes one of its apps, so that whoever
has looked at all of its apps can tell whether that still holds.
"""

_OPTIONAL: Final = tuple(field.name for field in fields(AppSettings) if field.name != "app_name")


def org_partition(client: Client) -> str:
    """The partition of the organisation and all of its apps."""
    return f"ORG#{client.org_id}"


def config_key(client: Client) -> Key:
    """The item of the client itself."""
    sort = ORG_SORT_KEY if client.app_id is None else app_sort_key(client.app_id)
    return Key(org_partition(client), sort)


def app_sort_key(app_id: AppId) -> str:
    """The sort key of an app in its organisation's partition."""
    return f"{APP_PREFIX}{app_id}"


def apps_query(client: Client, after: str, limit: int) -> Query:
    """Apps of the organisation, dead ones too, behind the one with that sort key."""
    return Query(CONFIG, org_partition(client), prefix=APP_PREFIX, after=after, limit=limit)


def app_of(org_id: OrgId, sort_key: str) -> Client:
    """The app whose item has that sort key."""
    return Client(org_id, AppId(sort_key.removeprefix(APP_PREFIX)))


def alerts_key(client: Client) -> Key:
    """The item of the organisation's alert channels, which ends with it."""
    return Key(org_partition(client), ALERTS_SORT_KEY)


def index_key(client: Client) -> Key:
    """The entry of the client's organisation in the list of all."""
    return Key(INDEX_PK, client.org_id)


def index_put(client: Client) -> Put:
    """Puts it into that list."""
    return Put(CONFIG, {"PK": INDEX_PK, "SK": client.org_id})


def new_item(
    client: Client, settings: OrgSettings | AppSettings, life: Life, org_incarnation: str = ""
) -> Item:
    """The item of a client that begins to exist, without any credentials."""
    key = config_key(client)
    item: Item = {"PK": key.pk, "SK": key.sk, "client_id": client.client_id, **_settings(settings)}
    item.update(asdict(life))
    if client.app_id is not None:
        item[ORG_INCARNATION] = org_incarnation
    return item


def settings_actions(settings: OrgSettings | AppSettings, life: Life) -> tuple[Action, ...]:
    """Write these settings and nothing else."""
    written = _settings(settings)
    written[VERSION] = life.version
    written[UPDATED_AT] = life.updated_at_epoch
    gone = _OPTIONAL if isinstance(settings, AppSettings) else ()
    return (
        *(Set(name, value) for name, value in written.items()),
        *(Remove(name) for name in gone if name not in written),
    )


def end_tokens_actions(generation: Generation) -> tuple[Action, ...]:
    """Let nothing count that was issued so far."""
    return (
        Set(TOKEN_GENERATION, generation.name),
        Set(TOKENS_VALID_FROM, generation.since_epoch_ms),
    )


def same_generation(life: Life) -> Condition:
    """The client is still the one that was read, and nobody has ended its tokens since."""
    return same_life(life) & _still(TOKEN_GENERATION, life.token_generation)


def time_moves_on(generation: Generation) -> Condition:
    """The condition that no generation of the client has begun later, by any clock."""
    valid_from = attr(TOKENS_VALID_FROM)
    return valid_from.absent() | valid_from.le(generation.since_epoch_ms)


def freeze_actions(freeze: Freeze | None, version: int) -> tuple[Action, ...]:
    """Freeze the client, or lift that."""
    if freeze is None:
        return (Remove(FREEZE), Set(FREEZE_VERSION, version))
    stored: dict[str, Value] = {
        "reason": freeze.reason,
        "frozen_at_epoch": freeze.frozen_at_epoch,
        "by_org": freeze.by_org,
    }
    return (Set(FREEZE, stored), Set(FREEZE_VERSION, version))


def freeze_of(item: Item) -> Freeze | None:
    """The freeze on a client's own item; one that says too little is a freeze all the same."""
    stored = item.get(FREEZE)
    if stored is None:
        return None
    known = stored if isinstance(stored, Mapping) else {}
    scope: FreezeScope = "ORG" if item["SK"] == ORG_SORT_KEY else "APP"
    return Freeze(
        scope,
        reason=str(known.get("reason", "")),
        frozen_at_epoch=_epoch(known.get("frozen_at_epoch")) or 0,
        by_org=known.get("by_org") is True,
    )


def freeze_version(item: Item) -> int:
    """How often the freeze was changed."""
    version: int = TypedItem(CONFIG, item).whole(FREEZE_VERSION, 0)
    return version


def app_frozen(app: Client, item: Item) -> Update:
    """Move the version of the organisation on, because that app of it is frozen."""
    version = attr(FREEZE_VERSION)
    is_there = _still(INCARNATION, str(item.get(ORG_INCARNATION, "")))
    is_number = version.absent() | version.ge(0)
    return Update(CONFIG, config_key(app.org), (Add(FREEZE_VERSION, 1),), is_there & is_number)


def same_freeze(item: Item) -> Condition:
    """The condition that the client is the one that was read, with the same freeze."""
    return same_life(life_of(item)) & _still(FREEZE_VERSION, freeze_version(item))


def same_life(life: Life) -> Condition:
    """The condition that the client exists and is the one that was read."""
    return _still(INCARNATION, life.incarnation)


def same_settings(life: Life) -> Condition:
    """The condition that the client is the one that was read, with the same settings."""
    return same_life(life) & _still(VERSION, life.version)


def no_app_of(org_life: Life) -> Condition:
    """The condition that there is no such app, or only one of a deleted organisation."""
    return ITEM_ABSENT | (
        attr(ORG_INCARNATION).exists() & attr(ORG_INCARNATION).ne(org_life.incarnation)
    )


def gone_or_left_over(org_incarnation: str) -> Condition:
    """The condition that the app is of that life of its organisation, or absent."""
    return ITEM_ABSENT | _still(ORG_INCARNATION, org_incarnation)


def life_of(item: Mapping[str, Any]) -> Life:
    """The bookkeeping of an item."""
    typed = TypedItem(CONFIG, item)
    created_at_epoch = typed.whole(CREATED_AT, 0)
    return Life(
        incarnation=typed.text(INCARNATION, ""),
        version=typed.whole(VERSION, 0),
        created_at_epoch=created_at_epoch,
        updated_at_epoch=typed.whole(UPDATED_AT, created_at_epoch),
        token_generation=typed.text(TOKEN_GENERATION, ""),
        tokens_valid_from_epoch_ms=typed.whole(TOKENS_VALID_FROM, 0),
    )


def is_app_of(app: Item, org: Item) -> bool:
    """Whether the app's item counts: it was created under this life of the organisation."""
    return bool(app.get(ORG_INCARNATION, "") == org.get(INCARNATION, ""))


def policy_of(client: Client, org: Item, own: Item) -> Policy:
    """What holds for the client, by its organisation's item and its own."""
    if client.app_id is None:
        policy = org_policy(client, org_settings(org), life_of(org))
    else:
        policy = app_policy(
            client, org_settings(org), life_of(org), app_settings(own), life_of(own)
        )
    return replace(
        policy,
        client_secret_created_at_epoch=_epoch(own.get(SECRET_CREATED_AT)),
        freeze=freeze_of(own) or freeze_of(org),
    )


def policy_without_item(client: Client, org: Item) -> Policy | None:
    """What holds for an app that has no item, by its organisation's alone."""
    policy = unregistered_policy(client, org_settings(org), life_of(org))
    return None if policy is None else replace(policy, freeze=freeze_of(org))


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


def _settings(settings: OrgSettings | AppSettings) -> Item:
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


def _epoch(stored: Any) -> int | None:
    return stored if type(stored) is int else None


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


def _still(name: str, value: str | int) -> Condition:
    """The attribute has this value; an imported item may lack what reads as empty."""
    if value in {"", 0}:
        return ITEM_EXISTS & (attr(name).absent() | attr(name).eq(value))
    return attr(name).eq(value)
