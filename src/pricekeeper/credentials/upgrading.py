"""Replacing a hash of an older kind by one of ours, when its secret has just been shown."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from pricekeeper.credentials.hashing import Peppers
from pricekeeper.errors import StoreError
from pricekeeper.storage import Set, Store, Update, attr
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, config_key

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredHash:
    """A hash, its attribute on a client's item, and what it is bound to."""

    client: Client
    attribute: str
    owner: str
    text: str = field(repr=False)


async def rehash(store: Store, peppers: Peppers, stored: StoredHash, secret: str) -> None:
    """Hash the secret under the present pepper, unless it was replaced meanwhile.

    Its owner is authenticated whether this works or not: the old hash stays valid, and the next
    login tries again.
    """
    client_id = stored.client.client_id
    operation = Update(
        CONFIG,
        config_key(stored.client),
        (Set(stored.attribute, peppers.hash(stored.owner, secret)),),
        attr(stored.attribute).eq(stored.text),
    )
    try:
        await store.update(operation)
    except StoreError as error:
        _log.warning("secret_hash_kept", client_id=client_id, error=error.code)
    else:
        _log.info("secret_hash_upgraded", client_id=client_id)
