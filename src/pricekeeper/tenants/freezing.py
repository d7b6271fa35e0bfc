"""Freezing and unfreezing a client: one read and one write each; and what a freeze keeps.

A freeze has a version that every change moves on, also the one that lifts it. So a copy of an
earlier change that arrives late finds another version and changes nothing: it neither brings back
a freeze that was lifted, nor lifts one that was set after it.

A key deletes nothing that an administrator above it has frozen: what is created again is not
frozen. Whoever deletes looks at the freezes and then replaces the versions that it has
seen. A freeze of an app moves its organisation's version on as well, so one version answers for
any number of apps.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution, Reach
from pricekeeper.client_ids import Client
from pricekeeper.errors import ContendedError, TransactionCancelledError
from pricekeeper.storage import Check, Item, Store, Update, Write, query_items
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.changes import client_frozen
from pricekeeper.tenants.freeze import Freeze, FreezeScope, next_freeze, require_authority
from pricekeeper.tenants.items import ReadItem

ATTEMPTS_MAX: Final = 8
PAGE_MAX: Final = 100
"""Apps that are looked at with one query."""


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
    """Lift the client's own freeze; whether there was one."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        current = items.freeze_of(item)
        require_authority(current, by.reach)
        if await _write(trail, client, item, None, by):
            return current is not None
    raise _contended(client)


async def require_deletable(store: Store, org: Item, client: Client, by: Attribution) -> None:
    """Raise if the key may not end the organisation: it is frozen from above, or an app of it is.

    This holds as long as the organisation's version is the one on the item.
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
    """Write the freeze; whether that worked. It fails if another has changed it meanwhile.

    What is so already is only written down.
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
