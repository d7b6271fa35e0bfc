"""Commands for when a secret has leaked: revoke it, look at its sessions, freeze, reset limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.access import credentials
from pricekeeper.cli.authorizations import IdArgument, authorizations
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import OptionalApp, OrgArgument
from pricekeeper.cli.command import Output, backend_command
from pricekeeper.cli.drawing import done
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.usage import limits, usage

top = typer.Typer()
RequestArgument = Annotated[str, argument("REQUEST_ID", "The id of a usage record.")]

Reason = Annotated[str, option("--reason TEXT", "Why: it is logged, and a freeze shows it.")]


def _question(given: Mapping[str, Any]) -> str:
    whose = given["app"] or given["org"]
    if given["previous"]:
        return f"End all sessions of {whose}, and the secret before the present one?"
    return f"Stop every secret and every token of {whose}? It has no way in until you rotate."


@backend_command(credentials, "revoke", asks=_question)
async def revoke(
    backend: Backend,
    org: OrgArgument,
    app: OptionalApp = None,
    *,
    reason: Reason,
    previous: Annotated[
        bool,
        option("--previous", "Spare the present secret: only the one before it, in its grace."),
    ] = False,
) -> Output:
    """Stop the secrets, sessions and tokens of a client at once; rotate gives it a secret again.

    An organisation's apps keep theirs, and so does its provisioning key.

    [dim]pricekeeper credentials revoke $ORG chat --reason "found on GitHub"[/dim]
    """
    answer = await backend.admin.revoke_credentials(org, app, reason=reason, previous_only=previous)
    if previous:
        picture = done(f"{answer['client_id']}: sessions, and the secret before, have ended")
    else:
        after = f"next: pricekeeper credentials rotate {org}{f' {app}' if app else ''}"
        picture = done(f"{answer['client_id']}: nothing opens it any more", after)
    return Output(answer, picture)


@backend_command(top, "freeze")
async def freeze(
    backend: Backend, org: OrgArgument, app: OptionalApp = None, *, reason: Reason
) -> Output:
    """Refuse models and tokens to an app, or to an organisation and its apps; usage counts on.

    [dim]pricekeeper freeze $ORG --reason "spends by itself since 3 am"[/dim]

    [dim]pricekeeper freeze $ORG chat --reason "its secret has leaked"[/dim]
    """
    answer = await backend.admin.freeze(org, app, reason=reason)
    return Output(answer, done(f"{answer['client_id']} is frozen", _unfreeze(org, app)))


@backend_command(top, "unfreeze")
async def unfreeze(
    backend: Backend, org: OrgArgument, app: OptionalApp = None, *, reason: Reason
) -> Output:
    """Lift the freeze of an app or an organisation. An organisation's holds for its apps.

    [dim]pricekeeper unfreeze $ORG chat --reason "has a new secret"[/dim]
    """
    await backend.admin.unfreeze(org, app, reason=reason)
    answer = {"org_id": org, **({"app_id": app} if app else {}), "status": "unfrozen"}
    return Output(answer, done(f"{app or org} is not frozen"))


@backend_command(limits, "reset")
async def reset_limits(
    backend: Backend, org: OrgArgument, app: OptionalApp = None, *, reason: Reason
) -> Output:
    """Fill the token buckets of an app, or those of an organisation without its apps'.

    [dim]pricekeeper limits reset $ORG chat --reason "in debt after a wrong adjustment"[/dim]
    """
    answer = await backend.admin.reset_limits(org, app, reason=reason)
    return Output(answer, _reset(answer))


@backend_command(usage, "void")
async def void_usage(
    backend: Backend, org: OrgArgument, request_id: RequestArgument, *, reason: Reason
) -> Output:
    """Take a usage record out of totals and budgets, by a correction; both stay visible.

    It can be done until the day of the record is final, and again: that changes nothing.

    [dim]pricekeeper usage void $ORG 01928f7c-12ab-7c3d-8e4f-0123456789ab --reason "a test"[/dim]
    """
    answer = await backend.admin.void_usage(org, request_id, reason=reason)
    after = f"its correction is {answer['correction_id']}"
    return Output(answer, done(f"{answer['request_id']} counts no more", after))


@backend_command(authorizations, "revoke")
async def revoke_authorization(
    backend: Backend, org: OrgArgument, authorization_id: IdArgument, *, reason: Reason
) -> Output:
    """Give back what an authorization of any app holds, as an administrator.

    One that was captured is a usage record: void that.

    [dim]pricekeeper authorizations revoke $ORG $ID --reason "its job was stopped"[/dim]
    """
    answer = await backend.admin.void_authorization(org, authorization_id, reason=reason)
    whose = f"it was {answer['client_id']}'s"
    return Output(answer, done(f"{answer['authorization_id']} holds nothing any more", whose))


def _unfreeze(org: str, app: str | None) -> str:
    named = f"{org} {app}" if app else org
    return f"to lift it: pricekeeper unfreeze {named} --reason ..."


def _reset(answer: Mapping[str, Any]) -> RenderableType:
    labels = answer["labels"]
    if not labels:
        return Text(f"{answer['client_id']}: every bucket was full")
    return done(f"{answer['client_id']}: full again for {', '.join(labels)}")
