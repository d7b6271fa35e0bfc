"""Removes the items of apps whose organisation was deleted.

Such apps count for nothing already; this only frees space. It goes page by page and can stop
anywhere: deleting the same organisation again continues where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pricekeeper.client_ids import Client
from pricekeeper.errors import TransactionCancelledError
from pricekeeper.storage import Delete, Item, Key, Store
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items

SWEEP_PAGES_MAX: Final = 100
"""Pages in one call, so at most ten thousand apps; what is left then waits for the next."""


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
