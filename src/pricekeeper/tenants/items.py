"""Config items: keys, attributes, and what a condition on them says.

An organisation is ``ORG#{org}`` / ``ORG``, its apps are ``ORG#{org}`` / ``APP#{app}``: one
partition holds an organisation and everything in it. ``ORGS`` / ``{org}`` exists for each
organisation, so that listing them is a query and never a scan.

The item also holds the client's credentials, which are not ours: settings are written
attribute by attribute (`stored_settings`) and never replace the item. An item that lacks more than
it may, or holds something else than it must, can't be read: `UnreadableItemError` is raised to
callers that ask about that client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeAlias

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
from pricekeeper.tenants.freeze import Freeze, FreezeScope
from pricekeeper.tenants.policy import (
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

ReadItem: TypeAlias = Callable[[Client], Awaitable[Item]]
"""Reads the client's own item; raises `NotFoundError` if the client does not exist."""


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
    """Write these settings, and remove those that have no value."""
    written = stored_settings(settings)
    removed = [one.name for one in fields(settings) if one.name not in written]
    written[VERSION] = life.version
    written[UPDATED_AT] = life.updated_at_epoch
    return (
        *(Set(name, value) for name, value in written.items()),
        *map(Remove, removed),
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
        "reach": freeze.reach.name,
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
        reach=Reach.__members__.get(str(known.get("reach")), Reach.ALL),
    )


def freeze_version(item: Item) -> int:
    """How often the freeze was changed."""
    return TypedItem(CONFIG, item).whole(FREEZE_VERSION, 0)


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
    updated_at_epoch = item.get(UPDATED_AT, item.get(CREATED_AT, 0))
    return TypedItem(CONFIG, {**item, UPDATED_AT: updated_at_epoch}).convert(Life)


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


def _epoch(stored: Any) -> int | None:
    return stored if type(stored) is int else None


def _still(name: str, value: str | int) -> Condition:
    """The attribute has this value; an imported item may lack what reads as empty."""
    if value in {"", 0}:
        return ITEM_EXISTS & (attr(name).absent() | attr(name).eq(value))
    return attr(name).eq(value)
