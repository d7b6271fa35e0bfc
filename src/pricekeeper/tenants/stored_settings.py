"""Settings as item attributes, as bodies with JSON merge patches (RFC 7396), and as audit changes.

A patch applies to the client's own settings, without inherited ones. The result is parsed like the
body of a PUT, so a patch can do no more than a PUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pricekeeper.audit import Change, differences
from pricekeeper.client_ids import Client
from pricekeeper.storage import Item, TypedItem, readable
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants.configuration import (
    AppSettings,
    Budget,
    OrgSettings,
    ShardCount,
    is_budget_name,
)
from pricekeeper.tenants.parsing import is_tag_key, is_time_zone, without_nulls
from pricekeeper.tenants.policy import Freeze
from pricekeeper.wire import bounds


@dataclass(frozen=True, slots=True)
class _Spread:
    agg_shard_count: ShardCount = bounds.SHARD_COUNT_DEFAULT


def org_settings(item: Item) -> OrgSettings:
    """Read the settings of an organisation."""
    typed = TypedItem(CONFIG, item)
    settings = typed.convert(OrgSettings)
    if not is_time_zone(settings.timezone):
        raise typed.report_unreadable("timezone names no time zone")
    if len(settings.tag_keys) > bounds.TAG_KEYS_MAX or not all(map(is_tag_key, settings.tag_keys)):
        raise typed.report_unreadable(
            f"tag_keys must be at most {bounds.TAG_KEYS_MAX} names of tags"
        )
    _check_budgets(typed, settings.budgets)
    return settings


def shard_count_of(item: Item) -> int:
    """Read the number of shards of an organisation's counters, which never changes."""
    return TypedItem(CONFIG, item).convert(_Spread).agg_shard_count


def app_settings(item: Item) -> AppSettings:
    """Read the overrides of an app."""
    typed = TypedItem(CONFIG, item)
    settings = typed.convert(AppSettings)
    _check_budgets(typed, settings.budgets or ())
    return settings


def settings_of(client: Client, item: Item) -> OrgSettings | AppSettings:
    """Read the client's own settings."""
    return org_settings(item) if client.app_id is None else app_settings(item)


def stored_settings(settings: OrgSettings | AppSettings) -> Item:
    """The item attributes of these settings, with lists as every store returns them."""
    attributes: Item = without_nulls(msgspec.json.decode(msgspec.json.encode(settings)))
    return attributes


def _check_budgets(typed: TypedItem, budgets: tuple[Budget, ...]) -> None:
    """Refuse names that can't be keys. A tag that is no longer declared keeps its budget."""
    names = {budget.name for budget in budgets if is_budget_name(budget.name)}
    if len(budgets) > bounds.BUDGETS_MAX or len(names) < len(budgets):
        raise typed.report_unreadable(
            f"budgets must be at most {bounds.BUDGETS_MAX}, each with a name of its own"
        )
    if not all(is_tag_key(budget.per_tag) for budget in budgets if budget.per_tag is not None):
        raise typed.report_unreadable("per_tag of budgets must be the name of a tag")


DEPTH_MAX: Final = 3
"""Levels of objects below a field: a limit's label, its name, its numbers."""
_IMMUTABLE: Final = "agg_shard_count"
"""An imported one may be a number that no body can state."""


def patched_body(
    settings: OrgSettings | AppSettings, patch: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The PUT body with the patch applied.

    A removed field is there as null, so an unknown one is refused, too.
    """
    stated = stated_body(settings)
    return {
        **stated,
        **{
            name: None if value is None else _merged(stated.get(name), value, DEPTH_MAX)
            for name, value in patch.items()
        },
    }


def stated_body(settings: OrgSettings | AppSettings) -> dict[str, Any]:
    """The settings as a PUT body, without inherited ones."""
    body = stored_settings(settings)
    body.pop(_IMMUTABLE, None)
    for budget in body.get("budgets", ()):
        budget["labels"] = budget["labels"] or None  # a budget for all labels names none of them
        budget.setdefault("per_tag", None)
    return body


def _merged(target: Any, patch: Any, depth: int) -> Any:
    """Apply a patch: null removes, objects are merged, all else is replaced."""
    if not isinstance(patch, dict) or not depth:
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value, depth - 1)
    return merged


def client_created(client: Client, settings: OrgSettings | AppSettings) -> Change:
    """A client is created."""
    return _change(client, f"{_kind(client)}.create", after=stated_body(settings))


def settings_replaced(client: Client, item: Item, settings: OrgSettings | AppSettings) -> Change:
    """Settings change: only those that differ are recorded."""
    after = stated_body(settings)
    before = _stated(client, item)
    if before is not None:
        before, after = differences(before, after)
    return _change(client, f"{_kind(client)}.update", before=before, after=after)


def client_deleted(client: Client, item: Item) -> Change:
    """A client is deleted, an organisation with all of its apps."""
    return _change(client, f"{_kind(client)}.delete", before=_stated(client, item))


def client_frozen(client: Client, before: Freeze | None, after: Freeze | None) -> Change:
    """A client is frozen, gets another reason, or is unfrozen."""
    action = "unfreeze" if after is None else "freeze"
    return _change(client, action, before=_frozen(before), after=_frozen(after))


def _change(
    client: Client,
    action: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> Change:
    return Change(action, client.client_id, client.org_id, before, after)


def _kind(client: Client) -> str:
    return "org" if client.app_id is None else "app"


def read_settings(client: Client, item: Item) -> OrgSettings | AppSettings | None:
    """Read a client's settings; ``None`` if unreadable, which is reported."""
    if client.app_id is None:
        return readable(org_settings, item)
    return readable(app_settings, item)


def _stated(client: Client, item: Item) -> dict[str, Any] | None:
    settings = read_settings(client, item)
    return None if settings is None else stated_body(settings)


def _frozen(freeze: Freeze | None) -> dict[str, Any] | None:
    if freeze is None:
        return None
    return {"frozen_at_epoch": freeze.frozen_at_epoch, "frozen_because": freeze.reason}
