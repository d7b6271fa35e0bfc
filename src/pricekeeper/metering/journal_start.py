"""From when on the journal is used: one moment for all instances, agreed on in the store.

An instance of the version before the journal remembers every request id by a receipt. If it counted
a record that an instance of this version looks for in the journal, the record would count twice. So
ids that were made before the agreed moment keep their receipts, here as there. A store that an
earlier version has used gets a moment `ROLLOUT_MS` ahead: by then every instance has to be of this
version. A new store uses the journal at once.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import ConditionFailedError, OutcomeUnknownError
from pricekeeper.metering.items import CHECKPOINT
from pricekeeper.storage import ITEM_ABSENT, Item, Key, Put, Store, TypedItem
from pricekeeper.storage.tables import CONFIG

START: Final = (CONFIG, Key("JOURNAL", "START"))
ROLLOUT_MS: Final = 15 * 60_000
_FROM: Final = "from_ms"


async def agree_on_start(store: Store, clock: Clock) -> int:
    """The moment from which ids are looked for in the journal: read, or put if nobody has."""
    table, key = START
    item = await store.get(table, key)
    if item is None:
        is_used = await store.get(*CHECKPOINT) is not None
        from_ms = clock.now_ms() + (ROLLOUT_MS if is_used else 0)
        proposed: Item = {**key.attributes, _FROM: from_ms}
        try:
            await store.put(Put(table, proposed, ITEM_ABSENT))
            item = proposed
        except ConditionFailedError as agreed:
            item = dict(agreed.item or {})
        except OutcomeUnknownError:
            item = await store.get(table, key) or {}
    return TypedItem(table, item).whole(_FROM)
