"""Settings as attributes of a client's item, and back. What can't be read raises.

Attributes that this service added to the schema, and those with a default in it, need not be there:
an imported item is one like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pricekeeper.storage import Item, TypedItem
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants.budget import Budget, is_budget_name
from pricekeeper.tenants.configuration import AppSettings, OrgSettings, ShardCount
from pricekeeper.tenants.parsing import is_tag_key, is_time_zone, without_nulls
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
    """Over how many shards an organisation's usage is spread: it can never be changed."""
    return TypedItem(CONFIG, item).convert(_Spread).agg_shard_count


def app_settings(item: Item) -> AppSettings:
    """Read what an app overrides."""
    typed = TypedItem(CONFIG, item)
    settings = typed.convert(AppSettings)
    _check_budgets(typed, settings.budgets or ())
    return settings


def stored_settings(settings: OrgSettings | AppSettings) -> Item:
    """The attributes of an item that these settings are, with lists as every store returns them."""
    attributes: Item = without_nulls(msgspec.json.decode(msgspec.json.encode(settings)))
    return attributes


def _check_budgets(typed: TypedItem, budgets: tuple[Budget, ...]) -> None:
    """Refuse what can't be keys; a tag that is no longer declared is no reason to lose a budget."""
    names = {budget.name for budget in budgets if is_budget_name(budget.name)}
    if len(budgets) > bounds.BUDGETS_MAX or len(names) < len(budgets):
        raise typed.report_unreadable(
            f"budgets must be at most {bounds.BUDGETS_MAX}, each with a name of its own"
        )
    if not all(is_tag_key(budget.per_tag) for budget in budgets if budget.per_tag is not None):
        raise typed.report_unreadable("per_tag of budgets must be the name of a tag")
