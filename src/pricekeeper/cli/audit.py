"""``audit list``, ``verify`` and ``export``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, backend_command, store_command
from pricekeeper.cli.drawing import Section, done, moment, more_after, plain
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.opening import open_local_store, store_name
from pricekeeper.cli.options import OptionalOrg, option
from pricekeeper.cli.tables import Column, listing, number
from pricekeeper.clock import SystemClock
from pricekeeper.settings import Settings
from pricekeeper.values import parse_org_id

if TYPE_CHECKING:  # they bring a store with them
    from pricekeeper.audit.verification import ChainReport, TrailFinding

audit = typer.Typer(no_args_is_help=True, help="Who changed what, when, from where and why.")

ENTRIES_DEFAULT: Final = 50
ENTRIES_MAX: Final = 10_000
NAMED_MAX: Final = 5
"""Organisations without entries on the screen; the JSON has all."""
PAGES_MAX: Final = 1_000


@backend_command(audit, "list")
async def list_audit(
    backend: Backend,
    org: OptionalOrg = None,
    *,
    actor: Annotated[
        str | None, option("--actor WHO", "By this actor; 'cli' matches all who use commands.")
    ] = None,
    action: Annotated[
        str | None, option("--action WHAT", "Of this kind: freeze, credentials ...")
    ] = None,
    first: Annotated[
        str | None, option("--from DATE", "From this day or moment on, in UTC.")
    ] = None,
    last: Annotated[
        str | None, option("--to DATE", "To the end of this day, or before this moment.")
    ] = None,
    limit: Annotated[
        int, option("--limit", "At most so many entries.", min=1, max=ENTRIES_MAX)
    ] = ENTRIES_DEFAULT,
    after: Annotated[str | None, option("--after NEXT", "The page after this one.")] = None,
) -> Output:
    """List changes by people and keys, newest first.

    [dim]pricekeeper audit list $ORG[/dim]

    [dim]pricekeeper audit list --action credentials --from 2026-01-01[/dim]
    """
    asked = {"org_id": org, "actor": actor, "action": action, "from": first, "to": last}
    query = {name: value for name, value in asked.items() if value is not None}
    entries = list[dict[str, Any]]()
    for _ in range(PAGES_MAX):
        some = str(min(100, limit - len(entries)))
        found = plain(
            await backend.admin.audit(
                {**query, "limit": some, **({} if after is None else {"after": after})}
            )
        )
        entries += found["entries"]
        after = found.get("next")
        if after is None or len(entries) == limit:
            break
    answer = {"entries": entries, **({} if after is None else {"next": after})}
    return Output(answer, _entries(answer))


@store_command(audit, "verify", must_name_store=True)
async def verify_audit(
    settings: Settings,
    org: OptionalOrg = None,
    *,
    against: Annotated[
        Path | None,
        option(
            "--against FILE", "Also compare with an earlier export.", exists=True, dir_okay=False
        ),
    ] = None,
) -> Output:
    """Find entries that were changed, removed or moved. Exit 1 if there are any.

    If an entry was rewritten with all that follow it, only --against finds it.
    Organisations without entries are listed in a note.

    [dim]pricekeeper audit verify[/dim]

    [dim]pricekeeper audit verify --against audit-2026-01.jsonl[/dim]
    """
    from pricekeeper.audit.entry import chain_of  # noqa: PLC0415
    from pricekeeper.audit.verification import TrailVerifier  # noqa: PLC0415
    from pricekeeper.tenants import list_org_ids  # noqa: PLC0415

    only, compared = None if org is None else parse_org_id(org), None
    chain = None if only is None else chain_of(only)
    async with open_local_store(settings) as store:
        verifier = TrailVerifier(store, SystemClock())
        org_ids = await list_org_ids(store, None if only is None else [only])
        reports = await verifier.verify(chain)
        if against is not None:
            with against.open("rb") as lines:
                compared = await verifier.compare_lines(lines)
    found = [finding for report in reports for finding in report.findings]
    found += [] if compared is None else compared.findings
    known = {report.chain for report in reports if report.is_known}
    unknown = [org_id for org_id in org_ids if chain_of(org_id) not in known]
    answer: dict[str, Any] = {
        "store": store_name(settings),
        "chains": [_chain(report) for report in reports],
        "findings": [{"chain": one.chain, "seq": one.seq, "problem": one.problem} for one in found],
        **({"orgs_without_entries": unknown} if unknown else {}),
    }
    if compared is not None:
        answer["against"] = {"file": str(against), "lines": compared.lines}
    return Output(answer, _verified(answer, found), exits.FAILED if found else exits.OK)


@store_command(audit, "export", must_name_store=True)
async def export_audit(
    settings: Settings,
    org: OptionalOrg = None,
    *,
    to: Annotated[Path, option("--to FILE", "The file to write.")],
) -> Output:
    """Write every entry to a file, as JSON lines. Each line has the SHA-256 of the one before.

    Keep the file where writers of the store can't change it. Then 'audit verify --against FILE'
    finds rewritten entries.

    [dim]pricekeeper audit export --to audit.jsonl[/dim]
    """
    from pricekeeper.audit.entry import chain_of  # noqa: PLC0415
    from pricekeeper.audit.verification import TrailVerifier  # noqa: PLC0415

    chain = None if org is None else chain_of(parse_org_id(org))
    async with open_local_store(settings) as store:
        count = await _write_lines(to, TrailVerifier(store, SystemClock()).export(chain))
    answer = {"file": str(to), "entries": count}
    return Output(answer, done(f"{count:,} entries are in {to}"))


async def _write_lines(path: Path, lines: AsyncIterator[bytes]) -> int:
    """Replace the file atomically, for its owner only; returns the number of lines."""
    fresh, count = path.with_name(f"{path.name}.new"), 0
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 - a descriptor of ours
            async for line in lines:
                file.write(line + b"\n")
                count += 1
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
    except OSError as error:
        text = f"{path} can't be written: {error.strerror}; name another file with --to"
        raise MisusedError(text) from error
    return count


def _entries(answer: Mapping[str, Any]) -> RenderableType:
    if not answer["entries"]:
        return Text("no entries match; leave filters out to see more")
    shown = len(answer["entries"])
    heading = Text.assemble((f"{shown:,}", "bold"), " changes, the newest first")
    rows = listing(
        answer["entries"],
        Column("at", lambda entry: moment(entry["at"])),
        Column("actor", "actor", wraps=True),
        Column("action", "action"),
        Column("target", "target", wraps=True),
        Column("what", _what, wraps=True),
    )
    return Section(heading, rows, *more_after(answer))


def _what(entry: Mapping[str, Any]) -> str:
    before, after = _flat(entry.get("before", {})), _flat(entry.get("after", {}))
    parts = []
    for name in dict.fromkeys([*before, *after]):
        if name not in before:
            parts.append(f"{name}: {after[name]}")
        elif name not in after:
            parts.append(f"{name}: {before[name]}" if not after else f"{name}: {before[name]} -> -")
        else:
            parts.append(f"{name}: {before[name]} -> {after[name]}")
    if "reason" in entry:
        parts.append(f"because: {entry['reason']}")
    return ", ".join(parts)


def _flat(side: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found = dict[str, Any]()
    for name, value in side.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _chain(report: ChainReport) -> dict[str, Any]:
    return {
        "chain": report.chain,
        "entries": report.entries,
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "last_hash": report.last_hash,
        "findings": len(report.findings) + report.findings_more,
    }


def _verified(answer: Mapping[str, Any], found: Sequence[TrailFinding]) -> RenderableType:
    entries = sum(chain["entries"] for chain in answer["chains"])
    store, against = Text(f"the store is {answer['store']}", "dim"), answer.get("against")
    if not found:
        text = f"{entries:,} entries in {len(answer['chains']):,} chains are unchanged"
        if against is not None:
            text += f", and equal to the {against['lines']:,} lines of {against['file']}"
        return Section(done(text), *_note(answer), store)
    rows = listing(
        found,
        Column("chain", lambda one: one.chain, wraps=True),
        number("entry", lambda one: str(one.seq)),
        Column("finding", lambda one: one.problem, wraps=True),
    )
    heading = Text(f"{len(found):,} findings in {entries:,} entries", "bold red")
    if against is not None:
        heading.append(f", compared with {against['lines']:,} lines of {against['file']}")
    return Section(heading, rows, *_note(answer), store)


def _note(answer: Mapping[str, Any]) -> list[Text]:
    org_ids = answer.get("orgs_without_entries", [])
    if not org_ids:
        return []
    named = ", ".join(org_ids[:NAMED_MAX]) + (", ..." if len(org_ids) > NAMED_MAX else "")
    text = f"{len(org_ids):,} organisations have no entry, so nothing is known of them: {named}"
    return [Text(text, "yellow")]
