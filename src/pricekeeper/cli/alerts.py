"""``alerts``: alerts that were sent, channels, and tests of channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, backend_command
from pricekeeper.cli.drawing import Section, done, moment, more_after, plain
from pricekeeper.cli.exits import hint_if_missing
from pricekeeper.cli.operation_command import Reply, operation_command
from pricekeeper.cli.options import CHANNEL, CHANNELS_HINT, HOW_TO_HIDE, option, read_secret
from pricekeeper.cli.tables import Column, listing, minutes
from pricekeeper.cli.terminal import harmless
from pricekeeper.wire import operations as ops

alerts = typer.Typer(no_args_is_help=True, help="Alerts and the channels that they go to.")

_STYLES: Final = {"delivered": "green", "pending": "yellow", "given_up": "red", "unsent": "dim"}
OrgOption = Annotated[str | None, option("--org ORG", "Of this organisation.")]


@operation_command(alerts, "list", ops.LIST_ALERTS)
def list_alerts(reply: Reply) -> RenderableType:
    """List alerts, newest first, and whether they were delivered.

    [dim]pricekeeper alerts list --org $ORG[/dim]

    [dim]pricekeeper alerts list --state given_up[/dim]
    """
    found = reply["alerts"]
    rows = listing(
        found,
        minutes("when", "at"),
        Column("", lambda one: Text(one["state"], _STYLES[one["state"]])),
        Column("what", "title", wraps=True),
        Column("alert", "id"),
    )
    errors = [Text(one, "red") for one in _errors(reply.answer)]
    shown = [rows] if found else []
    heading = Text(f"{len(found)} alerts", "bold")
    return Section(heading, *shown, *errors, *more_after(reply.answer))


@operation_command(alerts, "channels", ops.LIST_CHANNELS)
def list_channels(reply: Reply) -> RenderableType:
    """List the channels of an organisation, or of the deployment.

    [dim]pricekeeper alerts channels --org $ORG[/dim]
    """
    org = reply.given["org"]
    if not reply["channels"]:
        hint = "no channels; 'pricekeeper alerts set --help' shows how to make one"
        return Text(f"{org or 'the deployment'} has {hint}")
    rows = listing(
        reply["channels"],
        *(Column("channel", "channel"), Column("kind", "kind"), Column("where", "address")),
        Column("what", lambda one: ", ".join(one["kinds"]) or "everything"),
        minutes("since", "updated_at"),
    )
    return Section(Text(org or "of the deployment", "bold"), rows)


@backend_command(alerts, "set")
async def set_channel(
    backend: Backend,
    name: Annotated[str, CHANNEL],
    *,
    org: OrgOption = None,
    kind: Annotated[
        str | None, option("--kind", "webhook (the default), slack, sns or email.")
    ] = None,
    to: Annotated[
        str | None,
        option("--to URL", f"Its URL, topic or mail server; {HOW_TO_HIDE}.", parser=read_secret),
    ] = None,
    secret: Annotated[
        str | None,
        option("--secret TEXT", f"Signing secret or password; {HOW_TO_HIDE}.", parser=read_secret),
    ] = None,
    user: Annotated[str | None, option("--user", "Login name at the mail server.")] = None,
    sender: Annotated[str | None, option("--from ADDRESS", "Sender of mails.")] = None,
    recipients: Annotated[
        str | None, option("--mail-to ADDRESSES", "Recipients of mails: a@x.org,b@x.org.")
    ] = None,
    kinds: Annotated[
        str | None, option("--kinds KINDS", "Only these kinds: BUDGET,QUOTA. Default: all.")
    ] = None,
) -> Output:
    """Create or change a channel. Options that are not given keep their value.

    A change of the server needs --secret and --user again: they are never sent to another server.

    [dim]pricekeeper alerts set ops --org $ORG --to https://hooks.example.com --secret @FILE[/dim]

    [dim]pricekeeper alerts set chat --org $ORG --kind slack --to @FILE[/dim]

    [dim]pricekeeper alerts set ops --org $ORG --kinds BUDGET,QUOTA[/dim]
    """
    found = plain(await backend.admin.alert_channels(org))
    before: Mapping[str, Any] = next(
        (one for one in found["channels"] if one["channel"] == name), {}
    )
    wanted = before.get("kind", "WEBHOOK") if kind is None else kind.upper()
    body: dict[str, Any] = {"kind": wanted, "url": to, "secret": secret, "user": user}
    body |= {"sender": sender, "recipients": None if recipients is None else _split(recipients)}
    body = {field: value for field, value in body.items() if value is not None}
    body["kinds"] = (
        before.get("kinds", []) if kinds is None else [part.upper() for part in _split(kinds)]
    )
    answer = plain(await backend.admin.put_alert_channel(org, name, body))
    where = f" --org {org}" if org else ""
    text = f"{name} {answer['status']}: {harmless(answer['address'])}"
    return Output(answer, done(text, f"try it: pricekeeper alerts test{where} --channel {name}"))


@operation_command(alerts, "remove", ops.DELETE_CHANNEL, status="removed")
def remove_channel(reply: Reply) -> RenderableType:
    """Remove a channel. Alerts that wait for it are dropped.

    [dim]pricekeeper alerts remove ops --org $ORG[/dim]
    """
    return done(f"{reply['channel']} was removed")


@backend_command(alerts, "test")
async def try_channels(
    backend: Backend,
    *,
    org: OrgOption = None,
    channel: Annotated[str | None, option("--channel NAME", "Only this channel.")] = None,
) -> Output:
    """Send a test alert through each channel. Exit 1 if one was not delivered.

    [dim]pricekeeper alerts test --org $ORG[/dim]

    [dim]pricekeeper alerts test --channel ops[/dim]
    """
    names = [channel]
    if channel is None:
        found = plain(await backend.admin.alert_channels(org))
        names = [one["channel"] for one in found["channels"]]
    with hint_if_missing(CHANNELS_HINT):
        tried = [plain(await backend.admin.test_alert_channel(org, str(name))) for name in names]
    answer = {"channels": tried}
    if not tried:
        hint = "there is no channel to test; 'pricekeeper alerts set' makes one"
        return Output(answer, Text(hint), exits.FAILED)
    rows = listing(
        tried,
        Column("channel", "channel"),
        Column("", lambda one: Text(one["outcome"], _STYLES.get(one["outcome"], "red"))),
        Column("why", lambda one: one.get("error", ""), wraps=True),
    )
    failed = any(one["outcome"] != "delivered" for one in tried)
    heading = Text("not every test was delivered" if failed else "every test was delivered", "bold")
    return Output(answer, Section(heading, rows), exits.FAILED if failed else exits.OK)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _errors(answer: Mapping[str, Any]) -> list[str]:
    found = [
        f"{delivery['channel']}, {moment(delivery['at'])}: {delivery['error']}"
        for one in answer["alerts"]
        for delivery in one["deliveries"]
        if "error" in delivery
    ]
    return list(dict.fromkeys(found))
