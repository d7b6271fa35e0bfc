"""Lists entries of the audit trail, newest first, in pages.

One organisation's entries are read from its chain, several organisations' from the timeline. A page
looks at a bounded number of entries, so it may be empty and have a next one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from pricekeeper.audit import items
from pricekeeper.audit.entry import TrailEntry, chain_of
from pricekeeper.audit.items import ListedEntry
from pricekeeper.storage import ListPage, Page, Store, invalid_cursor, readable
from pricekeeper.storage.tables import AUDIT_TRAIL
from pricekeeper.values import OrgId
from pricekeeper.wire.bounds import AUDIT_CURSOR, PAGE_MAX

LOOKED_AT_MAX: Final = 1_000
END_MS: Final = (1 << 48) - 1

_CURSOR: Final = re.compile(AUDIT_CURSOR, re.ASCII)
_NO_ID: Final = "00000000-0000-0000-0000-000000000000"


class TrailCursor(NamedTuple):
    """The entry before the next page: the timeline uses its id, a chain its number."""

    id: str
    seq: int

    @classmethod
    def parse(cls, text: str) -> TrailCursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise invalid_cursor()
        return cls(found[1], int(found[2]))

    @property
    def text(self) -> str:
        return f"{self.id}-{self.seq}"


@dataclass(frozen=True, slots=True)
class WantedEntries:
    """A filter of entries; the time ends before ``end_ms``."""

    actor: str | None = None
    """A whole actor, or the part before a slash: ``cli`` means every user of the command line."""
    action: str | None = None
    """A whole action, or the part before a dot, such as ``credentials``."""
    first_ms: int = 0
    end_ms: int = END_MS

    def fits(self, actor: str, action: str) -> bool:
        return _is_part(self.actor, actor, "/") and _is_part(self.action, action, ".")


EntryPage: TypeAlias = ListPage[TrailEntry, TrailCursor]


class TrailReader:
    """Reads the chains of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_org(
        self, org_id: OrgId, wanted: WantedEntries, after: TrailCursor | None, limit: int = PAGE_MAX
    ) -> EntryPage:
        chain, found, looked_at = chain_of(org_id), list[TrailEntry](), 0
        behind = "" if after is None else items.entry_key(chain, after.seq).sk or ""
        while True:
            query = items.chain_query(chain, after=behind, limit=PAGE_MAX, descending=True)
            page = await self._store.query(query)
            for item in page.items:
                seq, entry = items.seq_of(item), readable(items.entry_from, item)
                if seq is None:  # not ours; `audit verify` reports it
                    continue
                looked_at += 1
                if entry is not None and _is_wanted(entry, wanted):
                    found.append(entry)
                if len(found) == limit or looked_at == LOOKED_AT_MAX:
                    cursor = TrailCursor(_NO_ID if entry is None else entry.id, seq)
                    is_last = item is page.items[-1] and not page.after
                    return EntryPage(found, None if is_last else cursor)
            if not page.after:
                return EntryPage(found)
            behind = page.after

    async def list_all(
        self,
        wanted: WantedEntries,
        after: TrailCursor | None,
        limit: int = PAGE_MAX,
        *,
        covered: Collection[OrgId] | None = None,
    ) -> EntryPage:
        chains = None if covered is None else {chain_of(org_id) for org_id in covered}
        behind = "" if after is None else after.id
        found, looked_at = list[ListedEntry](), 0
        while True:
            page = await self._query_timeline(wanted, behind)
            for item in page.items:
                listed = readable(items.listed_from, item)
                looked_at += 1
                if listed is not None and wanted.fits(listed.actor, listed.action):
                    found += [listed] if chains is None or listed.chain in chains else []
                if len(found) == limit or looked_at == LOOKED_AT_MAX:
                    cursor = TrailCursor(item["SK"], 1 if listed is None else listed.seq)
                    is_last = item is page.items[-1] and not page.after
                    return await self._read_listed(found, None if is_last else cursor)
            if not page.after:
                return await self._read_listed(found, None)
            behind = page.after

    async def _query_timeline(self, wanted: WantedEntries, behind: str) -> Page:
        query = items.timeline_query(
            wanted.first_ms, wanted.end_ms, after=behind, limit=PAGE_MAX, descending=True
        )
        return await self._store.query(query)

    async def _read_listed(self, listed: list[ListedEntry], after: TrailCursor | None) -> EntryPage:
        keys = [(AUDIT_TRAIL, items.entry_key(one.chain, one.seq)) for one in listed]
        stored = await self._store.batch_get(keys)
        found = (readable(items.entry_from, item) for item in stored)
        return EntryPage([entry for entry in found if entry is not None], after)


def _is_wanted(entry: TrailEntry, wanted: WantedEntries) -> bool:
    is_in_time = wanted.first_ms <= entry.at_ms < wanted.end_ms
    return is_in_time and wanted.fits(entry.actor, entry.action)


def _is_part(wanted: str | None, text: str, separator: str) -> bool:
    return wanted is None or text == wanted or text.startswith(wanted + separator)
