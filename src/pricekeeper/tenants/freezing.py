"""Freezing and unfreezing a client: one read and one write each.

A freeze has a version that every change moves on, also the one that lifts it. So a copy of an
earlier change that arrives late finds another version and changes nothing: it neither brings back
a freeze that was lifted, nor lifts one that was set after it.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.client_ids import Client
from pricekeeper.errors import ConditionFailedError, ContendedError
from pricekeeper.storage import Check, Item, Update, Write
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.changes import client_frozen
from pricekeeper.tenants.freeze import Freeze, FreezeScope, next_freeze, require_authority
from pricekeeper.tenants.reading import ReadItem
from pricekeeper.values import Attribution

ATTEMPTS_MAX: Final = 8


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
        require_authority(current, by.org_id)
        if await _write(trail, client, item, None, by):
            return current is not None
    raise _contended(client)


async def _write(
    trail: AuditTrail, client: Client, item: Item, wanted: Freeze | None, by: Attribution
) -> bool:
    """Write the freeze; whether that worked. It fails if another has changed it meanwhile.

    What is so already is only written down.
    """
    key, same, current = items.config_key(client), items.same_freeze(item), items.freeze_of(item)
    operation: Write = Check(CONFIG, key, same)
    if current != wanted:
        actions = items.freeze_actions(wanted, items.freeze_version(item) + 1)
        operation = Update(CONFIG, key, actions, same)
    try:
        await trail.write(by, client_frozen(client, current, wanted), operation)
    except ConditionFailedError:
        return False
    return True


def _scope(client: Client) -> FreezeScope:
    return "ORG" if client.app_id is None else "APP"


def _contended(client: Client) -> ContendedError:
    return ContendedError(f"{client.client_id}: others kept changing its freeze")
