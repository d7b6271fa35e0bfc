"""Stored items that are strange: each is logged with its key, and counted by its table.

An item that another program wrote, or that was damaged, concerns the account it belongs to and
nobody else, so it stops nothing. That is why it has to be seen by an operator. Items are read in
many places, and none of them may forget to report: so every reading is reported to the log of the
process and to whoever counts in it. The counts belong to whoever has opened a `StrangeItems`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, Self

import structlog

from pricekeeper.storage.tables import ALL_TABLES
from pricekeeper.telemetry import Family, counted

LATEST_MAX: Final = 10

_STRANGE: Final = Family(
    "pricekeeper_strange_items", "Readings of stored items that make no sense.", ("table",)
)
_TABLES: Final = tuple(table.name for table in ALL_TABLES)
_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class StrangeItems:
    """How often an item of each table was found to be strange, from ``with`` to its end."""

    counts: Counter[str] = counted(_STRANGE, shown=_TABLES, factory=Counter)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=LATEST_MAX))
    """The last few, in words: for a command that has to name them."""

    def __enter__(self) -> Self:
        _counting.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _counting.remove(self)


_counting: Final[list[StrangeItems]] = []
"""Those that are open; as with the log, whoever reports does not know who listens."""


def report_strange_item(table: str, key: str, reason: str) -> None:
    """Report one reading of one item. The reason never quotes a value: it may be a secret."""
    _log.warning("stored_item_strange", table=table, key=key, reason=reason)
    for one in _counting:
        one.counts[table] += 1
        one.latest.append(f"{table} {key}: {reason}")
