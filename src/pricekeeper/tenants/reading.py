"""Reading one client's item: before it is changed, and after the reply to a change was lost."""

from __future__ import annotations

from typing import Protocol

from pricekeeper.client_ids import Client
from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items


class ReadItem(Protocol):
    """Reads the client's own item; raises `NotFoundError` if the client does not exist."""

    async def __call__(self, client: Client) -> Item: ...


async def read_back(store: Store, client: Client, lost: OutcomeUnknownError) -> Item | None:
    """The client's item, read because a reply was lost.

    Finding what was to be written proves that it was written. If nothing can be read either, the
    outcome stays as unknown as it was.
    """
    if lost.item is not None:
        return dict(lost.item)
    try:
        return await store.get(CONFIG, items.config_key(client))
    except StoreError as error:
        raise lost from error
