"""``usage show``, ``limits show`` and ``limits reset``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend, client_of
from pricekeeper.cli.command import Output, either_command
from pricekeeper.cli.drawing import (
    FULL_PCT,
    STATUS_STYLES,
    Section,
    as_of,
    done,
    minute,
    pct_bar,
    percent,
    plain,
    usd,
    used_pct,
)
from pricekeeper.cli.exits import MisusedError, unless_missing
from pricekeeper.cli.operation_command import Reply, operation_command
from pricekeeper.cli.options import OptionalApp, OptionalOrg, option
from pricekeeper.cli.tables import Column, Listing, dollars, listing, number, table
from pricekeeper.wire import operations as ops

if TYPE_CHECKING:
    from pricekeeper.client import Admin


usage = typer.Typer(no_args_is_help=True, help="Spend and usage records.")
limits = typer.Typer(no_args_is_help=True, help="Token buckets of an app.")

ORGS_MAX: Final = 1_000
ORGS_DEFAULT: Final = 100
_PAGE_MAX: Final = 100
_EMPTY_PAGES_MAX: Final = 1_000
"""Deleted organisations leave empty pages."""
LOW_PCT: Final = 10
_DAY = ["%Y-%m-%d"]


@either_command(usage, "show")
async def show_usage(
    backend: Backend,
    org: OptionalOrg = None,
    app: OptionalApp = None,
    *,
    everybody: Annotated[bool, option("--all", "All organisations and apps, today.")] = False,
    limit: Annotated[
        int, option("--limit", "With --all: at most so many organisations.", min=1, max=ORGS_MAX)
    ] = ORGS_DEFAULT,
    after: Annotated[
        str | None, option("--after ORG", "With --all: organisations after this one.")
    ] = None,
    first: Annotated[
        datetime | None, option("--from", "The first day. Default: today.", formats=_DAY)
    ] = None,
    last: Annotated[
        datetime | None, option("--to", "The last day. Default: the first.", formats=_DAY)
    ] = None,
) -> Output:
    """Show what an organisation or app spent today, on a day, or on each day of a range.

    Spend is that of counted calls. Percentages of strict quotas include calls in flight.

    [dim]pricekeeper usage show $ORG[/dim]

    [dim]pricekeeper usage show $ORG chat --from 2026-01-01 --to 2026-01-31[/dim]

    [dim]pricekeeper usage show --all[/dim]
    """
    if everybody:
        if org is not None or first is not None or last is not None:
            raise MisusedError("--all shows all organisations today; omit ORG, --from and --to")
        overview = await read_overview(backend, limit, after)
        return Output(overview, draw_overview(overview))
    if org is None:
        raise MisusedError("give an organisation, or --all")
    keeper = backend.reader(client_of(org, app))
    if first is None:
        if last is not None:
            raise MisusedError("--to needs --from; add it")
        answer = plain(await keeper.usage())
        listed = plain(await keeper.budgets())["budgets"]
        used = {one["label"]: used_pct(one) for one in listed if one["kind"] == "QUOTA"}
        return Output(answer, _day(answer, used))
    if last is None or last == first:
        answer = plain(await keeper.usage(first.date()))
        return Output(answer, _day(answer, {}))
    answer = plain(await keeper.usage_between(first.date(), last.date()))
    return Output(answer, _days(answer, first.date(), last.date()))


@operation_command(limits, "show", ops.LIST_LIMITS)
def show_limits(reply: Reply) -> RenderableType:
    """Show how full the token buckets of an app are. Nothing is taken.

    [dim]pricekeeper limits show $ORG chat[/dim]
    """
    buckets = [
        {**limit, "label": label, "name": name, "whose": whose, "pct": _left_pct(limit)}
        for whose, field in (("app", "resources"), ("organisation", "org_resources"))
        for label, named in reply[field].items()
        for name, limit in named.items()
    ]
    if not buckets:
        hint = "'pricekeeper app set --rate-limit' adds one"
        return Text(f"{reply.name} has no rate limits; {hint}")
    return listing(
        buckets,
        *(Column("model", "label"), Column("limit", "name"), Column("shared by", "whose")),
        *(number("left", "remaining"), number("of", "capacity")),
        Column("", lambda one: pct_bar(one["pct"], "green" if one["pct"] > LOW_PCT else "yellow")),
        Column(
            "full at (UTC)",
            lambda one: "is full" if one["pct"] == FULL_PCT else minute(one["resets_at"]),
        ),
    )


def _left_pct(limit: Mapping[str, Any]) -> float:
    return FULL_PCT * float(limit["remaining"] / limit["capacity"])


@operation_command(limits, "reset", ops.RESET_LIMITS)
def reset_limits(reply: Reply) -> RenderableType:
    """Fill the token buckets of an app, or an organisation's own.

    [dim]pricekeeper limits reset $ORG chat --reason "in debt after a wrong adjustment"[/dim]
    """
    if not reply["labels"]:
        return Text(f"{reply['client_id']}: every bucket was full")
    return done(f"{reply['client_id']}: full again for {', '.join(reply['labels'])}")


def _day(answer: Mapping[str, Any], used: Mapping[str, float]) -> RenderableType:
    """A day; ``used`` has strict quotas' percentages, with calls in flight."""
    active = answer["current_active_model"]
    rows = listing(
        [
            {**model, "label": label, "pct": used.get(label, model["quota_pct"])}
            for label, model in answer["models"].items()
        ],
        Column("model", lambda one: _label(one["label"], active)),
        dollars("spent", "cost_usd_micros"),
        dollars("quota", "quota_usd_micros"),
        Column("", lambda one: pct_bar(one["pct"], _style(one))),
        Column("used", lambda one: Text(percent(one["pct"]), _style(one), justify="right")),
        number("calls", "requests"),
        number("tokens in", "input_tokens"),
        number("out", "output_tokens"),
    )
    heading = Text.assemble(
        (answer.get("app_id") or answer["org_id"], "bold"),
        f"  {answer['date']}  {answer['timezone']}  ",
        (usd(answer["total_cost_usd_micros"]), "bold"),
        f" of {usd(answer['total_quota_usd_micros'])}",
    )
    return Section(heading, rows, *_apps(answer), _footer(answer))


def _label(label: str, active: str | None) -> Text:
    return Text.assemble(label, (" ◂", "bold") if label == active else "")


def _style(model: Mapping[str, Any]) -> str:
    return STATUS_STYLES["EXCEEDED" if model["pct"] >= FULL_PCT else model["quota_status"]]


def _apps(answer: Mapping[str, Any]) -> list[RenderableType]:
    if not answer.get("apps"):
        return []
    rows = table("app", "spent", "", numbers=["spent"])
    whole = max(1, answer["total_cost_usd_micros"])
    for app, micros in sorted(answer["apps"].items(), key=lambda pair: -pair[1]):
        rows.add_row(app, usd(micros), pct_bar(FULL_PCT * micros / whole, "cyan"))
    return [rows]


def _footer(answer: Mapping[str, Any]) -> Text:
    line = Text(style="dim")
    if answer["current_active_model"] is not None:
        line.append(f"now in use: {answer['current_active_model']}")
        line.append(" (fallback until midnight)  " if answer["sticky_fallback_active"] else "  ")
    return line.append(as_of(answer["updated_at"]))


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


async def read_overview(backend: Backend, limit: int, after: str | None) -> dict[str, Any]:
    """Read organisations with their apps; a request each, and one per app with own quotas."""
    listed, behind = await _read_orgs(backend.admin, limit, after)
    orgs = [entry for org in listed if (entry := await _read_org(backend, org)) is not None]
    return {"orgs": orgs, "next": behind}


async def _read_orgs(
    admin: Admin, limit: int, after: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    found: list[dict[str, Any]] = []
    for _ in range(_EMPTY_PAGES_MAX):
        wanted = min(_PAGE_MAX, limit - len(found))
        orgs, after = await admin.page_orgs(after=after, limit=wanted)
        found += plain(orgs)
        if after is None or len(found) >= limit:
            break
    return found, after


async def _read_org(backend: Backend, org: Mapping[str, Any]) -> dict[str, Any] | None:
    """``None`` if it was deleted meanwhile."""
    org_id = org["org_id"]
    day = await _read_day(backend, org_id)
    if day is None:
        return None
    apps: list[dict[str, Any]] = []
    if day["quota_scope"] == "APP":
        for app in plain(await backend.admin.list_apps(org_id)):
            app_day = await _read_day(backend, org_id, app["app_id"])
            if app_day is not None:
                names = {"app_id": app["app_id"], "app_name": app["app_name"]}
                apps.append({**names, **_totals(app_day)})
    return {
        "org_id": org_id,
        "org_name": org["org_name"],
        "date": day["date"],
        "quota_scope": day["quota_scope"],
        **_totals(day),
        "apps": apps,
    }


async def _read_day(
    backend: Backend, org_id: str, app_id: str | None = None
) -> dict[str, Any] | None:
    keeper = backend.reader(client_of(org_id, app_id))
    found: dict[str, Any] | None
    found = plain(await unless_missing(keeper.usage(waits_for_limit=True)))
    return found


def _totals(day: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cost_usd_micros", "quota_usd_micros", "quota_pct", "quota_status")
    return {
        "total_cost_usd_micros": day["total_cost_usd_micros"],
        "total_quota_usd_micros": day["total_quota_usd_micros"],
        "models": {
            label: {name: model[name] for name in names} for label, model in day["models"].items()
        },
    }


def draw_overview(overview: Mapping[str, Any]) -> RenderableType:
    """Draw one row for each label of each client."""
    rows = table(
        "organisation", "app", "model", "spent", "quota", "", "",
        numbers=["spent", "quota"], wraps=["organisation", "app"],
    )  # fmt: skip
    for place, org in enumerate(overview["orgs"]):
        if place:
            rows.add_section()
        _draw_client(rows, org["org_name"], "", org["models"])
        for app in org["apps"]:
            _draw_client(rows, org["org_name"], app["app_name"], app["models"])
    spent = sum(org["total_cost_usd_micros"] for org in overview["orgs"])
    heading = Text.assemble(
        (usd(spent), "bold"), f" today, by {len(overview['orgs'])} organisations"
    )
    if overview["next"] is None:
        return Section(heading, rows)
    more = f"more: pricekeeper usage show --all --after {overview['next']}"
    return Section(heading, rows, Text(more, "yellow"))


def _draw_client(
    rows: Listing, org_name: str, app_name: str, models: Mapping[str, Mapping[str, Any]]
) -> None:
    for label, model in models.items():
        style = STATUS_STYLES[model["quota_status"]]
        rows.add_row(
            org_name,
            app_name,
            label,
            usd(model["cost_usd_micros"]),
            usd(model["quota_usd_micros"]),
            pct_bar(model["quota_pct"], style),
            Text(percent(model["quota_pct"]), style, justify="right"),
        )
