"""``ledger rebuild``: totals made anew from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.command import Outcome, store_command
from pricekeeper.cli.drawing import page, usd
from pricekeeper.cli.listing import table
from pricekeeper.settings import Settings
from pricekeeper.values import parse_org_id

if TYPE_CHECKING:  # it brings every feature with it
    from pricekeeper.metering.aggregation_report import Change, RebuildReport

ledger = typer.Typer(no_args_is_help=True, help="The journal that totals are made from.")


@store_command(ledger, "rebuild")
async def rebuild(
    settings: Settings,
    *,
    day: Annotated[
        datetime,
        typer.Option(
            "--day",
            formats=["%Y%m%d", "%Y-%m-%d"],
            metavar="YYYYMMDD",
            help="The day, in the calendar of whoever it is about.",
        ),
    ],
    org: Annotated[
        str | None, typer.Option("--org", metavar="ORG", help="This organisation; else everybody.")
    ] = None,
) -> Outcome:
    """Make the totals of a day anew from the journal, and show what has changed; none goes back.

    [dim]pricekeeper ledger rebuild --day 20260123[/dim]

    [dim]pricekeeper ledger rebuild --day 20260123 --org $ORG --json[/dim]
    """
    from pricekeeper.cli.local import open_local_store  # noqa: PLC0415
    from pricekeeper.clock import SystemClock  # noqa: PLC0415
    from pricekeeper.metering import Aggregator  # noqa: PLC0415

    org_id = "" if org is None else parse_org_id(org)
    async with open_local_store(settings) as store:
        aggregator = Aggregator(store, SystemClock())
        report = await aggregator.rebuild_day(day.strftime("%Y%m%d"), org_id)
    code = exits.FAILED if report.failed or report.unreadable else exits.OK
    return Outcome(_answer(report), _picture(report), code)


def _answer(report: RebuildReport) -> dict[str, Any]:
    return {
        "day": report.day,
        "organisations": report.orgs,
        "changes": [
            {
                "org_id": change.org_id,
                "partition": change.partition,
                "total": change.sort_key,
                "cost_usd_micros_before": change.before.cost_usd_micros,
                "cost_usd_micros": change.after.cost_usd_micros,
                "requests_before": change.before.requests,
                "requests": change.after.requests,
            }
            for change in report.changes
        ],
        "failed": report.failed,
        "unreadable": report.unreadable,
        "errors": list(report.errors),
    }


def _picture(report: RebuildReport) -> RenderableType:
    heading = Text("nothing has changed", "bold green")
    if report.changes:
        heading = Text(f"{len(report.changes)} totals have changed", "bold yellow")
    if report.failed or report.unreadable:
        heading = Text("not every total could be made anew", "bold red")
    told = f"{report.day}, {report.orgs} organisations have posted"
    parts: list[RenderableType] = [Text(told), *_changes(report.changes)]
    parts += [Text(text, "red") for text in report.errors]
    return page(heading, *parts)


def _changes(changes: Sequence[Change]) -> list[RenderableType]:
    """A line for each account; its hours and tags follow from it."""
    rows = table(
        "account", "calls", "were", "spent", "was", numbers=["calls", "were", "spent", "was"]
    )
    accounts = [change for change in changes if change.sort_key.startswith("DAY#")]
    for change in accounts:
        rows.add_row(
            change.partition,
            f"{change.after.requests:,}",
            f"{change.before.requests:,}",
            usd(change.after.cost_usd_micros),
            usd(change.before.cost_usd_micros),
        )
    parts: list[RenderableType] = [rows] if accounts else []
    others = len(changes) - len(accounts)
    if others:
        parts.append(Text(f"and {others} totals of hours and tags", "dim"))
    return parts
