"""Verifying the audit trail: whether an entry was changed, removed or put elsewhere.

Each chain is read from its oldest entry to its end. An entry that expired is gone with all that
came before it, and each entry says when the one before it expires: so an oldest entry whose
predecessor should still be there is one whose predecessor was removed. The head tells whether the
last entries are there, and the timeline whether a chain was cut off together with its head. What
Config says of each chain that was begun tells whether one was removed with all of that.

Whoever can write to every item of a chain can make a whole new one that fits. That is found by
holding the chain against what was exported before (`compare_lines`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pricekeeper.audit import items
from pricekeeper.audit.entry import Head, TrailEntry, hash_of
from pricekeeper.audit.exported import read_lines
from pricekeeper.audit.items import ListedEntry
from pricekeeper.audit.reading import END_MS
from pricekeeper.clock import Clock
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Item, Store, query_items
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG
from pricekeeper.storage.values import EXPIRY

FINDINGS_MAX: Final = 100
"""Findings that are told of one chain; the rest is counted."""
_AT_ONCE: Final = 100
_QUERY_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TrailFinding:
    """Something that is not as it was written."""

    chain: str
    seq: int
    problem: str


@dataclass(slots=True)
class ChainReport:
    """What was found in one chain."""

    chain: str
    is_known: bool = False
    """Whether it was ever begun, as far as the store knows."""
    entries: int = 0
    first_seq: int = 0
    last_seq: int = 0
    last_hash: str = ""
    """To be kept elsewhere: a later chain must still have it under that number."""
    findings: list[TrailFinding] = field(default_factory=list)
    findings_more: int = 0

    def add(self, seq: int, problem: str) -> None:
        """Add a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(TrailFinding(self.chain, seq, problem))
        else:
            self.findings_more += 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of holding the chains against an export."""

    lines: int
    """Lines of the export that were held against them."""
    findings: list[TrailFinding]


class TrailVerifier:
    """Verifies and exports the chains of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def verify(self, chain: str | None = None) -> list[ChainReport]:
        """Verify one chain, or all of them."""
        begun = await self._read_beginnings(chain)  # before the heads, which are never removed
        names = begun.keys() | set(await self._chains(chain))
        reports = {name: await self._verify_chain(name, begun.get(name, 0)) for name in names}
        await self._verify_timeline(reports, chain)
        return [reports[name] for name in sorted(reports)]

    async def export(self, chain: str | None = None) -> AsyncIterator[bytes]:
        """Every entry as the bytes that its hash is of, chain by chain, the oldest first.

        What lies under a key that no entry has is left out; `verify` tells of it.
        """
        for name in await self._chains(chain):
            query = items.chain_query(name, limit=_QUERY_MAX)
            async for item in query_items(self._store, query):
                if items.seq_of(item) is not None:
                    yield items.body_of(item)

    async def compare_lines(self, lines: Iterable[bytes]) -> Comparison:
        """Hold the chains against lines that were exported before; at most so many are told.

        What has expired since need not be there. Raises `InvalidValueError` if the lines are none,
        or lines were taken out of them.
        """
        findings, count = list[TrailFinding](), 0
        pending = read_lines(lines, self._now_epoch())
        while some := list(islice(pending, _AT_ONCE)):
            entries = [line.entry for line in some]
            keys = [(AUDIT_TRAIL, items.entry_key(one.chain, one.seq)) for one in entries]
            stored = await self._store.batch_get(keys)
            now_epoch = self._now_epoch()
            for line, entry, item in zip(some, entries, stored, strict=True):
                if item is None and entry.expires_at_epoch > now_epoch:
                    findings.append(TrailFinding(entry.chain, entry.seq, "was removed"))
                elif item is not None and _body(item) != line.body:
                    findings.append(
                        TrailFinding(entry.chain, entry.seq, "is not what was exported")
                    )
            count += len(some)
            if len(findings) > FINDINGS_MAX:
                break
        return Comparison(count, findings[:FINDINGS_MAX])

    async def _chains(self, chain: str | None) -> list[str]:
        if chain is not None:
            return [chain]
        return [str(item["SK"]) async for item in query_items(self._store, items.heads_query())]

    async def _read_beginnings(self, chain: str | None) -> dict[str, int]:
        """How often each chain was begun, or that one."""
        if chain is None:
            found = query_items(self._store, items.beginnings_query())
            return {str(item["SK"]): items.times_begun(item) async for item in found}
        times = items.times_begun(await self._store.get(CONFIG, items.beginning_key(chain)))
        return {chain: times} if times else {}

    async def _verify_chain(self, chain: str, begun: int = 0) -> ChainReport:
        """Read the head, then the entries: what is appended meanwhile is verified as well.

        ``begun`` is how often the chain was begun; 0 for one that Config does not know.
        """
        report = ChainReport(chain)
        head = await self._read_head(chain, report)
        async for some in self._read_pages(chain):
            await self._verify_listed(some, report)
            for item in some:
                self._verify_entry(item, head, report)
        if head.seq > report.last_seq and head.expires_at_epoch > self._now_epoch():
            report.add(head.seq, f"the entries after {report.last_seq} were removed")
        if head.seq < report.last_seq:
            head = await self._read_head(chain, report)
        if head.seq < report.last_seq:
            report.add(report.last_seq, f"the head of the chain says that it ends at {head.seq}")
        report.is_known = bool(begun or head.seq or report.entries or report.findings)
        if begun and not (head.seq or report.entries or report.findings):
            report.add(0, "all of it was removed, and its head")
        if begun > 1:
            report.add(1, f"the chain was begun {begun} times: what was before was removed")
        return report

    async def _read_head(self, chain: str, report: ChainReport) -> Head:
        try:
            return items.head_from(await self._store.get(AUDIT_TRAIL, items.head_key(chain)))
        except UnreadableItemError:
            report.add(0, "the head of the chain can't be read")
            return Head()

    async def _read_pages(self, chain: str) -> AsyncIterator[list[Item]]:
        some = list[Item]()
        async for item in query_items(self._store, items.chain_query(chain, limit=_QUERY_MAX)):
            some.append(item)
            if len(some) == _AT_ONCE:
                yield some
                some = []
        if some:
            yield some

    def _verify_entry(self, item: Item, head: Head, report: ChainReport) -> None:
        """Verify one entry, and that it follows the one before, which the report ends with."""
        seq, entry, digest = items.seq_of(item), items.readable_entry(item), hash_of(_body(item))
        if seq is None:
            found = 0 if entry is None else entry.seq
            report.add(found, f"is under the key {item['SK']!r}, where no entry belongs")
            return
        if entry is None:
            report.add(seq, "can't be read")
        else:
            if (entry.chain, entry.seq) != (report.chain, seq):
                report.add(seq, f"is entry {entry.seq} of {entry.chain}, in another place")
            if item.get(EXPIRY) != entry.expires_at_epoch:
                report.add(seq, "expires at another time than it was written with")
            self._verify_link(entry, seq, report)
        if head.seq == seq and head.hash != digest:
            report.add(seq, "is not the entry that the head of the chain names")
        report.entries += 1
        report.first_seq = report.first_seq or seq
        report.last_seq, report.last_hash = seq, digest

    def _verify_link(self, entry: TrailEntry, seq: int, report: ChainReport) -> None:
        is_oldest, next_seq = not report.entries, report.last_seq + 1
        may_be_gone = is_oldest and entry.previous_expires_at_epoch <= self._now_epoch()
        if seq > next_seq and not may_be_gone:
            report.add(next_seq, f"was removed, and all up to {seq - 1}")
        elif seq == next_seq and entry.previous != report.last_hash:
            report.add(seq - 1, f"is not what entry {seq} says that it was")

    async def _verify_listed(self, some: list[Item], report: ChainReport) -> None:
        """Verify that the timeline names these entries."""
        entries = [entry for entry in map(items.readable_entry, some) if entry is not None]
        keys = [(AUDIT_TRAIL, items.listed_key(entry.id)) for entry in entries]
        for entry, item in zip(entries, await self._store.batch_get(keys), strict=True):
            listed = items.readable_listed(item)
            if listed is None or (listed.chain, listed.seq) != (entry.chain, entry.seq):
                report.add(entry.seq, "is not in the list of all changes")

    async def _verify_timeline(self, reports: dict[str, ChainReport], only: str | None) -> None:
        """Verify that what the timeline names is there: also if a whole chain is gone."""
        query = items.timeline_query(0, END_MS, limit=_QUERY_MAX)
        async for item in query_items(self._store, query):
            listed = items.readable_listed(item)
            if listed is None or only not in (None, listed.chain):
                continue
            if listed.chain not in reports:
                reports[listed.chain] = await self._verify_chain(listed.chain)
            report = reports[listed.chain]
            if listed.seq > report.last_seq and not await self._is_there(listed, item):
                report.add(listed.seq, "was removed, and the list of all changes still names it")

    async def _is_there(self, listed: ListedEntry, item: Item) -> bool:
        """Whether the entry was appended meanwhile, or has expired by now."""
        key = items.entry_key(listed.chain, listed.seq)
        if await self._store.get(AUDIT_TRAIL, key) is not None:
            return True
        expires: object = item.get(EXPIRY)
        return isinstance(expires, int) and expires <= self._now_epoch()

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000


def _body(item: Item) -> bytes:
    """The bytes of an entry; what is no text has none."""
    try:
        return items.body_of(item)
    except UnreadableItemError:
        return b""
