"""The content of an export: rows, files, the manifest, and when a day is final. Pure.

A day always gives the same bytes: sorted rows, canonical JSON, integers, no trace of the writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import quote

import msgspec

from pricekeeper.days import MS_PER_DAY, date_of, day_of, day_start_ms, org_day
from pricekeeper.metering.counters import COUNTER_NAMES, NOTHING, Account, Counters
from pricekeeper.metering.journal import Record

VERSION: Final = 1
DIFFERENCES_MAX: Final = 100
"""Listed for an organisation; all are counted."""

_FINAL_AFTER_DAYS: Final = 3
"""From the day's start in UTC.

The westernmost zone is half a day behind, records are up to a day late (`LATE_MS_MAX`), and clocks
differ by up to an hour.
"""

line_of: Final = msgspec.json.Encoder(order="sorted").encode


class FileFormat(StrEnum):
    """The format of rows."""

    JSONL = "jsonl"
    PARQUET = "parquet"

    @property
    def suffix(self) -> str:
        return ".jsonl.gz" if self is FileFormat.JSONL else ".parquet"


class RecordRow(msgspec.Struct, frozen=True, gc=False):
    """A usage record, or a correction of one."""

    request_id: str
    org_id: str
    app_id: str | None
    scope_key: str
    model_label: str
    day: str
    happened_at_ms: int
    accepted_at_ms: int
    service_tier: str
    calling_region: str | None
    pricing_version: str
    pricing_source: str
    price_estimated: bool
    is_error: bool
    cost_usd_picos: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    tags: dict[str, str]
    voids: str | None
    """The ``request_id`` that this correction cancels; its amounts are negative."""


class TotalRow(msgspec.Struct, frozen=True, gc=False):
    """The spend of one account."""

    org_id: str
    app_id: str | None
    scope_key: str
    model_label: str
    day: str
    cost_usd_picos: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    requests: int
    errors: int


class FileEntry(msgspec.Struct, frozen=True):
    """One file, with its hash to check."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Difference(msgspec.Struct, frozen=True):
    """An account whose total is not the sum of its records."""

    scope_key: str
    model_label: str
    records: Counters
    total: Counters


class OrgEntry(msgspec.Struct, frozen=True):
    """The export of one organisation."""

    org_id: str
    records: int
    record_sums: Counters
    total_sums: Counters
    files: tuple[FileEntry, ...]
    differing_accounts: int = 0
    differences: tuple[Difference, ...] = ()


class DoneNote(msgspec.Struct, frozen=True):
    """A finished organisation, which a stopped export need not repeat."""

    version: int
    entry: OrgEntry


class Manifest(msgspec.Struct, frozen=True):
    """The export of a day, written last, so all its files exist."""

    version: int
    day: str
    format: str
    is_final: bool
    """Whether the day can no longer change."""
    records: int
    record_sums: Counters
    total_sums: Counters
    totals_equal_records: bool
    organisations: tuple[OrgEntry, ...]


def record_row(org_id: str, record: Record) -> RecordRow:
    """The row of a record."""
    entry, terms, receipt = record.entry, record.terms, record.receipt
    return RecordRow(
        request_id=record.request_id,
        org_id=org_id,
        app_id=terms.app_id,
        scope_key=terms.scope_key,
        model_label=terms.label,
        day=terms.day,
        happened_at_ms=entry.happened_at_ms,
        accepted_at_ms=entry.sent_at_ms,
        service_tier=terms.service_tier,
        calling_region=terms.calling_region,
        pricing_version=terms.pricing_version,
        pricing_source=terms.pricing_source,
        price_estimated=receipt.price_estimated,
        is_error=bool(entry.counters.errors),
        cost_usd_picos=entry.cost_usd_picos,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        cache_read_tokens=entry.cache_read_tokens,
        cache_write_5m_tokens=entry.cache_write_5m_tokens,
        cache_write_1h_tokens=entry.cache_write_1h_tokens,
        tags=dict(terms.tags),
        voids=entry.voids or None,
    )


def total_row(account: Account, total: Counters) -> TotalRow:
    """The row of a total."""
    org_id, app_id = owner_of(account.scope_key)
    return TotalRow(
        org_id=org_id,
        app_id=app_id,
        scope_key=account.scope_key,
        model_label=account.label,
        day=account.day,
        **dict(zip(COUNTER_NAMES, total.amounts, strict=True)),
    )


def owner_of(scope_key: str) -> tuple[str, str | None]:
    """A scope's organisation, and its app if any."""
    org_scope, _, app_id = scope_key.partition("#APP#")
    return org_scope.removeprefix("ORG#"), app_id or None


def org_entry(
    org_id: str,
    files: Iterable[FileEntry],
    sums: Mapping[Account, Counters],
    totals: Mapping[Account, Counters],
) -> OrgEntry:
    """An organisation's export, with totals that differ from records."""
    records = sum(one.with_voided.requests + one.known_voided.requests for one in sums.values())
    sums = {account: counters.alone for account, counters in sums.items()}
    differing = sorted(
        account
        for account in {*sums, *totals}
        if sums.get(account, NOTHING) != totals.get(account, NOTHING)
    )
    of_records, of_totals = _sum(sums.values()), _sum(totals.values())
    return OrgEntry(
        org_id=org_id,
        records=records,
        record_sums=of_records,
        total_sums=of_totals,
        files=tuple(files),
        differing_accounts=len(differing),
        differences=tuple(
            Difference(
                account.scope_key,
                account.label,
                sums.get(account, NOTHING),
                totals.get(account, NOTHING),
            )
            for account in differing[:DIFFERENCES_MAX]
        ),
    )


def make_manifest(
    day: str, file_format: FileFormat, entries: Iterable[OrgEntry], *, is_final: bool
) -> Manifest:
    """The export of the day."""
    organisations = tuple(sorted(entries, key=lambda entry: entry.org_id))
    return Manifest(
        version=VERSION,
        day=day,
        format=file_format.value,
        is_final=is_final,
        records=sum(entry.records for entry in organisations),
        record_sums=_sum(entry.record_sums for entry in organisations),
        total_sums=_sum(entry.total_sums for entry in organisations),
        totals_equal_records=not any(entry.differing_accounts for entry in organisations),
        organisations=organisations,
    )


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest, indented for people."""
    return msgspec.json.format(line_of(manifest), indent=1) + b"\n"


def note_bytes(entry: OrgEntry) -> bytes:
    """The note of a finished organisation."""
    return line_of(DoneNote(VERSION, entry)) + b"\n"


def entry_from_note(content: bytes | None) -> OrgEntry | None:
    """``None`` if the note is absent or unusable."""
    if content is None:
        return None
    try:
        note = msgspec.json.decode(content, type=DoneNote)
    except msgspec.MsgspecError:
        return None
    return note.entry if note.version == VERSION else None


def day_path(day: str) -> str:
    """The folder of a day."""
    return f"day={day}"


def org_path(day: str, org_id: str) -> str:
    """Quoting keeps every id inside the folder."""
    return f"{day_path(day)}/org={quote(org_id, safe='')}"


def manifest_path(day: str, org_id: str | None = None) -> str:
    """Of a day, or of one organisation alone."""
    return f"{day_path(day) if org_id is None else org_path(day, org_id)}/manifest.json"


def note_path(day: str, org_id: str, file_format: FileFormat) -> str:
    """It exists until the manifest is written."""
    return f"{org_path(day, org_id)}/.{file_format.value}.part"


def _sum(counters: Iterable[Counters]) -> Counters:
    return sum(counters, NOTHING)


def day_after(day: str) -> str:
    """The next day."""
    return day_of(date_of(day) + timedelta(days=1))


def final_at_ms(day: str) -> int:
    """From then on no record of that day is accepted."""
    return day_start_ms("UTC", day) + _FINAL_AFTER_DAYS * MS_PER_DAY


def last_final_day(now_ms: int) -> str:
    """The last day that can no longer change."""
    return org_day("UTC", now_ms - _FINAL_AFTER_DAYS * MS_PER_DAY)


def days_between(first: str, last: str) -> Iterator[str]:
    """From the first to the last, both included."""
    day = first
    while day <= last:
        yield day
        day = day_after(day)
