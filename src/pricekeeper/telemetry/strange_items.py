"""Stored items that are strange: each is logged with its key, and counted by its table.

An item that another program wrote, or that was damaged, concerns the account it belongs to and
nobody else, so it stops nothing. That is why it has to be seen by an operator. There is one count
for the process, as there is one log: items are read in many places, and none of them may forget
to report.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import structlog

LATEST_MAX: Final = 10

_log = structlog.get_logger(__name__)


class StrangeItems:
    """How often an item of each table was found to be strange."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.latest: deque[str] = deque(maxlen=LATEST_MAX)
        """The last few, in words: for a command that has to name them."""

    def note(self, table: str, key: str, reason: str) -> None:
        """Report one reading of one item. The reason never quotes a value: it may be a secret."""
        self.counts[table] += 1
        self.latest.append(f"{table} {key}: {reason}")
        _log.warning("stored_item_strange", table=table, key=key, reason=reason)


STRANGE_ITEMS: Final = StrangeItems()
