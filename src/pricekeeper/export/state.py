"""Up to which day usage was exported, and what is kept until it is: one item of Config.

A row of a day expires `RETENTION_RANGE` days after the day has begun, or later: the retention is at
least that, and two days are added to it for zones, late records and clocks (`metering.items`). So
everything of the first day that was not exported is kept by keeping what expires from then on.
Whether a longer retention was in force when a row was written does not matter for that.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.days import day_start_ms
from pricekeeper.errors import ConditionFailedError
from pricekeeper.export.days import day_after
from pricekeeper.settings import RETENTION_RANGE
from pricekeeper.storage import Condition, Item, Key, Remove, Set, Store, Update, attr
from pricekeeper.storage.kept_rows import EXPORT_STATE, KEPT_FROM
from pricekeeper.storage.tables import CONFIG

_DAY: Final = "day"
_OWNER: Final = "owner"
_UNTIL: Final = "until_ms"
_LEASE: Final = Key("EXPORT", "LEASE")
_SECS_PER_DAY: Final = 86_400


class ExportState:
    """What the store knows of exports."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_day(self) -> str | None:
        """The last day that was exported, as was every day before it; ``None`` if none was."""
        return _day_in(await self._store.get(*EXPORT_STATE))

    async def advance(self, day: str) -> None:
        """Say that everything up to that day was exported; never an earlier day."""
        table, key = EXPORT_STATE
        forward: Condition = attr(_DAY).absent() | attr(_DAY).lt(day)
        said, kept = Set(_DAY, day), Set(KEPT_FROM, kept_from_epoch(day))
        for actions, also in (
            ((said, kept), attr(KEPT_FROM).exists()),
            ((said,), attr(KEPT_FROM).absent()),
        ):
            try:
                await self._store.update(Update(table, key, actions, forward & also))
            except ConditionFailedError:
                continue
            return

    async def keep(self) -> None:
        """Keep what was not exported, from now on."""
        table, key = EXPORT_STATE
        item = await self._store.get(table, key)
        if item is not None and KEPT_FROM in item:
            return
        day = _day_in(item)
        same = attr(_DAY).absent() if day is None else attr(_DAY).eq(day)
        kept = Set(KEPT_FROM, 0 if day is None else kept_from_epoch(day))
        try:
            await self._store.update(Update(table, key, (kept,), same))
        except ConditionFailedError:
            return  # a day was exported meanwhile; the next time is soon enough

    async def release(self) -> None:
        """Keep nothing beyond its expiry any more."""
        table, key = EXPORT_STATE
        item = await self._store.get(table, key)
        if item is not None and KEPT_FROM in item:
            await self._store.update(Update(table, key, (Remove(KEPT_FROM),)))

    async def take_lease(self, owner: str, now_ms: int, lease_ms: int) -> bool:
        """Whether this owner is the one who exports until then; others need not do it as well."""
        free = attr(_UNTIL).absent() | attr(_UNTIL).lt(now_ms) | attr(_OWNER).eq(owner)
        actions = (Set(_OWNER, owner), Set(_UNTIL, now_ms + lease_ms))
        try:
            await self._store.update(Update(CONFIG, _LEASE, actions, free))
        except ConditionFailedError:
            return False
        return True


def kept_from_epoch(day: str) -> int:
    """From which expiry on rows are kept, if everything up to that day was exported."""
    return day_start_ms("UTC", day_after(day)) // 1000 + RETENTION_RANGE[0] * _SECS_PER_DAY


def _day_in(item: Item | None) -> str | None:
    day = None if item is None else item.get(_DAY)
    return day if isinstance(day, str) else None
