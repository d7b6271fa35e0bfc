"""``authorizations`` and ``budgets``: holds for calls, and what is left to spend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.drawing import (
    FULL_PCT,
    STATUS_STYLES,
    Facts,
    Section,
    done,
    moment,
    more_after,
    pct_bar,
    percent,
    tag_words,
    usd,
    used_pct,
)
from pricekeeper.cli.operation_command import Reply, Word, operation_command
from pricekeeper.cli.options import option
from pricekeeper.cli.tables import Column, dollars, listing, minutes, number
from pricekeeper.wire import operations as ops

authorizations = typer.Typer(no_args_is_help=True, help="Calls that hold money.")
top = typer.Typer()

TIGHT_PCT: Final = 80
BAR_WIDTH: Final = 10
_STYLES: Final = {"open": "green", "unsettled": "red"}


@operation_command(authorizations, "list", ops.LIST_AUTHORIZATIONS)
def list_authorizations(reply: Reply) -> RenderableType:
    """List the open and the unsettled authorizations of an app, newest first.

    [dim]pricekeeper authorizations list $ORG chat[/dim]

    [dim]pricekeeper authorizations list $ORG chat --status unsettled[/dim]
    """
    found = reply["authorizations"]
    rows = listing(
        found,
        Column("authorization", "authorization_id"),
        Column("", lambda one: Text(one["status"], _STYLES[one["status"]])),
        Column("model", "model_label"),
        dollars("held", "held_usd_micros"),
        minutes("since", "authorized_at"),
        minutes("until", "expires_at"),
        Column("tags", lambda one: tag_words(one["tags"]), wraps=True),
    )
    held = sum(one["held_usd_micros"] for one in found)
    heading = Text.assemble((usd(held), "bold"), f" held for {len(found)} calls")
    return Section(heading, *([rows] if found else []), *more_after(reply.answer))


@operation_command(authorizations, "show", ops.GET_AUTHORIZATION)
def show_authorization(reply: Reply) -> RenderableType:
    """Show an authorization of an app.

    [dim]pricekeeper authorizations show $ORG chat 01928f7c-12ab-8c3d-8e4f-0123456789ab[/dim]
    """
    answer = reply.answer
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


@operation_command(
    authorizations,
    "void",
    ops.VOID,
    status="voided",
    reason=Word("reason", option("--reason TEXT", "Why. It is kept and shown.")),
)
def void_authorization(reply: Reply) -> RenderableType:
    """Release what an authorization holds, because the model was not called.

    A service requires the credentials of the app or its organisation.

    [dim]pricekeeper authorizations void $ORG chat 01928f7c-12ab-8c3d-8e4f-0123456789ab[/dim]
    """
    return done(f"{reply['authorization_id']} is voided")


@operation_command(authorizations, "revoke", ops.VOID_ORG_AUTHORIZATION)
def revoke_authorization(reply: Reply) -> RenderableType:
    """Release what an authorization of any app holds, as an administrator.

    A captured one is a usage record: use 'usage void'.

    [dim]pricekeeper authorizations revoke $ORG $ID --reason "its job was stopped"[/dim]
    """
    return done(f"{reply['authorization_id']} is voided", f"of {reply['client_id']}")


@operation_command(top, "budgets", ops.LIST_BUDGETS)
def show_budgets(reply: Reply) -> RenderableType:
    """Show the budgets of an organisation or app, and what is left of them, as of now.

    Used is spent + held for calls in flight + charged for calls that were not settled.

    [dim]pricekeeper budgets $ORG chat[/dim]
    """
    if not reply["budgets"]:
        hint = "no budgets; 'pricekeeper org set --help' shows --budget and --strict"
        return Text(f"{reply.name} has {hint}")
    rows = listing(
        reply["budgets"],
        Column("budget", _name, wraps=True),
        Column("of", lambda one: one["scope"].lower()),
        Column("a", lambda one: one["window"].lower()),
        number("used", lambda one: usd(one["limit_usd_micros"] - one["remaining_usd_micros"])),
        dollars("held", "held_usd_micros"),
        dollars("unsettled", "unsettled_usd_micros"),
        dollars("left", "remaining_usd_micros"),
        dollars("limit", "limit_usd_micros"),
        Column("", lambda one: pct_bar(used_pct(one), _style(one), BAR_WIDTH)),
        Column("", lambda one: Text(percent(used_pct(one)), _style(one), justify="right")),
        minutes("resets", "resets_at"),
    )
    return Section(Text(reply.name, "bold"), rows)


def _style(budget: Mapping[str, Any]) -> str:
    pct = used_pct(budget)
    status = "EXCEEDED" if pct >= FULL_PCT else "TIGHT" if pct >= TIGHT_PCT else "NORMAL"
    return STATUS_STYLES[status]


def _name(budget: Mapping[str, Any]) -> str:
    soft = " soft" if budget["enforcement"] == "SOFT" else ""
    tag = f" {tag_words(budget['tag'])}" if budget.get("tag") else ""
    return f"{budget['name']}{tag}{soft}"
