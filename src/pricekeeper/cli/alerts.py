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
from pricekeeper.cli.drawing import Section, done, minute, moment, more_after, plain, table
from pricekeeper.cli.exits import hint_if_missing
from pricekeeper.cli.options import HOW_TO_HIDE, argument, option, read_secret
from pricekeeper.cli.terminal import harmless

alerts = typer.Typer(no_args_is_help=True, help="Alerts and the channels that they go to.")

_STYLES: Final = {"delivered": "green", "pending": "yellow", "given_up": "red", "unsent": "dim"}
_HINT: Final = "'pricekeeper alerts channels' lists the channels"
OrgOption = Annotated[str | None, option("--org ORG", "Of this organisation.")]
NameArgument = Annotated[str, argument("NAME", "The channel's name.")]


@backend_command(alerts, "list")
async def list_alerts(
    backend: Backend,
    *,
    org: OrgOption = None,
    kind: Annotated[str | None, option("--kind", "Of this kind.")] = None,
    state: Annotated[
        str | None, option("--state", "Only pending, delivered, given_up or unsent alerts.")
    ] = None,
    after: Annotated[str | None, option("--after ID", "The page after this one.")] = None,
) -> Output:
    """List alerts, newest first, and whether they were delivered.

    [dim]pricekeeper alerts list --org $ORG[/dim]

    [dim]pricekeeper alerts list --state given_up[/dim]
    """
    answer = plain(await backend.admin.alerts(org, kind=kind, state=state, after=after))
    rows = table("when (UTC)", "", "what", "alert", wraps=["what"])
    for one in answer["alerts"]:
        rows.add_row(
            minute(one["at"]), Text(one["state"], _STYLES[one["state"]]), one["title"], one["id"]
        )
    parts: list[RenderableType] = [rows] if answer["alerts"] else []
    parts += [*(Text(one, "red") for one in _errors(answer)), *more_after(answer)]
    return Output(answer, Section(Text(f"{len(answer['alerts'])} alerts", "bold"), *parts))


@backend_command(alerts, "channels")
async def list_channels(backend: Backend, *, org: OrgOption = None) -> Output:
    """List the channels of an organisation, or of the deployment.

    [dim]pricekeeper alerts channels --org $ORG[/dim]
    """
    answer = plain(await backend.admin.alert_channels(org))
    rows = table("channel", "kind", "where", "what", "since (UTC)")
    for one in answer["channels"]:
        kinds = ", ".join(one["kinds"]) or "everything"
        rows.add_row(one["channel"], one["kind"], one["address"], kinds, minute(one["updated_at"]))
    if not answer["channels"]:
        hint = "no channels; 'pricekeeper alerts set --help' shows how to make one"
        return Output(answer, Text(f"{org or 'the deployment'} has {hint}"))
    return Output(answer, Section(Text(org or "of the deployment", "bold"), rows))


@backend_command(alerts, "set")
async def set_channel(
    backend: Backend,
    name: NameArgument,
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


@backend_command(alerts, "remove")
async def remove_channel(backend: Backend, name: NameArgument, *, org: OrgOption = None) -> Output:
    """Remove a channel. Alerts that wait for it are dropped.

    [dim]pricekeeper alerts remove ops --org $ORG[/dim]
    """
    with hint_if_missing(_HINT):
        await backend.admin.remove_alert_channel(org, name)
    return Output({"channel": name, "status": "removed"}, done(f"{name} was removed"))


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
    with hint_if_missing(_HINT):
        tried = [plain(await backend.admin.test_alert_channel(org, str(name))) for name in names]
    answer = {"channels": tried}
    if not tried:
        hint = "there is no channel to test; 'pricekeeper alerts set' makes one"
        return Output(answer, Text(hint), exits.FAILED)
    rows = table("channel", "", "why", wraps=["why"])
    for one in tried:
        style = "green" if one["outcome"] == "delivered" else "red"
        rows.add_row(one["channel"], Text(one["outcome"], style), one.get("error", ""))
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
