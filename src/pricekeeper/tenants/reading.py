"""One client's item: reading it before it is changed, and a change that nobody answers for."""

from __future__ import annotations

from typing import Protocol

from pricekeeper.client_ids import Client
from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.storage import Item, Store, Update
from pricekeeper.storage.tables import CONFIG


class ReadItem(Protocol):
    """Reads the client's own item; raises `NotFoundError` if the client does not exist."""

    async def __call__(self, client: Client) -> Item: ...


async def update_alone(store: Store, operation: Update) -> None:
    """Make an update without an entry in the audit trail.

    If its reply is lost, finding what was to be written proves that it was written. If nothing can
    be read either, the outcome stays as unknown as it was.
    """
    try:
        await store.update(operation)
    except OutcomeUnknownError as lost:
        try:
            found = dict(lost.item or await store.get(CONFIG, operation.key) or {})
        except StoreError as error:
            raise lost from error
        if not found or operation.apply(found) != found:
            raise
