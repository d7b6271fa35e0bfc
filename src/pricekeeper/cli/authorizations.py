"""``authorizations`` and ``budgets``: holds for calls, and what is left to spend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import AppArgument, OptionalApp, OrgArgument, client_of
from pricekeeper.cli.command import Output, Reason, backend_command, either_command
from pricekeeper.cli.drawing import (
    FULL_PCT,
    STATUS_STYLES,
    Facts,
    Section,
    done,
    minute,
    moment,
    more_after,
    pct_bar,
    percent,
    plain,
    table,
    tag_words,
    usd,
    used_pct,
)
from pricekeeper.cli.exits import MisusedError, hint_if_missing
from pricekeeper.cli.options import argument, option

authorizations = typer.Typer(no_args_is_help=True, help="Calls that hold money.")
top = typer.Typer()

TIGHT_PCT: Final = 80
BAR_WIDTH: Final = 10
_STYLES: Final = {"open": "green", "unsettled": "red"}
_UNFINISHED: Final = ("open", "unsettled")
_HINT: Final = "'pricekeeper authorizations list' shows open and unsettled ones"
IdArgument = Annotated[str, argument("ID", "The authorization's id.")]


@either_command(authorizations, "list")
async def list_authorizations(
    backend: Backend,
    org: OrgArgument,
    app: AppArgument,
    *,
    status: Annotated[str | None, option("--status", "Only open, or only unsettled.")] = None,
    after: Annotated[str | None, option("--after ID", "The page after this one.")] = None,
) -> Output:
    """List the open and the unsettled authorizations of an app, newest first.

    [dim]pricekeeper authorizations list $ORG chat[/dim]

    [dim]pricekeeper authorizations list $ORG chat --status unsettled[/dim]
    """
    if status is not None and status not in _UNFINISHED:
        raise MisusedError("--status: use open or unsettled")
    answer = plain(
        await backend.reader(client_of(org, app)).authorizations(status=status, after=after)
    )
    rows = table(
        "authorization", "", "model", "held", "since (UTC)", "until (UTC)", "tags",
        numbers=["held"], wraps=["tags"],
    )  # fmt: skip
    for one in answer["authorizations"]:
        rows.add_row(
            one["authorization_id"],
            Text(one["status"], _STYLES[one["status"]]),
            one["model_label"],
            usd(one["held_usd_micros"]),
            minute(one["authorized_at"]),
            minute(one["expires_at"]),
            tag_words(one["tags"]),
        )
    held = sum(one["held_usd_micros"] for one in answer["authorizations"])
    heading = Text.assemble((usd(held), "bold"), f" held for {len(answer['authorizations'])} calls")
    parts: list[RenderableType] = [rows] if answer["authorizations"] else []
    return Output(answer, Section(heading, *parts, *more_after(answer)))


@either_command(authorizations, "show")
async def show_authorization(
    backend: Backend, org: OrgArgument, app: AppArgument, authorization_id: IdArgument
) -> Output:
    """Show an authorization of an app.

    [dim]pricekeeper authorizations show $ORG chat 01928f7c-12ab-8c3d-8e4f-0123456789ab[/dim]
    """
    with hint_if_missing(_HINT):
        answer = plain(await backend.reader(client_of(org, app)).authorization(authorization_id))
    return Output(answer, _one(answer))


@either_command(authorizations, "void")
async def void_authorization(
    backend: Backend,
    org: OrgArgument,
    app: AppArgument,
    authorization_id: IdArgument,
    *,
    reason: Annotated[str | None, option("--reason TEXT", "Why. It is kept and shown.")] = None,
) -> Output:
    """Release what an authorization holds, because the model was not called.

    A service requires the credentials of the app or its organisation.

    [dim]pricekeeper authorizations void $ORG chat 01928f7c-12ab-8c3d-8e4f-0123456789ab[/dim]
    """
    keeper = backend.keeper(client_of(org, app))
    with hint_if_missing(_HINT):
        await keeper.void(authorization_id, reason=reason)
    answer = {"authorization_id": authorization_id, "status": "voided"}
    return Output(answer, done(f"{authorization_id} is voided"))


@backend_command(authorizations, "revoke")
async def revoke_authorization(
    backend: Backend, org: OrgArgument, authorization_id: IdArgument, *, reason: Reason
) -> Output:
    """Release what an authorization of any app holds, as an administrator.

    A captured one is a usage record: use 'usage void'.

    [dim]pricekeeper authorizations revoke $ORG $ID --reason "its job was stopped"[/dim]
    """
    answer = plain(await backend.admin.void_authorization(org, authorization_id, reason=reason))
    whose = f"of {answer['client_id']}"
    return Output(answer, done(f"{answer['authorization_id']} is voided", whose))


@either_command(top, "budgets")
async def show_budgets(backend: Backend, org: OrgArgument, app: OptionalApp = None) -> Output:
    """Show the budgets of an organisation or app, and what is left of them, as of now.

    Used is spent + held for calls in flight + charged for calls that were not settled.

    [dim]pricekeeper budgets $ORG chat[/dim]
    """
    answer = plain(await backend.reader(client_of(org, app)).budgets())
    if not answer["budgets"]:
        hint = "no budgets; 'pricekeeper org set --help' shows --budget and --strict"
        return Output(answer, Text(f"{app or org} has {hint}"))
    rows = table(
        "budget", "of", "a", "used", "held", "unsettled", "left", "limit", "", "", "resets (UTC)",
        numbers=["used", "held", "unsettled", "left", "limit"], wraps=["budget"],
    )  # fmt: skip
    for one in answer["budgets"]:
        limit, left = one["limit_usd_micros"], one["remaining_usd_micros"]
        pct = used_pct(one)
        style = STATUS_STYLES[_status(pct)]
        rows.add_row(
            _name(one),
            "org" if one["scope"] == "ORG" else "app",
            one["window"].lower(),
            usd(limit - left),
            usd(one["held_usd_micros"]),
            usd(one["unsettled_usd_micros"]),
            usd(left),
            usd(limit),
            pct_bar(pct, style, BAR_WIDTH),
            Text(percent(pct), style, justify="right"),
            minute(one["resets_at"]),
        )
    return Output(answer, Section(Text(app or org, "bold"), rows))


def _status(pct: float) -> str:
    if pct >= FULL_PCT:
        return "EXCEEDED"
    return "TIGHT" if pct >= TIGHT_PCT else "NORMAL"


def _name(budget: Mapping[str, Any]) -> str:
    soft = " soft" if budget["enforcement"] == "SOFT" else ""
    tag = f" {tag_words(budget['tag'])}" if budget.get("tag") else ""
    return f"{budget['name']}{tag}{soft}"


def _one(answer: Mapping[str, Any]) -> RenderableType:
    pairs = {
        "model": answer["model_label"],
        "held": usd(answer["held_usd_micros"]),
        "longest answer": f"{answer['max_output_tokens']:,} tokens",
        "since": moment(answer["authorized_at"]),
        "until": moment(answer["expires_at"]),
    }
    if answer["tags"]:
        pairs["tags"] = tag_words(answer["tags"])
    if "cost_usd_micros" in answer:
        pairs["cost"] = usd(answer["cost_usd_micros"])
        pairs["above the hold"] = usd(answer["overrun_usd_micros"])
    if "settled_at" in answer:
        pairs["settled"] = moment(answer["settled_at"])
    if "void_reason" in answer:
        pairs["why"] = answer["void_reason"]
    heading = Text.assemble((answer["authorization_id"], "bold"), f"  {answer['status']}")
    return Section(heading, Facts(pairs))
