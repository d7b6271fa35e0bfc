"""Listing admin keys, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass

from pricekeeper.admin_keys import items
from pricekeeper.admin_keys.items import StoredKey
from pricekeeper.admin_keys.key import AdminKey
from pricekeeper.authority import Coverage, Role
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import CONFIG


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some keys; ``after`` is where to go on, ``None`` at the end."""

    keys: tuple[AdminKey, ...]
    after: str | None


async def list_keys(store: Store, within: Coverage, after: str | None, limit: int) -> KeyPage:
    """A page of the keys that cover nothing beyond ``within``: one query. It may be empty."""
    page = await store.query(Query(CONFIG, items.PARTITION, after=after or "", limit=limit))
    keys = tuple(
        stored.key
        for stored in filter(None, map(_readable, page.items))
        if within.includes(stored.key.coverage)
    )
    return KeyPage(keys, page.after or None)


async def list_roots(store: Store) -> list[AdminKey]:
    """The keys that administer the whole deployment, also those that have expired."""
    found = query_items(store, Query(CONFIG, items.PARTITION))
    keys = [stored.key async for item in found if (stored := _readable(item)) is not None]
    return [key for key in keys if key.role is Role.ADMIN and key.coverage.is_all]


def _readable(item: Item) -> StoredKey | None:
    """The key that the item is; one that can't be read is reported, and left out."""
    try:
        return items.stored_key(item)
    except UnreadableItemError:
        return None
