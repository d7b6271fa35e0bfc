"""Exports a day: the records and totals of each organisation, then the manifest.

One organisation at a time, with at most `files.RUN_LINES` records in memory. A note marks each
finished one: after a crash its files are kept if their hashes fit. First, one pass over the ticks'
markers finds where to read.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.errors import ExportError
from pricekeeper.export.destination import Destination
from pricekeeper.export.files import RUN_LINES, SortedLines, require_format, write_rows
from pricekeeper.export.manifest import (
    FileEntry,
    FileFormat,
    Manifest,
    OrgEntry,
    RecordRow,
    TotalRow,
    entry_from_note,
    final_at_ms,
    line_of,
    make_manifest,
    manifest_bytes,
    manifest_path,
    note_bytes,
    note_path,
    org_entry,
    org_path,
    owner_of,
    record_row,
    total_row,
)
from pricekeeper.metering.counters import NOTHING, Account, Counters
from pricekeeper.metering.items import CHECKPOINT, closed_tick_from
from pricekeeper.metering.journal import ticks_of_day
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.totals import TotalsReader
from pricekeeper.storage import Store
from pricekeeper.ticks import tick_of

TICKS_AT_ONCE: Final = 64
_LANE_BITS: Final = 16


class Progress(NamedTuple):
    """The progress of an export."""

    day: str
    org_number: int
    org_count: int
    records: int


Observe = Callable[[Progress], Awaitable[None]]


async def _observe_nothing(_: Progress) -> None:
    return


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The content of a day to export."""

    day: str
    is_final: bool
    regions: Mapping[str, array[int]]
    """Region and lanes, packed into one number."""
    accounts: Mapping[str, list[Account]]

    @property
    def org_ids(self) -> list[str]:
        return sorted({*self.regions, *self.accounts})


class Exporter:
    """Writes days of usage to one destination."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        destination: Destination,
        *,
        file_format: FileFormat = FileFormat.JSONL,
        run_lines: int = RUN_LINES,
        observe: Observe = _observe_nothing,
    ) -> None:
        require_format(file_format)
        self._store = store
        self._clock = clock
        self._to = destination
        self._format = file_format
        self._run_lines = run_lines
        self._observe = observe
        self._journal = JournalReader(store)
        self._totals = TotalsReader(store, clock)

    async def is_final(self, day: str) -> bool:
        if self._clock.now_ms() < final_at_ms(day):
            return False
        closed = closed_tick_from(await self._store.get(*CHECKPOINT))
        return closed is not None and closed >= tick_of(final_at_ms(day))

    async def plan(self, day: str, org_id: str | None = None) -> ExportPlan:
        is_final = await self.is_final(day)
        regions: dict[str, array[int]] = defaultdict(lambda: array("Q"))
        ticks = await self._journal.read_ticks(*ticks_of_day(day))
        for some in in_groups(ticks, TICKS_AT_ONCE):
            for posting in await self._journal.read_postings(some, org_id or ""):
                regions[posting.org_id].append(_packed(posting))
        accounts: dict[str, list[Account]] = defaultdict(list)
        for account in await self._totals.read_accounts(day, f"ORG#{org_id}" if org_id else ""):
            owner = owner_of(account.scope_key)[0]
            if org_id is None or owner == org_id:
                accounts[owner].append(account)
        return ExportPlan(day, is_final, regions, accounts)

    async def export_day(self, day: str, org_id: str | None = None) -> Manifest:
        """Write a day, or an organisation's part; raises `ExportError` or `StoreError`."""
        return await self.export(await self.plan(day, org_id), org_id)

    async def export(self, plan: ExportPlan, org_id: str | None = None) -> Manifest:
        org_ids, entries, records = plan.org_ids, list[OrgEntry](), 0
        for number, one in enumerate(org_ids, 1):
            so_far = Progress(plan.day, number, len(org_ids), records)
            await self._observe(so_far)
            entry = await self._find_done(plan, one) or await self._export_org(plan, one, so_far)
            if entry.files:
                entries.append(entry)
                records += entry.records
        manifest = make_manifest(plan.day, self._format, entries, is_final=plan.is_final)
        await self._to.put_bytes(manifest_path(plan.day, org_id), manifest_bytes(manifest))
        for entry in entries:
            await self._to.remove(note_path(plan.day, entry.org_id, self._format))
        return manifest

    async def _find_done(self, plan: ExportPlan, org_id: str) -> OrgEntry | None:
        """Of a stopped export. Notes exist only for final days."""
        entry = entry_from_note(await self._to.read(note_path(plan.day, org_id, self._format)))
        if entry is None or entry.org_id != org_id:
            return None
        for file in entry.files:
            if not await self._to.has(file):
                return None
        return entry

    async def _export_org(self, plan: ExportPlan, org_id: str, so_far: Progress) -> OrgEntry:
        day, sums = plan.day, dict[Account, Counters]()
        lines = SortedLines(self._to.scratch, run_lines=self._run_lines)
        try:
            await self._read_records(plan, org_id, so_far, lines, sums)
            totals = await self._read_totals(plan, org_id)
            files = []
            if lines.count or totals:
                files.append(await self._put(day, org_id, "records", RecordRow, lines))
                files.append(await self._put_totals(day, org_id, totals))
        finally:
            await asyncio.to_thread(lines.close)
        entry = org_entry(org_id, files, sums, totals)
        if entry.records != lines.count:
            raise ExportError(f"{org_id} on {day}: {lines.count} lines of {entry.records} records")
        if files and plan.is_final:
            await self._to.put_bytes(note_path(day, org_id, self._format), note_bytes(entry))
        return entry

    async def _read_records(
        self,
        plan: ExportPlan,
        org_id: str,
        so_far: Progress,
        lines: SortedLines,
        sums: dict[Account, Counters],
    ) -> None:
        postings = _postings(org_id, plan.regions.get(org_id, array("Q")))
        async for record in self._journal.read_records(postings):
            terms = record.terms
            if terms.day != plan.day:
                continue
            lines.add(record.request_id, line_of(record_row(org_id, record)))
            account = Account(terms.scope_key, terms.label, terms.day)
            sums[account] = sums.get(account, NOTHING) + record.entry.counters
            if lines.is_full:
                await asyncio.to_thread(lines.spill)
                await self._observe(so_far._replace(records=so_far.records + lines.count))

    async def _read_totals(self, plan: ExportPlan, org_id: str) -> dict[Account, Counters]:
        accounts = plan.accounts.get(org_id, [])
        if not accounts:
            return {}
        found = (await self._totals.read(accounts)).require_all()
        return {
            account: total.counters for account, total in found.items() if total.counters != NOTHING
        }

    async def _put_totals(
        self, day: str, org_id: str, totals: Mapping[Account, Counters]
    ) -> FileEntry:
        lines = SortedLines(self._to.scratch)
        for account, total in totals.items():
            key = f"{account.scope_key}#LABEL#{account.label}"
            lines.add(key, line_of(total_row(account, total)))
        return await self._put(day, org_id, "totals", TotalRow, lines)

    async def _put(
        self, day: str, org_id: str, name: str, kind: type[RecordRow | TotalRow], lines: SortedLines
    ) -> FileEntry:
        path = f"{name}/{org_path(day, org_id)}/{name}{self._format.suffix}"
        aside = self._to.scratch / f"{name}{self._format.suffix}"
        try:
            written = await asyncio.to_thread(write_rows, aside, self._format, kind, lines.lines())
        except OSError as error:
            raise ExportError(f"can't write {aside}: {error.strerror}") from error
        await self._to.put_file(path, written)
        return FileEntry(path, written.rows, written.bytes, written.sha256)


def _packed(posting: PostedRegion) -> int:
    return int(posting.region, 16) << _LANE_BITS | posting.lanes


def _postings(org_id: str, packed: array[int]) -> list[PostedRegion]:
    """Each region once, with its largest number of lanes."""
    lanes: dict[int, int] = {}
    for one in packed:
        region = one >> _LANE_BITS
        lanes[region] = max(lanes.get(region, 0), one & (1 << _LANE_BITS) - 1)
    return [PostedRegion(org_id, f"{region:08x}", wide) for region, wide in sorted(lanes.items())]
