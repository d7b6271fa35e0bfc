"""Files chapters: adds their sums to the items of accounts, and outcomes beside authorizations.

Each write names its chapter and is refused if it contains that one already. So any number of
processes can file the same chapter, and each continues where another has stopped.

Bounds: `WRITES_AT_ONCE` writes of up to `OUTCOMES_AT_ONCE` outcomes; `ATTEMPTS_MAX` attempts on an
item that others change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pricekeeper.budgets.items import (
    file_put,
    file_update,
    filed_through,
    past_accounts,
    tidy_update,
)
from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    InvalidOperationError,
    UnreadableItemError,
)
from pricekeeper.ledger.book import ChapterSums
from pricekeeper.ledger.items import find_damage, outcomes_key, outcomes_update
from pricekeeper.ledger.position import outcome_name, outcomes_sort_key
from pricekeeper.ledger.sheet import filed_in_part
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import RATE_BUCKETS

WRITES_AT_ONCE: Final = 16
OUTCOMES_AT_ONCE: Final = 100
ATTEMPTS_MAX: Final = 8


class Filer:
    """Files chapters of one organisation's log."""

    def __init__(
        self, store: Store, clock: Clock, org_id: str, expires_at_epoch: Callable[[int], int]
    ) -> None:
        self._store = store
        self._clock = clock
        self._org_id = org_id
        self._expires_at_epoch = expires_at_epoch

    async def file_all(self, chapters: Iterable[ChapterSums]) -> None:
        for sums in chapters:
            await _run_all([partial(self._file_item, key, sums) for key in sums.changes])
            groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
            for authorization_id, text in sums.outcomes.items():
                name, place = outcome_name(authorization_id), sums.places.get(authorization_id)
                filed = text if place is None else filed_in_part(text, place)
                groups[outcomes_sort_key(authorization_id)][name] = filed
            chapter = sums.chapter.name
            await _run_all(
                [partial(self._file_outcomes, one, some, chapter) for one, some in groups.items()]
            )

    async def _file_item(self, key: Key, sums: ChapterSums) -> None:
        """A damaged account does not stop the others: it was reported, and can't be spent from.

        `pricekeeper ledger check` finds what it lacks once it is mended.
        """
        with contextlib.suppress(UnreadableItemError):
            await self._file_accounts(key, sums)

    async def _file_accounts(self, key: Key, sums: ChapterSums) -> None:
        change, chapter, now_ms = sums.changes[key], sums.chapter.name, self._clock.now_ms()
        update = file_update(key, change.accounts, change.mends, chapter, now_ms)
        try:
            item = await self._store.update(update)
        except ConditionFailedError as refused:
            filed_through(refused.item or {})  # it is filed, or unreadable
            return
        except InvalidOperationError:
            await self._file_whole(key, sums, now_ms)
            return
        past = past_accounts(item, now_ms) if change.opened else []
        if past and filed_through(item) == chapter:
            with contextlib.suppress(ConditionFailedError):  # another time
                await self._store.update(tidy_update(key, past, chapter))

    async def _file_whole(self, key: Key, sums: ChapterSums, now_ms: int) -> None:
        """Read an item and replace it as a whole, since an update has room for some accounts only.

        Nor can an update add to a value that is no number.
        """
        change, chapter = sums.changes[key], sums.chapter.name
        for _ in range(ATTEMPTS_MAX):
            item = await self._store.get(RATE_BUCKETS, key)
            if item is not None and filed_through(item) >= chapter:
                return  # it is filed
            put = file_put(key, item, change.accounts, change.mends, chapter, now_ms)
            with contextlib.suppress(ConditionFailedError):  # others file, too
                await self._store.put(put)
                return
        raise ContendedError("other processes kept filing into the same item; try again")

    async def _file_outcomes(
        self, sort_key: str, outcomes: Mapping[str, str], chapter: str
    ) -> None:
        key = outcomes_key(self._org_id, sort_key)
        expires = self._expires_at_epoch(self._clock.now_ms())
        for names in in_groups(list(outcomes), OUTCOMES_AT_ONCE):
            some = {name: outcomes[name] for name in names}
            try:
                await self._store.update(outcomes_update(key, some, chapter, expires))
            except ConditionFailedError as refused:
                damage = find_damage(refused.item)
                if damage is None:
                    continue  # those of a later chapter are there
                update = outcomes_update(key, some, chapter, expires, in_place_of=damage)
                await self._store.update(update)


async def _run_all(work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all, some at a time; raise the first error once none is under way."""
    failed: BaseException | None = None
    for some in in_groups(work, WRITES_AT_ONCE):
        for done in await asyncio.gather(*(one() for one in some), return_exceptions=True):
            failed = failed or done
    if failed is not None:
        raise failed
