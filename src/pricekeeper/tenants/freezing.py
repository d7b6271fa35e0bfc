"""Freezing and unfreezing a client: one read and one write each.

A freeze has a version that every change moves on, also the one that lifts it. So a copy of an
earlier change that arrives late finds another version and changes nothing: it neither brings back
a freeze that was lifted, nor lifts one that was set after it.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.client_ids import Client
from pricekeeper.errors import ConditionFailedError, ContendedError, OutcomeUnknownError
from pricekeeper.storage import Item, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.freeze import Freeze, FreezeScope, next_freeze, require_authority
from pricekeeper.tenants.reading import ReadItem, read_back
from pricekeeper.values import Attribution

ATTEMPTS_MAX: Final = 8


async def freeze(
    store: Store, read: ReadItem, client: Client, by: Attribution, now_epoch: int
) -> Freeze:
    """Freeze the client, or give its freeze another reason."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        current = items.freeze_of(item)
        wanted = next_freeze(current, _scope(client), by, now_epoch)
        if current == wanted or await _write(store, client, item, wanted):
            return wanted
    raise _contended(client)


async def unfreeze(store: Store, read: ReadItem, client: Client, by: Attribution) -> bool:
    """Lift the client's own freeze; whether there was one."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        current = items.freeze_of(item)
        if current is None:
            return False
        require_authority(current, by.org_id)
        if await _write(store, client, item, None):
            return True
    raise _contended(client)


async def _write(store: Store, client: Client, item: Item, wanted: Freeze | None) -> bool:
    """Write the freeze; whether that worked. It fails if another has changed it meanwhile."""
    operation = Update(
        CONFIG,
        items.config_key(client),
        items.freeze_actions(wanted, items.freeze_version(item) + 1),
        items.same_freeze(item),
    )
    try:
        await store.update(operation)
    except ConditionFailedError:
        return False
    except OutcomeUnknownError as lost:
        found = await read_back(store, client, lost)
        if found is None or operation.apply(found) != found:
            raise
    return True


def _scope(client: Client) -> FreezeScope:
    return "ORG" if client.app_id is None else "APP"


def _contended(client: Client) -> ContendedError:
    return ContendedError(f"{client.client_id}: others kept changing its freeze")
