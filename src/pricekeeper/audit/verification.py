"""Verifies the audit trail, and compares it with an export.

A chain is read from its oldest entry to its end. Each entry states when the one before it expires,
so a missing, unexpired predecessor was removed. The head shows missing last entries, the timeline a
chain cut off together with its head, and Config a chain without items.

An attacker who can write all items can make a new chain that fits; a comparison with an earlier
export finds that (`compare_lines`). A file with missing lines is refused with the number of the
line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from pricekeeper.audit import items
from pricekeeper.audit.entry import Head, TrailEntry, hash_of
from pricekeeper.audit.items import ListedEntry
from pricekeeper.audit.reading import END_MS
from pricekeeper.clock import Clock
from pricekeeper.errors import InvalidValueError, UnreadableItemError
from pricekeeper.storage import Item, Query, Store, query_items, readable
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG
from pricekeeper.storage.values import EXPIRY

FINDINGS_MAX: Final = 100
_AT_ONCE: Final = 100
_QUERY_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TrailFinding:
    """A difference from the written trail."""

    chain: str
    seq: int
    problem: str


@dataclass(slots=True)
class ChainReport:
    """The findings in one chain."""

    chain: str
    is_known: bool = False
    """Whether the store knows that it was ever begun."""
    entries: int = 0
    first_seq: int = 0
    last_seq: int = 0
    last_hash: str = ""
    """Keep it elsewhere: a later chain must have it under that number."""
    findings: list[TrailFinding] = field(default_factory=list)
    findings_more: int = 0

    def add(self, seq: int, problem: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(TrailFinding(self.chain, seq, problem))
        else:
            self.findings_more += 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison with an export."""

    lines: int
    findings: list[TrailFinding]


class TrailVerifier:
    """Verifies and exports the chains of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def verify(self, chain: str | None = None) -> list[ChainReport]:
        begun = await self._read_beginnings(chain)  # before the heads, which are never removed
        names = begun.keys() | set(await self._chains(chain))
        reports = {name: await self._verify_chain(name, begun.get(name, 0)) for name in names}
        await self._verify_timeline(reports, chain)
        return [reports[name] for name in sorted(reports)]

    async def export(self, chain: str | None = None) -> AsyncIterator[bytes]:
        """Read every entry as its hashed bytes, chain by chain, oldest first.

        Items under keys of no entry are left out; `verify` reports them.
        """
        for name in await self._chains(chain):
            query = items.chain_query(name, limit=_QUERY_MAX)
            async for item in query_items(self._store, query):
                if items.seq_of(item) is not None:
                    yield items.body_of(item)

    async def compare_lines(self, lines: Iterable[bytes]) -> Comparison:
        """Compare the chains with the lines of an earlier export; findings are bounded.

        Expired entries may be missing. Raises `InvalidValueError` if the lines are no export, or
        have gaps.
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
                        TrailFinding(entry.chain, entry.seq, "differs from the exported entry")
                    )
            count += len(some)
            if len(findings) > FINDINGS_MAX:
                break
        return Comparison(count, findings[:FINDINGS_MAX])

    async def _chains(self, chain: str | None) -> list[str]:
        if chain is not None:
            return [chain]
        return [
            str(item["SK"])
            async for item in query_items(self._store, Query(AUDIT_TRAIL, items.HEADS))
        ]

    async def _read_beginnings(self, chain: str | None) -> dict[str, int]:
        if chain is None:
            found = query_items(self._store, Query(CONFIG, items.BEGINNINGS))
            return {str(item["SK"]): items.times_begun(item) async for item in found}
        times = items.times_begun(await self._store.get(CONFIG, items.beginning_key(chain)))
        return {chain: times} if times else {}

    async def _verify_chain(self, chain: str, begun: int = 0) -> ChainReport:
        """Read the head before the entries, so that later entries are verified too.

        ``begun``: how often the chain was begun; 0 if Config does not know it.
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
            report.add(
                report.last_seq, f"the head of the chain states {head.seq} as the last entry"
            )
        report.is_known = bool(begun or head.seq or report.entries or report.findings)
        if begun and not (head.seq or report.entries or report.findings):
            report.add(0, "all of the chain was removed, with its head")
        if begun > 1:
            report.add(1, f"the chain was begun {begun} times, so an earlier one was removed")
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
        seq, digest = items.seq_of(item), hash_of(_body(item))
        entry = readable(items.entry_from, item)
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
                report.add(seq, "does not expire at the time that it states")
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
            report.add(next_seq, f"was removed, with all up to {seq - 1}")
        elif seq == next_seq and entry.previous != report.last_hash:
            report.add(seq - 1, f"does not have the hash that entry {seq} states")

    async def _verify_listed(self, some: list[Item], report: ChainReport) -> None:
        found = (readable(items.entry_from, item) for item in some)
        entries = [entry for entry in found if entry is not None]
        keys = [(AUDIT_TRAIL, items.listed_key(entry.id)) for entry in entries]
        for entry, item in zip(entries, await self._store.batch_get(keys), strict=True):
            listed = readable(items.listed_from, item)
            if listed is None or (listed.chain, listed.seq) != (entry.chain, entry.seq):
                report.add(entry.seq, "is not in the list of all changes")

    async def _verify_timeline(self, reports: dict[str, ChainReport], only: str | None) -> None:
        query = items.timeline_query(0, END_MS, limit=_QUERY_MAX)
        async for item in query_items(self._store, query):
            listed = readable(items.listed_from, item)
            if listed is None or only not in (None, listed.chain):
                continue
            if listed.chain not in reports:
                reports[listed.chain] = await self._verify_chain(listed.chain)
            report = reports[listed.chain]
            if listed.seq > report.last_seq and not await self._is_there(listed, item):
                report.add(listed.seq, "was removed, but is still in the list of all changes")

    async def _is_there(self, listed: ListedEntry, item: Item) -> bool:
        key = items.entry_key(listed.chain, listed.seq)
        if await self._store.get(AUDIT_TRAIL, key) is not None:
            return True
        expires: object = item.get(EXPIRY)
        return isinstance(expires, int) and expires <= self._now_epoch()

    def _now_epoch(self) -> int:
        return self._clock.now_ms() // 1000


def _body(item: Item) -> bytes:
    return readable(items.body_of, item) or b""


@dataclass(frozen=True, slots=True)
class ExportedLine:
    """One line of an export."""

    number: int
    body: bytes
    entry: TrailEntry


def read_lines(lines: Iterable[bytes], now_epoch: int) -> Iterator[ExportedLine]:
    """Parse each line; raises `InvalidValueError` where the file has a gap.

    Entries that expired before the export may be missing at the beginning of a chain.
    """
    before: ExportedLine | None = None
    chains = set[str]()
    for number, text in enumerate(lines, 1):
        if not (body := text.strip()):
            continue
        line = ExportedLine(number, body, _parse(number, body))
        if before is not None and before.entry.chain == line.entry.chain:
            _check_next(before, line)
        elif line.entry.chain in chains:
            raise _refusal(number, f"{_name(line.entry)} does not follow the line before")
        elif line.entry.previous_expires_at_epoch > now_epoch:
            raise _missing(line)
        chains.add(line.entry.chain)
        yield line
        before = line
    if before is None:
        raise InvalidValueError("against", "is empty; name a file that `audit export` wrote")


def _check_next(before: ExportedLine, line: ExportedLine) -> None:
    if line.entry.seq > before.entry.seq + 1:
        raise _missing(line)
    if line.entry.seq <= before.entry.seq:
        raise _refusal(line.number, f"{_name(line.entry)} does not follow the line before")
    if line.entry.previous != hash_of(before.body):
        raise _refusal(line.number, "it does not name the hash of the line before")


def _missing(line: ExportedLine) -> InvalidValueError:
    text = f"entry {line.entry.seq - 1} of {line.entry.chain} is missing before it"
    return _refusal(line.number, text)


def _name(entry: TrailEntry) -> str:
    return f"entry {entry.seq} of {entry.chain}"


def _parse(number: int, body: bytes) -> TrailEntry:
    try:
        return msgspec.json.decode(body, type=TrailEntry)
    except msgspec.MsgspecError as error:
        raise _refusal(number, "it is not an entry") from error


def _refusal(number: int, problem: str) -> InvalidValueError:
    text = f"must be a file that `audit export` wrote; line {number}: {problem}"
    return InvalidValueError("against", text)
