"""``ledger rebuild`` and ``ledger check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import Section, usd
from pricekeeper.cli.opening import open_local_store
from pricekeeper.cli.options import option
from pricekeeper.cli.tables import Column, listing, number
from pricekeeper.client_ids import Client
from pricekeeper.clock import SystemClock
from pricekeeper.errors import UnreadableItemError
from pricekeeper.settings import Settings
from pricekeeper.values import parse_org_id

if TYPE_CHECKING:  # it brings every feature with it
    from pricekeeper.authorizations import AccountFinding
    from pricekeeper.budgets import Balance, BudgetAccount
    from pricekeeper.metering.aggregation_report import RebuildReport, TotalChange

ledger = typer.Typer(no_args_is_help=True, help="The journal that totals are made from.")


@store_command(ledger, "rebuild")
async def rebuild(
    settings: Settings,
    *,
    day: Annotated[
        datetime,
        option(
            "--day YYYYMMDD",
            "The day, in each organisation's own calendar.",
            formats=["%Y%m%d", "%Y-%m-%d"],
        ),
    ],
    org: Annotated[str | None, option("--org ORG", "Only this organisation.")] = None,
) -> Output:
    """Recompute the totals of a day from the journal, and show the changes. No total decreases.

    [dim]pricekeeper ledger rebuild --day 20260123[/dim]

    [dim]pricekeeper ledger rebuild --day 20260123 --org $ORG --json[/dim]
    """
    from pricekeeper.metering import Aggregator  # noqa: PLC0415

    org_id = "" if org is None else parse_org_id(org)
    async with open_local_store(settings) as store:
        aggregator = Aggregator(store, SystemClock())
        report = await aggregator.rebuild_day(day.strftime("%Y%m%d"), org_id)
    code = exits.FAILED if report.failed or report.unreadable else exits.OK
    return Output(_answer(report), _picture(report), code)


@store_command(ledger, "check")
async def check(
    settings: Settings,
    *,
    org: Annotated[str | None, option("--org ORG", "Only this organisation.")] = None,
    mend: Annotated[bool, option("--mend", "Correct budgets that differ.")] = False,
) -> Output:
    """Compare every budget with its records, holds and unsettled calls, to the pico-dollar.

    [dim]pricekeeper ledger check[/dim]

    [dim]pricekeeper ledger check --org $ORG --mend --json[/dim]
    """
    from pricekeeper.authorizations import LedgerCheck  # noqa: PLC0415
    from pricekeeper.pricing import load_catalogue  # noqa: PLC0415
    from pricekeeper.tenants import Tenants, read_pages  # noqa: PLC0415

    labels = load_catalogue(settings.config_path).labels
    findings: list[AccountFinding] = []
    unreadable: dict[str, str] = {}
    async with open_local_store(settings) as store:
        tenants = Tenants(store, SystemClock(), labels)
        wanted = await tenants.list_org_ids() if org is None else [parse_org_id(org)]
        checking = LedgerCheck(store, SystemClock())
        for org_id in wanted:
            try:
                policies = [await tenants.read_policy(Client(org_id))]
                async for page_of_apps in read_pages(partial(tenants.list_apps, org_id)):
                    policies += page_of_apps.policies
                findings += await checking.check(policies, mend=mend)
            except UnreadableItemError as damage:  # the others are still checked
                unreadable[org_id] = str(damage)
    differing = [one for one in findings if not one.agrees and not one.moving and not one.mended]
    code = exits.FAILED if differing or unreadable else exits.OK
    picture = _check_picture(findings, unreadable)
    return Output(_check_answer(findings, unreadable), picture, code)


def _check_answer(
    findings: Sequence[AccountFinding], unreadable: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "unreadable": [{"org_id": one, "detail": detail} for one, detail in unreadable.items()],
        "accounts": [
            {
                "org_id": one.account.org_id,
                "app_id": one.account.app_id,
                "name": one.account.name,
                "window": one.account.window.value,
                "tag": None if one.account.tag is None else dict([one.account.tag]),
                "agrees": one.agrees,
                "moving": one.moving,
                "mended": one.mended,
                "enforced_usd_picos": _balance(one.enforced),
                "right_usd_picos": _balance(one.right),
            }
            for one in findings
        ],
    }


def _balance(balance: Balance) -> dict[str, int]:
    return {"used": balance.used, "held": balance.held, "unsettled": balance.unsettled}


def _check_picture(
    findings: Sequence[AccountFinding], unreadable: Mapping[str, str]
) -> RenderableType:
    damages = [
        Text(f"{org_id} can't be checked: {detail}", "bold red")
        for org_id, detail in unreadable.items()
    ]
    agreeing = sum(one.agrees for one in findings)
    style = "bold" if unreadable else "bold green"
    heading = Text(f"{agreeing} of {len(findings)} accounts agree to the pico-dollar", style)
    others = [one for one in findings if not one.agrees]
    if not others:
        return Section(heading, *damages)
    left = [one for one in others if not one.mended and not one.moving]
    if left:
        heading = Text(f"{len(left)} accounts differ; --mend corrects them", "bold red")
    rows = listing(
        others,
        Column("account", lambda one: _account(one.account)),
        Column("window", lambda one: one.account.window.value),
        number("used", lambda one: f"{one.enforced.used:,}"),
        number("should be", lambda one: f"{one.right.used:,}"),
        Column("", _state),
    )
    return Section(heading, Text("in pico-dollars", "dim"), rows, *damages)


def _account(account: BudgetAccount) -> str:
    return f"{account.scope} {account.app_id or account.org_id} {account.name}"


def _state(finding: AccountFinding) -> str:
    return "mended" if finding.mended else "still changing" if finding.moving else "differs"


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
    heading = Text("all totals are right; nothing changed", "bold green")
    if report.changes:
        heading = Text(f"{len(report.changes)} totals were corrected", "bold yellow")
    if report.failed or report.unreadable:
        heading = Text("not every total could be recomputed; run it again", "bold red")
    about = f"{report.day}, {report.orgs} organisations have records"
    parts: list[RenderableType] = [Text(about), *_changes(report.changes)]
    parts += [Text(text, "red") for text in report.errors]
    return Section(heading, *parts)


def _changes(changes: Sequence[TotalChange]) -> list[RenderableType]:
    """One line for each account, and the number of other totals."""
    accounts = [change for change in changes if change.sort_key.startswith("DAY#")]
    rows = listing(
        accounts,
        Column("account", lambda change: change.partition),
        number("calls", lambda change: f"{change.after.requests:,}"),
        number("were", lambda change: f"{change.before.requests:,}"),
        number("spent", lambda change: usd(change.after.cost_usd_micros)),
        number("was", lambda change: usd(change.before.cost_usd_micros)),
    )
    parts: list[RenderableType] = [rows] if accounts else []
    others = len(changes) - len(accounts)
    if others:
        parts.append(Text(f"and {others} totals of hours and tags", "dim"))
    return parts
