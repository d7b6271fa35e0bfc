"""``usage show`` and ``limits show``: how much was spent, and how fast a client may go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import AppArgument, OptionalApp, OptionalOrg, OrgArgument, client_of
from pricekeeper.cli.command import Output, either_command
from pricekeeper.cli.drawing import FULL_PCT, STATUS_STYLES, Section, minute, moment, pct_bar, usd
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.listing import table
from pricekeeper.cli.options import option
from pricekeeper.cli.overview import ORGS_DEFAULT, ORGS_MAX, draw_overview, read_overview

usage = typer.Typer(no_args_is_help=True, help="What was spent.")
limits = typer.Typer(no_args_is_help=True, help="Token buckets of an app.")

_DAY = ["%Y-%m-%d"]


@either_command(usage, "show")
async def show_usage(
    backend: Backend,
    org: OptionalOrg = None,
    app: OptionalApp = None,
    *,
    everybody: Annotated[bool, option("--all", "Today, of every organisation and app.")] = False,
    limit: Annotated[
        int, option("--limit", "With --all: so many organisations.", min=1, max=ORGS_MAX)
    ] = ORGS_DEFAULT,
    after: Annotated[
        str | None, option("--after ORG", "With --all: those behind this one.")
    ] = None,
    first: Annotated[
        datetime | None, option("--from", "The first day; else today.", formats=_DAY)
    ] = None,
    last: Annotated[
        datetime | None, option("--to", "The last day; else the first.", formats=_DAY)
    ] = None,
) -> Output:
    """Show what an organisation or app spent: today, a day, or each day of a range.

    [dim]pricekeeper usage show $ORG[/dim]

    [dim]pricekeeper usage show $ORG chat --from 2026-01-01 --to 2026-01-31[/dim]

    [dim]pricekeeper usage show --all[/dim]
    """
    if everybody:
        if org is not None or first is not None or last is not None:
            raise MisusedError("--all is of everybody, today; say no organisation and no days")
        overview = await read_overview(backend, limit, after)
        return Output(overview, draw_overview(overview))
    if org is None:
        raise MisusedError("say which organisation, or --all")
    keeper = backend.reader(client_of(org, app))
    if first is None:
        if last is not None:
            raise MisusedError("--to needs --from")
        answer = await keeper.usage()
        return Output(answer, _day(answer))
    if last is None or last == first:
        answer = await keeper.usage(first.date())
        return Output(answer, _day(answer))
    answer = await keeper.usage_between(first.date(), last.date())
    return Output(answer, _days(answer, first.date(), last.date()))


@either_command(limits, "show")
async def show_limits(backend: Backend, org: OrgArgument, app: AppArgument) -> Output:
    """Show how full the token buckets of an app are; nothing is taken.

    [dim]pricekeeper limits show $ORG chat[/dim]
    """
    answer = await backend.reader(client_of(org, app)).limits()
    rows = table(
        "model", "limit", "of whom", "left", "of", "", "full again (UTC)", numbers=["left", "of"]
    )
    for whose, field in (("app", "resources"), ("organisation", "org_resources")):
        for label, named in answer[field].items():
            for name, limit in named.items():
                left_pct = FULL_PCT * limit["remaining"] / limit["capacity"]
                rows.add_row(
                    label,
                    name,
                    whose,
                    f"{limit['remaining']:,}",
                    f"{limit['capacity']:,}",
                    pct_bar(left_pct, "green" if left_pct > FULL_PCT // 10 else "yellow"),
                    "is full" if left_pct == FULL_PCT else minute(limit["resets_at"]),
                )
    empty = Text(f"{app} has no rate limits; see 'pricekeeper app put --help'")
    return Output(answer, rows if any(answer.values()) else empty)


def _day(answer: Mapping[str, Any]) -> RenderableType:
    rows = table(
        "model", "spent", "quota", "", "", "calls", "tokens in", "out",
        numbers=["spent", "quota", "calls", "tokens in", "out"],
    )  # fmt: skip
    active = answer["current_active_model"]
    for label, model in answer["models"].items():
        style = STATUS_STYLES[model["quota_status"]]
        rows.add_row(
            Text.assemble(label, (" ◂", "bold") if label == active else ""),
            usd(model["cost_usd_micros"]),
            usd(model["quota_usd_micros"]),
            pct_bar(model["quota_pct"], style),
            Text(f"{model['quota_pct']:.1f} %", style, justify="right"),
            f"{model['requests']:,}",
            f"{model['input_tokens']:,}",
            f"{model['output_tokens']:,}",
        )
    heading = Text.assemble(
        (answer.get("app_id") or answer["org_id"], "bold"),
        f"  {answer['date']}  {answer['timezone']}  ",
        (usd(answer["total_cost_usd_micros"]), "bold"),
        f" of {usd(answer['total_quota_usd_micros'])}",
    )
    return Section(heading, rows, *_apps(answer), _footer(answer))


def _apps(answer: Mapping[str, Any]) -> list[RenderableType]:
    """How an organisation's spend divides among its apps, where each has its own quotas."""
    if not answer.get("apps"):
        return []
    rows = table("app", "spent", "", numbers=["spent"])
    whole = max(1, answer["total_cost_usd_micros"])
    for app, micros in sorted(answer["apps"].items(), key=lambda pair: -pair[1]):
        rows.add_row(app, usd(micros), pct_bar(FULL_PCT * micros / whole, "cyan"))
    return [rows]


def _footer(answer: Mapping[str, Any]) -> Text:
    """What is in force, and how old the numbers are."""
    line = Text(style="dim")
    if answer["current_active_model"] is not None:
        line.append(f"now in use: {answer['current_active_model']}")
        line.append(" (fallback until midnight)  " if answer["sticky_fallback_active"] else "  ")
    updated = answer["updated_at"]
    line.append(f"as of {moment(updated)}" if updated else "nothing was aggregated yet")
    return line


def _days(answer: Mapping[str, Any], first: date, last: date) -> RenderableType:
    labels = list(dict.fromkeys(label for day in answer["days"] for label in day["models"]))
    rows = table("day", *labels, "spent", "", "calls", numbers=[*labels, "spent", "calls"])
    most = max(1, *(day["total_cost_usd_micros"] for day in answer["days"]))
    sums: dict[str, int] = dict.fromkeys(labels, 0)
    calls = 0
    for day in answer["days"]:
        models, cost = day["models"], day["total_cost_usd_micros"]
        spent = {label: models.get(label, {}).get("cost_usd_micros", 0) for label in labels}
        for label in labels:
            sums[label] += spent[label]
        requests = sum(model["requests"] for model in models.values())
        calls += requests
        rows.add_row(
            day["date"],
            *(usd(spent[label]) for label in labels),
            usd(cost),
            pct_bar(FULL_PCT * cost / most, "cyan"),
            f"{requests:,}",
        )
    rows.add_section()
    total = sum(sums.values())
    rows.add_row("in all", *(usd(sums[label]) for label in labels), usd(total), "", f"{calls:,}")
    who = answer.get("app_id") or answer["org_id"]
    return Section(Text.assemble((who, "bold"), f"  {first} to {last}"), rows)
