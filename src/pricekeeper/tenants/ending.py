"""Ends clients: one transaction each, with its entry in the audit trail; and what is left of them.

A key ends nothing that was frozen from above it: what it looks at for that must be the same when
the client ends. The apps of an organisation that has ended count for nothing already. Removing
their items only frees space, page by page; it can stop anywhere, and deleting the same organisation
again continues where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution, Reach
from pricekeeper.client_ids import Client
from pricekeeper.errors import ContendedError, NotFoundError, TransactionCancelledError
from pricekeeper.storage import Check, Delete, Item, Key, Store, Write
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import changes, freezing, items
from pricekeeper.tenants.freeze import require_authority
from pricekeeper.tenants.items import ReadItem
from pricekeeper.tenants.policy import Life

SWEEP_PAGES_MAX: Final = 100
"""Pages in one call, so at most ten thousand apps; what is left then waits for the next."""


async def end_org(
    store: Store, trail: AuditTrail, read: ReadItem, client: Client, item: Item, by: Attribution
) -> bool:
    """End this life of the organisation; whether this call did it."""
    life = items.life_of(item)
    await freezing.require_deletable(store, item, client, by)
    same = items.same_life(life) if by.reach is Reach.ALL else items.same_freeze(item)
    operations = [
        Delete(CONFIG, items.config_key(client), same),
        Delete(CONFIG, items.index_key(client)),
        Delete(CONFIG, items.alerts_key(client)),
    ]
    try:
        await trail.apply(by, changes.client_deleted(client, item), operations)
    except TransactionCancelledError:
        await _require_gone(read, client, life)
        return False
    return True


async def end_app(
    trail: AuditTrail, read: ReadItem, client: Client, app: Item, org: Item, by: Attribution
) -> None:
    """End this life of the app; `NotFoundError` if another was faster."""
    key, life = items.config_key(client), items.life_of(app)
    operations: list[Write] = [Delete(CONFIG, key, items.same_life(life))]
    if by.reach is not Reach.ALL:
        for item in (app, org):
            require_authority(items.freeze_of(item), by.reach)
        operations = [
            Delete(CONFIG, key, items.same_freeze(app)),
            Check(CONFIG, items.config_key(client.org), items.same_freeze(org)),
        ]
    try:
        await trail.apply(by, changes.client_deleted(client, app), operations)
    except TransactionCancelledError as failure:
        await _require_gone(read, client, life)
        raise NotFoundError(client.client_id) from failure


async def _require_gone(read: ReadItem, client: Client, life: Life) -> None:
    """Raise if the client that was not deleted is there still: its freeze has changed."""
    try:
        item = await read(client)
    except NotFoundError:
        return
    if items.life_of(item).incarnation == life.incarnation:
        raise ContendedError(f"{client.client_id}: its freeze has changed")


async def sweep_apps(store: Store, client: Client) -> int:
    """Remove the apps that belong to no living organisation, within bounds; returns how many.

    The organisation is read after the apps: an incarnation that is not in force by then never
    will be again.
    """
    after, removed = "", 0
    for _ in range(SWEEP_PAGES_MAX):
        page = await store.query(items.apps_query(client, after, TRANSACTION_OPERATIONS_MAX))
        if not page.items:
            break
        org = await store.get(CONFIG, items.config_key(client))
        dead = [app for app in page.items if org is None or not items.is_app_of(app, org)]
        if dead and not await _remove(store, dead):
            continue
        removed += len(dead)
        if not page.after:
            break
        after = page.after
    return removed


async def _remove(store: Store, dead: Sequence[Item]) -> bool:
    """Remove the items; whether that worked. It fails if one has begun a new life meanwhile."""
    operations = [
        Delete(
            CONFIG,
            Key(item["PK"], item["SK"]),
            items.gone_or_left_over(item.get(items.ORG_INCARNATION, "")),
        )
        for item in dead
    ]
    try:
        await store.transact(operations)
    except TransactionCancelledError:
        return False
    return True
