"""Freezes and unfreezes clients, and decides which key may change a freeze.

Each change, also the one that lifts a freeze, increments the freeze version. A late copy of an
earlier change finds another version and changes nothing.

A key can't delete a client that a key above it has frozen, because a client that is created again
is not frozen. A deletion reads the freezes and is written on condition that their versions are the
same. A freeze of an app also increments its organisation's version, so one version covers any
number of apps.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution, Reach
from pricekeeper.client_ids import Client
from pricekeeper.errors import (
    ContendedError,
    NotPermittedError,
    TransactionCancelledError,
)
from pricekeeper.storage import Check, Item, Store, Update, Write, query_items
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.changes import client_frozen
from pricekeeper.tenants.items import ReadItem
from pricekeeper.tenants.policy import Freeze, FreezeScope

ATTEMPTS_MAX: Final = 8
PAGE_MAX: Final = 100
"""Apps read with one query."""


def next_freeze(
    current: Freeze | None, scope: FreezeScope, by: Attribution, now_epoch: int
) -> Freeze:
    """Return the freeze to write: it keeps the first time and takes the last reason."""
    require_authority(current, by.reach)
    return Freeze(
        scope=scope,
        reason=by.reason or "",
        frozen_at_epoch=now_epoch if current is None else current.frozen_at_epoch,
        reach=by.reach,
    )


def require_authority(current: Freeze | None, reach: Reach, what: str = "this") -> None:
    """Raise `NotPermittedError` if a key above this one has set the freeze.

    Else a thief of the key could lift it.
    """
    if current is not None and reach < current.reach:
        raise NotPermittedError(
            f"{what} was frozen by an administrator above this key, who may lift it"
        )


async def freeze(
    trail: AuditTrail, read: ReadItem, client: Client, by: Attribution, now_epoch: int
) -> Freeze:
    """Freeze the client, or give its freeze another reason."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        wanted = next_freeze(items.freeze_of(item), _scope(client), by, now_epoch)
        if await _write(trail, client, item, wanted, by):
            return wanted
    raise _contended(client)


async def unfreeze(trail: AuditTrail, read: ReadItem, client: Client, by: Attribution) -> bool:
    """Lift the client's own freeze; returns whether there was one."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        current = items.freeze_of(item)
        require_authority(current, by.reach)
        if await _write(trail, client, item, None, by):
            return current is not None
    raise _contended(client)


async def require_deletable(store: Store, org: Item, client: Client, by: Attribution) -> None:
    """Raise if the key may not delete the organisation, because of a freeze of it or of an app.

    The result is valid while the organisation's freeze version is the one of the item.
    """
    if by.reach is Reach.ALL:
        return
    require_authority(items.freeze_of(org), by.reach)
    async for app in query_items(store, items.apps_query(client, "", PAGE_MAX)):
        if items.is_app_of(app, org):
            app_id = items.app_of(client.org_id, app["SK"]).app_id
            require_authority(items.freeze_of(app), by.reach, f"the app {app_id}")


async def _write(
    trail: AuditTrail, client: Client, item: Item, wanted: Freeze | None, by: Attribution
) -> bool:
    """Write the freeze; ``False`` if it was changed meanwhile.

    A freeze that is already as wanted only gets its audit entry.
    """
    key, same, current = items.config_key(client), items.same_freeze(item), items.freeze_of(item)
    operations: list[Write] = [Check(CONFIG, key, same)]
    if current != wanted:
        actions = items.freeze_actions(wanted, items.freeze_version(item) + 1)
        operations = [Update(CONFIG, key, actions, same)]
        if client.app_id is not None and wanted is not None and wanted.reach > Reach.ORG:
            operations.append(items.app_frozen(client, item))
    try:
        await trail.apply(by, client_frozen(client, current, wanted), operations)
    except TransactionCancelledError:
        return False
    return True


def _scope(client: Client) -> FreezeScope:
    return "ORG" if client.app_id is None else "APP"


def _contended(client: Client) -> ContendedError:
    return ContendedError(f"{client.client_id}: others kept changing its freeze")
