"""Keeps expired usage rows until they are exported (SQLite only).

An item of Config, written by the export, states from which expiry on the rows of two tables are
kept: readable and not swept. It is in the store, because every process that opens the file sweeps
it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pricekeeper.storage.tables import CONFIG, DAILY_TOTAL, USAGE_AGG_SHARDED, Key
from pricekeeper.storage.values import DAMAGED, Item

EXPORT_STATE: Final = (CONFIG, Key("EXPORT", "THROUGH"))
KEPT_FROM: Final = "kept_from_epoch"
KEPT_TABLES: Final = frozenset({USAGE_AGG_SHARDED.name, DAILY_TOTAL.name})


class Horizon(NamedTuple):
    """The present time, and from which expiry on rows are kept."""

    now_epoch: int
    kept_from_epoch: int | None = None

    def of(self, table: str) -> int:
        if self.kept_from_epoch is None or table not in KEPT_TABLES:
            return self.now_epoch
        return min(self.now_epoch, self.kept_from_epoch - 1)


def kept_from_epoch(item: Item | None) -> int | None:
    """From which expiry on rows are kept; all are, if the item is malformed."""
    if item is None:
        return None
    if KEPT_FROM not in item and DAMAGED not in item:
        return None
    kept = item.get(KEPT_FROM)
    return kept if type(kept) is int else 0
