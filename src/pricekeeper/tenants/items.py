"""Config items: keys, attributes, and conditions on them.

- ``ORG#{org}`` / ``ORG`` is an organisation, ``ORG#{org}`` / ``APP#{app}`` one of its apps.
- ``ORGS`` / ``{org}`` exists for each organisation, so that listing them is a query.

The item also holds credentials, so settings are written attribute by attribute. An item with
missing or wrong attributes raises `UnreadableItemError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from pricekeeper.authority import Reach
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
from pricekeeper.tenants.configuration import AppSettings, OrgSettings
from pricekeeper.tenants.policy import (
    Freeze,
    FreezeScope,
    Generation,
    Life,
    Policy,
    app_policy,
    org_policy,
    unregistered_policy,
)
from pricekeeper.tenants.stored_settings import app_settings, org_settings, stored_settings
from pricekeeper.values import AppId, OrgId

INDEX_PK: Final = "ORGS"
ORG_SORT_KEY: Final = "ORG"
APP_PREFIX: Final = "APP#"
ALERTS_SORT_KEY: Final = "ALERTS"

INCARNATION: Final = "incarnation"
ORG_INCARNATION: Final = "org_incarnation"
VERSION: Final = "version"
CREATED_AT: Final = "created_at_epoch"
UPDATED_AT: Final = "updated_at_epoch"
TOKEN_GENERATION: Final = "token_generation"  # noqa: S105 - the name of an attribute
TOKENS_VALID_FROM: Final = "tokens_valid_from_epoch_ms"
SECRET_CREATED_AT: Final = "client_secret_created_at_epoch"  # noqa: S105
FREEZE: Final = "freeze"
FREEZE_VERSION: Final = "freeze_version"
"""Incremented by each change of the freeze, and kept when it is lifted.

An organisation's is also incremented when one of its apps is frozen, so a caller who has read all
apps can tell whether that is still valid.
"""


def org_partition(client: Client) -> str:
    """The partition of the organisation and its apps."""
    return f"ORG#{client.org_id}"


def config_key(client: Client) -> Key:
    """Return the key of the client's item."""
    sort = ORG_SORT_KEY if client.app_id is None else app_sort_key(client.app_id)
    return Key(org_partition(client), sort)


def app_sort_key(app_id: AppId) -> str:
    """Return the sort key of an app in its organisation's partition."""
    return f"{APP_PREFIX}{app_id}"


def apps_query(client: Client, after: str, limit: int) -> Query:
    """Query the organisation's apps behind that sort key, also those of earlier lives."""
    return Query(CONFIG, org_partition(client), prefix=APP_PREFIX, after=after, limit=limit)


def app_of(org_id: OrgId, sort_key: str) -> Client:
    """Return the app that has this sort key."""
    return Client(org_id, AppId(sort_key.removeprefix(APP_PREFIX)))


def alerts_key(client: Client) -> Key:
    """The key of the organisation's alert channels, which are deleted with it."""
    return Key(org_partition(client), ALERTS_SORT_KEY)


def index_key(client: Client) -> Key:
    """The organisation's key in the index of all."""
    return Key(INDEX_PK, client.org_id)


def index_put(client: Client) -> Put:
    """Add the organisation to the index."""
    return Put(CONFIG, {"PK": INDEX_PK, "SK": client.org_id})


def new_item(
    client: Client, settings: OrgSettings | AppSettings, life: Life, org_incarnation: str = ""
) -> Item:
    """A new client's item, without credentials."""
    item: Item = {
        **config_key(client).attributes,
        "client_id": client.client_id,
        **stored_settings(settings),
        **asdict(life),
    }
    if client.app_id is not None:
        item[ORG_INCARNATION] = org_incarnation
    return item


def settings_actions(settings: OrgSettings | AppSettings, life: Life) -> tuple[Action, ...]:
    """Write these settings, and remove those without a value."""
    written = stored_settings(settings)
    removed = [one.name for one in fields(settings) if one.name not in written]
    written[VERSION] = life.version
    written[UPDATED_AT] = life.updated_at_epoch
    return (
        *(Set(name, value) for name, value in written.items()),
        *map(Remove, removed),
    )


def end_tokens_actions(generation: Generation) -> tuple[Action, ...]:
    """Invalidate everything issued so far."""
    return (
        Set(TOKEN_GENERATION, generation.name),
        Set(TOKENS_VALID_FROM, generation.since_epoch_ms),
    )


def same_generation(life: Life) -> Condition:
    """The condition that the client's life and token generation are those read."""
    return same_life(life) & _still(TOKEN_GENERATION, life.token_generation)


def time_moves_on(generation: Generation) -> Condition:
    """The condition that no generation of the client has begun later, by any clock."""
    valid_from = attr(TOKENS_VALID_FROM)
    return valid_from.absent() | valid_from.le(generation.since_epoch_ms)


def freeze_actions(freeze: Freeze | None, version: int) -> tuple[Action, ...]:
    """Freeze the client, or unfreeze it."""
    if freeze is None:
        return (Remove(FREEZE), Set(FREEZE_VERSION, version))
    stored: dict[str, Value] = {
        "reason": freeze.reason,
        "frozen_at_epoch": freeze.frozen_at_epoch,
        "reach": freeze.reach.name,
    }
    return (Set(FREEZE, stored), Set(FREEZE_VERSION, version))


def freeze_of(item: Item) -> Freeze | None:
    """The freeze on a client's own item; an incomplete one counts."""
    stored = item.get(FREEZE)
    if stored is None:
        return None
    known = stored if isinstance(stored, Mapping) else {}
    scope: FreezeScope = "ORG" if item["SK"] == ORG_SORT_KEY else "APP"
    return Freeze(
        scope,
        reason=str(known.get("reason", "")),
        frozen_at_epoch=_epoch(known.get("frozen_at_epoch")) or 0,
        reach=Reach.__members__.get(str(known.get("reach")), Reach.ALL),
    )


def freeze_version(item: Item) -> int:
    """How often the freeze was changed."""
    return TypedItem(CONFIG, item).whole(FREEZE_VERSION, 0)


def app_frozen(app: Client, item: Item) -> Update:
    """Increment the organisation's freeze version for its frozen app."""
    version = attr(FREEZE_VERSION)
    is_there = _still(INCARNATION, str(item.get(ORG_INCARNATION, "")))
    is_number = version.absent() | version.ge(0)
    return Update(CONFIG, config_key(app.org), (Add(FREEZE_VERSION, 1),), is_there & is_number)


def same_freeze(item: Item) -> Condition:
    """The condition that the client's life and freeze are those read."""
    return same_life(life_of(item)) & _still(FREEZE_VERSION, freeze_version(item))


def same_life(life: Life) -> Condition:
    """The condition that the client's life is the one read."""
    return _still(INCARNATION, life.incarnation)


def same_settings(life: Life) -> Condition:
    """The condition that the client's life and settings are those read."""
    return same_life(life) & _still(VERSION, life.version)


def no_app_of(org_life: Life) -> Condition:
    """The condition that the app does not exist, or only in a deleted organisation."""
    return ITEM_ABSENT | (
        attr(ORG_INCARNATION).exists() & attr(ORG_INCARNATION).ne(org_life.incarnation)
    )


def gone_or_left_over(org_incarnation: str) -> Condition:
    """The condition that the app is of that life of its organisation, or absent."""
    return ITEM_ABSENT | _still(ORG_INCARNATION, org_incarnation)


def life_of(item: Mapping[str, Any]) -> Life:
    """The life of a client by its item."""
    updated_at_epoch = item.get(UPDATED_AT, item.get(CREATED_AT, 0))
    return TypedItem(CONFIG, {**item, UPDATED_AT: updated_at_epoch}).convert(Life)


def is_app_of(app: Item, org: Item) -> bool:
    """Whether the app was created under this life of the organisation."""
    return bool(app.get(ORG_INCARNATION, "") == org.get(INCARNATION, ""))


def policy_of(client: Client, org: Item, own: Item) -> Policy:
    """The policy by the organisation's item and the client's own."""
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
    """The policy of an app without an item, if it has one."""
    policy = unregistered_policy(client, org_settings(org), life_of(org))
    return None if policy is None else replace(policy, freeze=freeze_of(org))


def _epoch(stored: Any) -> int | None:
    return stored if type(stored) is int else None


def _still(name: str, value: str | int) -> Condition:
    """The attribute has this value; an imported item may lack an empty one."""
    if value in {"", 0}:
        return ITEM_EXISTS & (attr(name).absent() | attr(name).eq(value))
    return attr(name).eq(value)
