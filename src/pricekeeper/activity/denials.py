"""Writes denials behind the answers, and lists them, newest minute first.

Each process combines its denials by minute, writes a group soon after its first denial, and again
every `AGAIN_MS` while it grows: a flood of denials is no flood of writes. A write replaces the
whole group, so a repeat is harmless. Unwritten denials of a killed process are lost.

Bounds: `GROUPS_MAX` groups of an organisation and minute, others count as ``other``; `PENDING_MAX`
unfinished groups of a process; `WRITES_MAX` writes in a round; `GIVEN_UP_MS` of failed writes. A
page looks at a bounded number of items and hours, so it may be empty although more follow.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple, TypeAlias

import structlog

from pricekeeper.activity.event import MINUTE_MS, Denial, Group, GroupKey, minute_of
from pricekeeper.activity.items import (
    KEPT_DAYS,
    SECS_PER_DAY,
    DenialKey,
    denial_key_from,
    denials_key,
    denials_put,
    denials_query,
    denied_key_from,
    denied_put,
    denied_query,
    group_from,
)
from pricekeeper.activity.meter import DenialMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import gather_in_groups, in_groups
from pricekeeper.errors import StoreError
from pricekeeper.storage import Item, ListPage, Store, invalid_cursor, query_items, readable
from pricekeeper.storage.tables import ACTIVITY

GROUPS_MAX: Final = 32
SERIES_MAX: Final = 1_000
PENDING_MAX: Final = 20_000
WRITES_MAX: Final = 256
AT_ONCE: Final = 8
AGAIN_MS: Final = 10_000
GIVEN_UP_MS: Final = 300_000
OTHER: Final = "other"
"""The model of denials without a group of their own; they have no example."""
_PROCESS_BYTES: Final = 4
_DIGEST_BYTES: Final = 6

PAGE_MAX: Final = 50
ITEMS_MAX: Final = 1_000
"""Items that a page looks at, if not all of them are wanted."""
HOURS_MAX: Final = 96
"""Hours that a page of all organisations looks at."""
HOURS_AT_ONCE: Final = 8
MINUTES_PER_HOUR: Final = 60
_CURSOR: Final = re.compile(r"([0-9]{1,9})(?:-([0-9a-f]{12})-([0-9a-f-]{36}))?")

_log = structlog.get_logger(__name__)


class _Pending:
    __slots__ = ("group", "key", "written", "written_at_ms")

    def __init__(self, key: DenialKey, group: Group) -> None:
        self.key = key
        self.group = group
        self.written = 0
        self.written_at_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """At first, at intervals, and at the end of its minute."""
        if self.written == self.group.count:
            return False
        over = minute_of(now_ms) > self.key.minute
        return not self.written or over or now_ms - self.written_at_ms >= AGAIN_MS

    def is_done(self, now_ms: int) -> bool:
        """Whether its minute is over and all of it is written."""
        return minute_of(now_ms) > self.key.minute and self.written == self.group.count

    def is_hopeless(self, now_ms: int) -> bool:
        """Whether the store has failed for so long that it is given up."""
        return now_ms - (self.key.minute + 1) * MINUTE_MS > GIVEN_UP_MS


class Denier(NamedTuple):
    """The labels of a denial in the metrics."""

    org_id: str
    app_id: str | None
    model: str
    kind: str


OTHERS: Final = Denier("", None, OTHER, OTHER)
"""All denials beyond `SERIES_MAX`."""


class DenialLog:
    """Counts denials and writes them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._process = secrets.token_hex(_PROCESS_BYTES)
        self._pending: dict[tuple[str, int, GroupKey], _Pending] = {}
        self._groups: Counter[tuple[str, int]] = Counter()
        self.totals: Counter[Denier] = Counter()
        """At most `SERIES_MAX` are distinguished."""
        self.names: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        self.meter = DenialMeter()

    def note(self, denial: Denial, org_name: str, app_name: str | None) -> None:
        denier = Denier(denial.org_id, denial.app_id, denial.model, denial.kind)
        if denier not in self.totals and len(self.totals) >= SERIES_MAX:
            denier = OTHERS
        else:
            self.names[denial.org_id, denial.app_id] = org_name, app_name
        self.totals[denier] += 1
        minute = minute_of(denial.at_ms)
        pending = self._pending.get((denial.org_id, minute, denial.key))
        if pending is None:
            pending = self._begin(denial, minute)
        if pending is not None:
            pending.group.add(denial.at_ms)

    async def flush(self) -> None:
        """Write what is due; failed writes are repeated later."""
        now_ms = self._clock.now_ms()
        due = (one for one in self._pending.values() if one.is_due(now_ms))
        await gather_in_groups(self._write, list(islice(due, WRITES_MAX)), AT_ONCE)
        self._forget(now_ms)

    async def close(self) -> None:
        left = [one for one in self._pending.values() if one.written < one.group.count]
        await gather_in_groups(self._write, left, AT_ONCE)

    def _begin(self, denial: Denial, minute: int) -> _Pending | None:
        """Begin an empty group; without room, use the group of all others."""
        org, key, why = (denial.org_id, minute), denial.key, denial.why
        if len(self._pending) >= PENDING_MAX:
            self.meter.lost += 1
            return None
        if self._groups[org] >= GROUPS_MAX:
            self.meter.combined += 1
            key, why = GroupKey(None, OTHER, OTHER, OTHER, ()), {}
            known = self._pending.get((*org, key))
            if known is not None:
                return known
        else:
            self._groups[org] += 1
        at_ms = denial.at_ms
        group = Group(key.app_id, key.kind, key.model, key.code, 0, at_ms, at_ms, why)
        pending = _Pending(DenialKey(*org, digest_of(key), self._process), group)
        self._pending[*org, key] = pending
        return pending

    async def _write(self, pending: _Pending) -> None:
        now_ms, count = self._clock.now_ms(), pending.group.count
        expires = pending.key.minute * 60 + KEPT_DAYS * SECS_PER_DAY
        try:
            if not pending.written:
                await self._store.put(denied_put(pending.key, expires))
            await self._store.put(denials_put(pending.key, pending.group, expires))
        except StoreError as error:
            self.meter.failed += 1
            _log.warning("denials_not_written", error=error.code)
            return
        self.meter.written += 1
        pending.written, pending.written_at_ms = count, now_ms

    def _forget(self, now_ms: int) -> None:
        for key, pending in list(self._pending.items()):
            if pending.is_done(now_ms):
                del self._pending[key]
            elif pending.is_hopeless(now_ms):
                self.meter.lost += 1
                del self._pending[key]
        oldest = minute_of(now_ms) - 1
        for org in [one for one in self._groups if one[1] < oldest]:
            del self._groups[org]


def digest_of(key: GroupKey) -> str:
    """The name of a group within its minute, the same in every process."""
    text = repr((key.app_id, str(key.kind), key.model, key.code, key.obstacles))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class GroupName(NamedTuple):
    """A group of denials of all processes, ordered as in lists."""

    minute: int
    org_id: str
    digest: str


class Listed(NamedTuple):
    """A group of denials with its name."""

    name: GroupName
    group: Group


class DenialCursor(NamedTuple):
    """The group before the next page; without a group, the whole minute."""

    minute: int
    group: GroupName | None = None

    @classmethod
    def parse(cls, text: str) -> DenialCursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise invalid_cursor()
        minute, digest, org_id = int(found[1]), found[2], found[3]
        return cls(minute, None if digest is None else GroupName(minute, org_id, digest))

    @property
    def text(self) -> str:
        if self.group is None:
            return str(self.minute)
        return f"{self.minute}-{self.group.digest}-{self.group.org_id}"


DenialPage: TypeAlias = ListPage[Listed, DenialCursor]


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
        """Of one organisation or app. Both ends are included."""
        minutes = minute_of(first_ms), minute_of(last_ms)
        behind = None if after is None else (after.minute, after.group and after.group.digest)
        stored: list[Item] = []
        async for item in query_items(self._store, denials_query(org_id, *minutes, behind)):
            stored.append(item)
            if len(stored) > ITEMS_MAX:
                break
        named = [(_name(denial_key_from(org_id, item)), item) for item in stored]
        rest = None
        if len(stored) > ITEMS_MAX:
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
        """Of all covered organisations. Both ends are included."""
        first, last = minute_of(first_ms), minute_of(last_ms)
        if after is not None:
            last = min(last, after.minute if after.group else after.minute - 1)
        hours = range(last // MINUTES_PER_HOUR, first // MINUTES_PER_HOUR - 1, -1)
        named: dict[GroupName, list[DenialKey]] = {}
        for some in in_groups(hours[:HOURS_MAX], HOURS_AT_ONCE):
            for keys in await asyncio.gather(*map(self._read_hour, some)):
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
            group = _merged(item for item in (next(stored) for _ in own) if item is not None)
            if group is not None:
                found.append(Listed(name, group))
        return found


def _merged(items: Iterable[Item]) -> Group | None:
    """Combine the groups of several processes; unreadable ones are reported and left out."""
    merged: Group | None = None
    for item in items:
        group = readable(group_from, item)
        if group is not None:
            merged = group if merged is None else merged.merged(group)
    return merged


def _name(key: DenialKey) -> GroupName:
    return GroupName(key.minute, key.org_id, key.digest)


def _behind(name: GroupName) -> DenialCursor:
    return DenialCursor(name.minute, name)
