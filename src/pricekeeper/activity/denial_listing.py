"""Listing denials, the newest minute first: of one organisation, or of all that somebody covers.

Groups of several processes that are one are shown as one. A page looks at a bounded number of items
and hours, so that it may be empty and have a next.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from pricekeeper.activity.denial import Group, minute_of
from pricekeeper.activity.items import (
    DenialKey,
    denial_key_from,
    denials_key,
    denials_query,
    denied_key_from,
    denied_query,
    group_from,
)
from pricekeeper.errors import InvalidValueError, UnreadableItemError
from pricekeeper.storage import Item, Store, query_items
from pricekeeper.storage.tables import ACTIVITY

PAGE_MAX: Final = 50
ITEMS_MAX: Final = 1_000
"""Items that one page looks at, if not all of them are wanted."""
HOURS_MAX: Final = 96
"""Hours that one page of all organisations looks at."""
HOURS_AT_ONCE: Final = 8
MINUTES_PER_HOUR: Final = 60
_CURSOR: Final = re.compile(r"([0-9]{1,9})(?:-([0-9a-f]{12})-([0-9a-f-]{36}))?")


class GroupName(NamedTuple):
    """A group of denials, whichever processes have counted it; the order is that of lists."""

    minute: int
    org_id: str
    digest: str


class Listed(NamedTuple):
    """A group of denials, and whose it is."""

    name: GroupName
    group: Group


class DenialCursor(NamedTuple):
    """Behind which group to go on; without one, behind the whole minute."""

    minute: int
    group: GroupName | None = None

    @classmethod
    def parse(cls, text: str) -> DenialCursor:
        """The cursor that `text` is."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidValueError("after", "must be the `next` of the page before")
        minute, digest, org_id = int(found[1]), found[2], found[3]
        return cls(minute, None if digest is None else GroupName(minute, org_id, digest))

    @property
    def text(self) -> str:
        """The cursor as the next request brings it along."""
        if self.group is None:
            return str(self.minute)
        return f"{self.minute}-{self.group.digest}-{self.group.org_id}"


class DenialPage(NamedTuple):
    """Some groups, and where to go on; ``None`` at the end."""

    groups: list[Listed]
    after: DenialCursor | None


class DenialListing:
    """Reads denials page by page."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_org(
        self,
        org_id: str,
        first_ms: int,
        last_ms: int,
        app_id: str | None = None,
        after: DenialCursor | None = None,
    ) -> DenialPage:
        """The next denials of an organisation, or of one of its apps. All ends are included."""
        minutes = minute_of(first_ms), minute_of(last_ms)
        behind = None if after is None else (after.minute, after.group and after.group.digest)
        stored: list[Item] = []
        async for item in query_items(self._store, denials_query(org_id, *minutes, behind)):
            stored.append(item)
            if len(stored) > ITEMS_MAX:
                break
        named = [(_name(denial_key_from(org_id, item)), item) for item in stored]
        rest = None
        if len(stored) > ITEMS_MAX:  # the last group may have been cut
            last = named[-1][0]
            named = [one for one in named if one[0] != last]
            rest = _behind(named[-1][0] if named else last)
        found: list[Listed] = []
        for name, some in groupby(named, key=lambda one: one[0]):
            if len(found) == PAGE_MAX:
                return DenialPage(found, _behind(found[-1].name))
            group = _merged(item for _, item in some)
            if group is not None and app_id in (None, group.app_id):
                found.append(Listed(name, group))
        return DenialPage(found, rest)

    async def read_all(
        self,
        covers: Callable[[str], bool],
        first_ms: int,
        last_ms: int,
        after: DenialCursor | None = None,
    ) -> DenialPage:
        """The next denials of every organisation that is covered. All ends are included."""
        first, last = minute_of(first_ms), minute_of(last_ms)
        if after is not None:
            last = min(last, after.minute if after.group else after.minute - 1)
        hours = range(last // MINUTES_PER_HOUR, first // MINUTES_PER_HOUR - 1, -1)
        named: dict[GroupName, list[DenialKey]] = {}
        for some in _chunks(hours[:HOURS_MAX]):
            for keys in await asyncio.gather(*(self._read_hour(hour) for hour in some)):
                for key in keys:
                    name = _name(key)
                    is_behind = after is None or after.group is None or name < after.group
                    if first <= key.minute <= last and is_behind and covers(key.org_id):
                        named.setdefault(name, []).append(key)
            if len(named) > PAGE_MAX:
                break
        shown = sorted(named, reverse=True)[:PAGE_MAX]
        found = await self._read_groups([(name, named[name]) for name in shown])
        if len(named) > PAGE_MAX:
            return DenialPage(found, _behind(shown[-1]))
        is_end = len(hours) <= HOURS_MAX
        return DenialPage(found, None if is_end else DenialCursor(hours[HOURS_MAX] * 60 + 60))

    async def _read_hour(self, hour: int) -> list[DenialKey]:
        items = query_items(self._store, denied_query(hour))
        return [key async for item in items if (key := denied_key_from(item)) is not None]

    async def _read_groups(
        self, named: Sequence[tuple[GroupName, Sequence[DenialKey]]]
    ) -> list[Listed]:
        keys = [denials_key(key) for _, keys in named for key in keys]
        stored = iter(await self._store.batch_get([(ACTIVITY, key) for key in keys]))
        found = []
        for name, own in named:
            items = [item for item in (next(stored) for _ in own) if item is not None]
            group = _merged(items)
            if group is not None:
                found.append(Listed(name, group))
        return found


def _merged(items: Iterable[Item]) -> Group | None:
    """What several processes have counted, as one; what can't be read is reported and left out."""
    merged: Group | None = None
    for item in items:
        try:
            group = group_from(item)
        except UnreadableItemError:
            continue
        merged = group if merged is None else merged.merged(group)
    return merged


def _name(key: DenialKey) -> GroupName:
    return GroupName(key.minute, key.org_id, key.digest)


def _behind(name: GroupName) -> DenialCursor:
    return DenialCursor(name.minute, name)


def _chunks(hours: range) -> Iterator[range]:
    for start in range(0, len(hours), HOURS_AT_ONCE):
        yield hours[start : start + HOURS_AT_ONCE]
