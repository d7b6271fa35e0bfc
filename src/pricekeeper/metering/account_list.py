"""The list of an organisation's partitions of totals, so that nobody has to guess which there are.

A partition is listed before a total in it is written, and stays listed as long as the total.
"""

from __future__ import annotations

import contextlib
from typing import Final

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import ConditionFailedError
from pricekeeper.metering.items import Holds, account_update, day_expires_at_epoch
from pricekeeper.storage import Store

PARTITIONS_MAX: Final = 50_000
"""Partitions that this process has listed; a forgotten one is listed again."""


class AccountList:
    """Lists partitions, each once a day."""

    def __init__(self, store: Store, retention_days: int) -> None:
        self._store = store
        self._retention_days = retention_days
        self._listed: BoundedCache[tuple[str, str, Holds], bool] = BoundedCache(PARTITIONS_MAX)

    async def add(self, org_id: str, partition: str, day: str, holds: Holds) -> None:
        """Say that the partition holds totals of that day."""
        if (partition, day, holds) in self._listed:
            return
        expires = day_expires_at_epoch(day, self._retention_days)
        with contextlib.suppress(ConditionFailedError):  # it is listed for longer than that
            await self._store.update(account_update(org_id, partition, holds, expires))
        self._listed.put((partition, day, holds), True)  # noqa: FBT003
