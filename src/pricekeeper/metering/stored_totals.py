"""Reads and writes totals, and lists each one before it is written, so that readers can find it.

An item ``SPENT#{day}`` names each account with a total of that day, an item ``ACCOUNTS#{org}`` each
partition with totals. Both live as long as the totals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import ConditionFailedError
from pricekeeper.metering.counters import Account
from pricekeeper.metering.facets import Facet
from pricekeeper.metering.fold import Fold
from pricekeeper.metering.items import (
    Holds,
    account_update,
    day_expires_at_epoch,
    fold_put,
    lacking_update,
    spent_put,
    total_so_far,
)
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import DAILY_TOTAL

PARTITIONS_MAX: Final = 50_000
"""A forgotten partition is entered again."""


class StoredTotals:
    """The totals of a store, and the lists of them."""

    def __init__(self, store: Store, clock: Clock, retention_days: int) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._listed: BoundedCache[tuple[str, str, Holds], bool] = BoundedCache(PARTITIONS_MAX)

    async def read(self, facets: Collection[Facet]) -> dict[Facet, Item | None]:
        stored = await self._store.batch_get([(DAILY_TOTAL, facet.key) for facet in facets])
        return dict(zip(facets, stored, strict=True))

    async def put(
        self,
        facet: Facet,
        fold: Fold,
        stored: Item | None,
        as_of_ms: int,
        *,
        is_whole: bool = False,
    ) -> None:
        """``is_whole``: made from all records. `ConditionFailedError` if another was first."""
        if stored is None:
            await self.enter_in_lists(facet)
        else:
            as_of_ms = max(as_of_ms, total_so_far(stored).as_of_ms)
        expires = day_expires_at_epoch(facet.day, self._retention_days)
        await self._store.put(
            fold_put(facet.key, fold, stored, as_of_ms, expires, is_whole=is_whole)
        )

    async def enter_in_lists(self, facet: Facet) -> None:
        account = facet.account
        if account is not None:
            expires = day_expires_at_epoch(facet.day, self._retention_days)
            await self._store.put(spent_put(account, expires))
        holds: Holds = "has_hours" if account is None else "has_days"
        await self.enter_partition(facet.org_id, facet.pk, facet.day, holds)

    async def enter_partition(self, org_id: str, partition: str, day: str, holds: Holds) -> None:
        if (partition, day, holds) in self._listed:
            return
        expires = day_expires_at_epoch(day, self._retention_days)
        with contextlib.suppress(ConditionFailedError):  # it is listed for longer already
            await self._store.update(account_update(org_id, partition, holds, expires))
        self._listed.put((partition, day, holds), True)  # noqa: FBT003

    async def mark_lacking(self, account: Account) -> None:
        with contextlib.suppress(ConditionFailedError):  # there is none, or it is marked
            await self._store.update(lacking_update(account, self._clock.now_ms()))
