"""The version of the store's format: the layout of its items.

The first process writes Config ``STORE`` / ``FORMAT`` into an empty store before any other item. A
process refuses another version. The check is one read at opening.
"""

from __future__ import annotations

import contextlib
from typing import Final

from pricekeeper.errors import ConditionFailedError, StoreFormatError
from pricekeeper.storage.expressions import ITEM_ABSENT
from pricekeeper.storage.operations import Put, Query
from pricekeeper.storage.port import Store
from pricekeeper.storage.tables import CONFIG, Key
from pricekeeper.storage.typed_items import TypedItem

FORMAT_VERSION: Final = 1
"""A change of keys, attributes or their meaning needs the next one, and a step in `migrate`."""
FORMAT_KEY: Final = Key("STORE", "FORMAT")
ORGS: Final = Query(CONFIG, "ORGS", limit=1)
"""A store with an organisation is not empty; all other items need one."""
_VERSION: Final = "version"


async def require_format(store: Store, *, may_begin: bool = True) -> None:
    """Refuse a store of another format; give an empty store its version, if ``may_begin``.

    `StoreFormatError` names the command or version that helps.
    """
    version = await _read_version(store)
    if version is None:
        if not (await store.query(ORGS)).items:
            if not may_begin:
                return
            with contextlib.suppress(ConditionFailedError):  # another process wrote it first
                item = {**FORMAT_KEY.attributes, _VERSION: FORMAT_VERSION}
                await store.put(Put(CONFIG, item, ITEM_ABSENT))
        # Another process may have written its version, and then data, since the first read.
        version = await _read_version(store)
    if version is None:
        raise StoreFormatError(
            "the store has data and no format version: an unreleased build of pricekeeper wrote "
            "it, and no command migrates it. Use that build, or an empty store: another file, or "
            "another prefix of the tables"
        )
    if version > FORMAT_VERSION:
        raise StoreFormatError(
            f"the store has format {version}, and this pricekeeper uses format {FORMAT_VERSION}: "
            "install the version of pricekeeper that last opened it, or a newer one"
        )
    if version < FORMAT_VERSION:
        raise StoreFormatError(
            f"the store has format {version}, and this pricekeeper uses format {FORMAT_VERSION}: "
            "stop every service, back up the store, then run: pricekeeper migrate"
        )


async def _read_version(store: Store) -> int | None:
    item = await store.get(CONFIG, FORMAT_KEY)
    return None if item is None else TypedItem(CONFIG, item).whole(_VERSION, least=0)
