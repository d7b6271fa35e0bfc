"""``export``: usage as files."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import usd
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.opening import open_local_store
from pricekeeper.cli.options import option
from pricekeeper.cli.terminal import make_console
from pricekeeper.clock import SystemClock
from pricekeeper.days import dashed
from pricekeeper.errors import SettingsError
from pricekeeper.settings import (
    EXPORT_TO,
    ExportLocation,
    FolderLocation,
    Settings,
    parse_export_location,
)
from pricekeeper.values import parse_org_id

if TYPE_CHECKING:  # they bring a store with them
    from pricekeeper.export import Manifest, Progress

    Observe = Callable[[Progress], Awaitable[None]]

top = typer.Typer()

DAYS_MAX: Final = 3_650
_DAY: Final = ["%Y-%m-%d"]


@store_command(top, "export")
async def export(
    settings: Settings,
    *,
    day: Annotated[datetime | None, option("--day", "A single day.", formats=_DAY)] = None,
    first: Annotated[datetime | None, option("--from", "The first day.", formats=_DAY)] = None,
    last: Annotated[datetime | None, option("--to", "The last day.", formats=_DAY)] = None,
    org_id: Annotated[str | None, option("--org ID", "Only this organisation.")] = None,
    into: Annotated[
        str | None, option("--into FOLDER|s3://BUCKET/PREFIX", f"Target; else ${EXPORT_TO}.")
    ] = None,
    file_format: Annotated[
        Literal["jsonl", "parquet"],
        option("--format", "Gzipped JSON lines, or Parquet (needs pyarrow)."),
    ] = "jsonl",
) -> Output:
    """Write records and totals to files by day and organisation. Exit 1 if they differ.

    Repeating an export gives the same bytes, and continues one that was interrupted. The manifest
    of a day is written last.

    [dim]pricekeeper export --day 2026-01-31 --into exports[/dim]

    [dim]pricekeeper export --from 2026-01-01 --to 2026-01-31 --into s3://bucket/usage[/dim]
    """
    from pricekeeper.export import (  # noqa: PLC0415
        DailyExports,
        Exporter,
        ExportState,
        FileFormat,
        open_destination,
    )

    days = _days(day, first, last)
    location = _location(settings, into)
    org = None if org_id is None else str(parse_org_id(org_id))
    clock, manifests = SystemClock(), list["Manifest"]()
    async with open_local_store(settings) as store:
        destination = open_destination(location, clock, s3_endpoint=settings.s3_endpoint)
        try:
            with _shown_progress() as observe:
                kind, daily = FileFormat(file_format), DailyExports(store, clock, settings)
                exporter = Exporter(store, clock, destination, file_format=kind, observe=observe)
                for one in days:
                    manifest = await exporter.export_day(one, org)
                    manifests.append(manifest)
                    counts = org is None and manifest.is_final and location == settings.export_to
                    if counts and await daily.find_next_day(exporter) == one:
                        await ExportState(store).advance(one)
        finally:
            await destination.close()
    answer = {"into": into or _name(location), "days": [_answer(one) for one in manifests]}
    lines = Text("\n").join(map(_line, manifests)).append(f"\n  in {answer['into']}", "dim")
    equal = all(one.totals_equal_records for one in manifests)
    return Output(answer, lines, exits.OK if equal else exits.FAILED)


def _days(day: datetime | None, first: datetime | None, last: datetime | None) -> list[str]:
    if (day is None) is (first is None or last is None) or (day is not None and (first or last)):
        raise MisusedError("give --day, or --from and --to")
    begin, end = (day, day) if day is not None else (first, last)
    if begin is None or end is None or begin > end:
        raise MisusedError("--from is after --to; give the earlier day first")
    if (end - begin).days >= DAYS_MAX:
        raise MisusedError(f"--from and --to: choose at most {DAYS_MAX} days")
    from pricekeeper.export.manifest import days_between  # noqa: PLC0415

    return list(days_between(begin.strftime("%Y%m%d"), end.strftime("%Y%m%d")))


def _location(settings: Settings, into: str | None) -> ExportLocation:
    if into is not None:
        try:
            return parse_export_location(into, "--into")
        except SettingsError as error:
            raise MisusedError(str(error)) from error
    if settings.export_to is None:
        raise MisusedError(f"give the target with --into, or set ${EXPORT_TO}")
    return settings.export_to


def _name(location: ExportLocation) -> str:
    if isinstance(location, FolderLocation):
        return location.path
    return f"s3://{location.bucket}/{location.prefix}"


@contextmanager
def _shown_progress() -> Iterator[Observe]:
    """Show progress on one line of a terminal, not in a pipe."""
    if not sys.stderr.isatty():

        async def ignore(_: Progress) -> None:
            return

        yield ignore
        return
    with make_console(stderr=True).status("listing organisations") as status:

        async def show(progress: Progress) -> None:
            status.update(
                f"{dashed(progress.day)}: organisation {progress.org_number} of "
                f"{progress.org_count}, {_counted(progress.records, 'record')}"
            )

        yield show


def _answer(manifest: Manifest) -> dict[str, Any]:
    files = [file for entry in manifest.organisations for file in entry.files]
    return {
        "day": dashed(manifest.day),
        "is_final": manifest.is_final,
        "organisations": len(manifest.organisations),
        "records": manifest.records,
        "cost_usd_picos": manifest.record_sums.cost_usd_picos,
        "totals_equal_records": manifest.totals_equal_records,
        "differing_accounts": _differing(manifest),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
    }


def _line(manifest: Manifest) -> Text:
    sums = manifest.record_sums
    line = Text.assemble(
        ("✓ ", "green") if manifest.totals_equal_records else ("✗ ", "red"),
        f"{dashed(manifest.day)}  {_counted(manifest.records, 'record')} of "
        f"{_counted(len(manifest.organisations), 'organisation')}, {usd(sums.cost_usd_micros)}",
    )
    if not manifest.totals_equal_records:
        accounts = _counted(_differing(manifest), "account")
        text = f"; totals of {accounts} differ from their records: pricekeeper ledger rebuild"
        line.append(text, "red")
    if not manifest.is_final:
        line.append("; the day may still change", "yellow")
    return line


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _differing(manifest: Manifest) -> int:
    return sum(entry.differing_accounts for entry in manifest.organisations)
