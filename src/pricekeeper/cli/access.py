"""``credentials``, ``freeze``, ``unfreeze``, ``override`` and ``sessions``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend, client_of
from pricekeeper.cli.command import Output, backend_command, either_command
from pricekeeper.cli.drawing import Section, claim_hint, done, moment, plain, shown_once
from pricekeeper.cli.exits import MisusedError, hint_if_missing
from pricekeeper.cli.operation_command import Reply, Word, operation_command
from pricekeeper.cli.options import (
    HOW_TO_HIDE,
    OptionalApp,
    OrgArgument,
    argument,
    option,
    read_secret,
)
from pricekeeper.cli.tables import Column, listing, minutes
from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.settings import CLIENT_ID, CLIENT_SECRET, PROVISIONING_KEY, RETRIEVAL_TOKEN
from pricekeeper.wire import operations as ops

credentials = typer.Typer(no_args_is_help=True, help="Secrets of organisations and apps.")
overrides = typer.Typer(no_args_is_help=True, help="A model set by hand until midnight.")
top = typer.Typer()
sessions = typer.Typer(no_args_is_help=True, help="Live sessions of a client.")

OptionalOrg = Annotated[str | None, argument("ORG", "The organisation's UUID; else --client.")]
ClientOption = Annotated[
    str | None, option("--client ID", "For administrators: org-ORG-app-APP or org-ORG.")
]
_PREVIOUS = Word(
    "previous",
    option("--previous", "Revoke only the previous secret, which is in its grace."),
    bool,
    default=False,
    send=lambda previous: "PREVIOUS" if previous else "ALL",
)


@operation_command(credentials, "rotate", ops.ROTATE)
def rotate(reply: Reply) -> RenderableType:
    """Offer a new secret to claim. The old one works until the end of the grace after the claim.

    With --grace-hours 0 the claim ends every session and token.

    [dim]pricekeeper credentials rotate $ORG chat --grace-hours 48[/dim]
    """
    heading = Text(f"{reply['client_id']}: a new secret is waiting")
    return Section(heading, *claim_hint(reply["secret_retrieval"]))


@backend_command(credentials, "claim")
async def claim(
    backend: Backend,
    token: Annotated[
        str | None,
        argument(
            "TOKEN",
            f"The retrieval token, pkr_...; {HOW_TO_HIDE}; else ${RETRIEVAL_TOKEN}.",
            parser=read_secret,
        ),
    ] = None,
) -> Output:
    """Exchange a retrieval token for the secret, which is shown only once.

    [dim]echo pkr_... | pricekeeper credentials claim - --json > secret.json[/dim]
    """
    wanted = token or os.environ.get(RETRIEVAL_TOKEN)
    if not wanted:
        raise MisusedError(f"give the retrieval token: - for stdin, @FILE, or ${RETRIEVAL_TOKEN}")
    with hint_if_missing(
        "a retrieval token works once, for ten minutes; "
        "'pricekeeper credentials rotate' makes another"
    ):
        answer = plain(await backend.admin.claim(wanted))
    variables = {CLIENT_ID: answer["client_id"], CLIENT_SECRET: answer["client_secret"]}
    parts = shown_once(variables, ("the old secret works", answer.get("old_secret_expires_at")))
    return Output(answer, Section(Text(answer["client_id"], "bold"), *parts))


@backend_command(credentials, "provisioning-key")
async def provisioning_key(
    backend: Backend,
    org: OrgArgument,
    *,
    withdraw: Annotated[bool, option("--withdraw", "Remove the key that it has.")] = False,
) -> Output:
    """Issue a key that provisions an organisation and its apps. It replaces the earlier key.

    [dim]pricekeeper credentials provisioning-key $ORG --json > key.json[/dim]

    [dim]pricekeeper credentials provisioning-key $ORG --withdraw[/dim]
    """
    if withdraw:
        await backend.admin.withdraw_provisioning_key(org)
        answer = {"org_id": org, "status": "withdrawn"}
        return Output(answer, done(f"{org} has no provisioning key of its own any more"))
    answer = plain(await backend.admin.issue_provisioning_key(org))
    parts = shown_once({PROVISIONING_KEY: answer["provisioning_key"]})
    return Output(answer, Section(Text(answer["org_id"], "bold"), *parts))


def _question(given: Mapping[str, Any]) -> str:
    whose = given["app"] or given["org"]
    if given["previous"]:
        return f"End all sessions of {whose}, and its previous secret?"
    return f"Revoke every secret and token of {whose}? It can't log in until you rotate."


@operation_command(credentials, "revoke", ops.REVOKE_CREDENTIALS, asks=_question, secrets=_PREVIOUS)
def revoke(reply: Reply) -> RenderableType:
    """Revoke the secrets, sessions and tokens of a client at once. 'rotate' makes a new secret.

    Credentials of an organisation's apps and its provisioning key are kept.

    [dim]pricekeeper credentials revoke $ORG chat --reason "found on GitHub"[/dim]
    """
    if reply.given["previous"]:
        return done(f"{reply['client_id']}: sessions and the previous secret are revoked")
    after = f"next: pricekeeper credentials rotate {reply.client}"
    return done(f"{reply['client_id']}: all credentials revoked", after)


@operation_command(top, "freeze", ops.FREEZE)
def freeze(reply: Reply) -> RenderableType:
    """Deny models and tokens to an app, or to an organisation and its apps. Usage still counts.

    [dim]pricekeeper freeze $ORG --reason "spends by itself since 3 am"[/dim]

    [dim]pricekeeper freeze $ORG chat --reason "its secret has leaked"[/dim]
    """
    after = f"to lift it: pricekeeper unfreeze {reply.client} --reason ..."
    return done(f"{reply['client_id']} is frozen", after)


@operation_command(top, "unfreeze", ops.UNFREEZE, status="unfrozen")
def unfreeze(reply: Reply) -> RenderableType:
    """Lift the freeze of an app or an organisation. A frozen organisation's apps stay frozen.

    [dim]pricekeeper unfreeze $ORG chat --reason "has a new secret"[/dim]
    """
    return done(f"{reply.name} is not frozen any more")


@operation_command(overrides, "set", ops.PUT_OVERRIDE)
def set_override(reply: Reply) -> RenderableType:
    """Select one model until the end of the organisation's day, ignoring quotas.

    [dim]pricekeeper override set $ORG economy[/dim]

    [dim]pricekeeper override set $ORG premium chat[/dim]
    """
    until = moment(reply["expires_at"])
    return done(f"{reply.name} uses {reply['model_label']} until {until}")


@operation_command(overrides, "clear", ops.DELETE_OVERRIDE, status="cleared")
def clear_override(reply: Reply) -> RenderableType:
    """Remove the override; quotas select the model again.

    [dim]pricekeeper override clear $ORG chat[/dim]
    """
    return done(f"quotas decide for {reply.name} again")


@either_command(sessions, "list")
async def list_sessions(
    backend: Backend,
    org: OptionalOrg = None,
    app: OptionalApp = None,
    *,
    client: ClientOption = None,
) -> Output:
    """List the live sessions of an organisation or app, oldest first.

    A service requires the client's own credentials; with --client, an admin key.

    [dim]pricekeeper sessions list $ORG chat[/dim]

    [dim]pricekeeper sessions list --client org-$ORG-app-chat[/dim]
    """
    wanted = _one_client(org, app, client)
    if client is None:
        answer = plain(await backend.keeper(wanted, itself=True).sessions())
    else:
        answer = plain(await backend.admin.list_sessions(wanted.org_id, wanted.app_id))
    rows = listing(
        answer["sessions"],
        Column("session", "session_id"),
        minutes("since", "created_at"),
        minutes("last used", "last_used_at"),
        Column("from", "address"),
        Column("with", _user_agent, wraps=True),
    )
    heading = Text(f"{len(answer['sessions'])} of at most {answer['limit']} sessions")
    return Output(answer, Section(heading, rows) if answer["sessions"] else heading)


def _user_agent(session: Mapping[str, Any]) -> str:
    return f"{session['user_agent']}{' (this command)' if session['current'] else ''}"


@either_command(sessions, "end")
async def end_session(
    backend: Backend,
    org: OptionalOrg = None,
    app: OptionalApp = None,
    *,
    session: Annotated[str | None, option("--session ID", "The session to end.")] = None,
    everything: Annotated[bool, option("--all", "End all sessions.")] = False,
    client: ClientOption = None,
    reason: Annotated[
        str | None, option("--reason TEXT", "Why, with --client. It is kept in the audit log.")
    ] = None,
) -> Output:
    """End one session, or all. Their tokens stop working.

    A service requires the client's own credentials; with --client, an admin key.

    [dim]pricekeeper sessions end $ORG chat --session 000-Zm9vYmFyYmF6cXV4cXV1eA[/dim]

    [dim]pricekeeper sessions end --client org-$ORG-app-chat --all --reason "stolen laptop"[/dim]
    """
    if everything == (session is not None):
        raise MisusedError("give either --session ID or --all")
    if (client is None) != (reason is None):
        raise MisusedError("give --client and --reason together, or neither")
    wanted = _one_client(org, app, client)
    if reason is not None:
        given = {**wanted._asdict(), "session_id": session, "reason": reason}
        ending = backend.admin.ask(ops.END_SESSION if session else ops.END_SESSIONS, given)
    else:
        keeper = backend.keeper(wanted, itself=True)
        ending = keeper.end_session(session) if session else keeper.end_sessions()
    with hint_if_missing("'pricekeeper sessions list' shows live sessions" if session else ""):
        await ending
    message = "all sessions have ended" if session is None else f"{session} has ended"
    return Output({"status": "ended", "session_id": session}, done(message))


def _one_client(org: str | None, app: str | None, client: str | None) -> Client:
    if (org is None) == (client is None):
        raise MisusedError("give either ORG and APP or --client ID")
    if client is None:
        return client_of(org or "", app)
    return parse_client_id(client, "--client")
