"""``pricekeeper org`` and ``pricekeeper app``."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Output, backend_command
from pricekeeper.cli.differences import NAMES, differences, drawn_changes, lines_in_force
from pricekeeper.cli.drawing import (
    Facts,
    Section,
    claim_hint,
    done,
    frozen_since,
    plain,
    to_paste,
    usd,
)
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.operation_command import Reply, Word, operation_command
from pricekeeper.cli.options import AppArgument, OrgArgument, argument, option
from pricekeeper.cli.settings_input import (
    AppFlags,
    FileOption,
    OrgFlags,
    Removals,
    settings_body,
    settings_file,
    settings_patch,
)
from pricekeeper.cli.tables import Column, listing, number
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import ConflictError, PriceKeeperError
from pricekeeper.values import settings_tag
from pricekeeper.wire import operations as ops

orgs = typer.Typer(no_args_is_help=True, help="Organisations.")
apps = typer.Typer(no_args_is_help=True, help="Apps of an organisation.")

NEW = "new"
NewOrgArgument = Annotated[str, argument("ORG", "The organisation's UUID; 'new' makes one.")]
_YAML = Word("yaml", option("--yaml", "Print a file for 'put --file'."), bool, default=False)


@backend_command(orgs, "put", may_create=True)
async def put_org(
    backend: Backend, org: NewOrgArgument, *, file: FileOption = None, flags: OrgFlags
) -> Output:
    """Create an organisation, or replace its settings. Its credentials are kept.

    [dim]pricekeeper org put new --name Acme --timezone Europe/Berlin --scope APP
    --order premium,standard,economy --quota premium=50 --quota standard=20 --quota economy=5[/dim]

    [dim]pricekeeper org put $ORG --file org.yaml --quota premium=75[/dim]

    [dim]pricekeeper org put $ORG --file org.yaml --budget monthly=MONTH:200 --strict[/dim]
    """
    body = settings_body(file, flags.fields())
    answer = plain(await backend.admin.put_org(str(uuid.uuid4()) if org == NEW else org, body))
    return Output(answer, _picture(answer))


@operation_command(orgs, "get", ops.GET_ORG, yaml=_YAML)
def get_org(reply: Reply) -> RenderableType:
    """Show an organisation.

    [dim]pricekeeper org get $ORG[/dim]

    [dim]pricekeeper org get $ORG --yaml > org.yaml[/dim]
    """
    return _shown(reply)


@backend_command(orgs, "list")
async def list_orgs(backend: Backend) -> Output:
    """List all organisations.

    [dim]pricekeeper org list --json | jq -r '.[].org_id'[/dim]
    """
    found = plain(await backend.admin.list_orgs())
    rows = listing(
        found,
        Column("organisation", "org_id"),
        Column("name", "org_name", wraps=True),
        Column("timezone", lambda org: org["configuration"]["timezone"]),
        Column("scope", lambda org: org["configuration"]["quota_scope"]),
        number("quotas a day", _quotas),
        *_frozen(found),
    )
    empty = Text("no organisations; 'pricekeeper org put new' makes one")
    return Output(found, rows if found else empty)


_DELETE_ORG = "Delete {org} and all of its apps?"
_DELETE_APP = "Delete the app {app} of {org}?"


@operation_command(orgs, "delete", ops.DELETE_ORG, asks=_DELETE_ORG.format_map, status="deleted")
def delete_org(reply: Reply) -> RenderableType:
    """Delete an organisation and its apps. Their tokens stop working at once.

    Reports lose its spend, for past days too: export it first, or freeze it instead.

    [dim]pricekeeper org delete $ORG --yes[/dim]
    """
    return done(f"{reply['org_id']} is deleted")


@backend_command(apps, "put")
async def put_app(
    backend: Backend,
    org: OrgArgument,
    app: AppArgument,
    *,
    file: FileOption = None,
    flags: AppFlags,
) -> Output:
    """Create an app, or replace its own settings. Its credentials are kept.

    [dim]pricekeeper app put $ORG chat --name Chat[/dim]

    [dim]pricekeeper app put $ORG chat --name Chat --order standard,economy
    --rate-limit '*:rpm=60/1m'[/dim]
    """
    answer = plain(await backend.admin.put_app(org, app, settings_body(file, flags.fields())))
    return Output(answer, _picture(answer))


@operation_command(apps, "get", ops.GET_APP, yaml=_YAML)
def get_app(reply: Reply) -> RenderableType:
    """Show an app, with the settings that it inherits.

    [dim]pricekeeper app get $ORG chat[/dim]
    """
    return _shown(reply)


@backend_command(apps, "list")
async def list_apps(backend: Backend, org: OrgArgument) -> Output:
    """List all apps of an organisation.

    [dim]pricekeeper app list $ORG[/dim]
    """
    found = plain(await backend.admin.list_apps(org))
    rows = listing(
        found,
        Column("app", "app_id"),
        Column("name", "app_name", wraps=True),
        Column("order", lambda app: " > ".join(app["configuration"]["model_ordering"]), wraps=True),
        number("quotas a day", _quotas),
        number("sessions", lambda app: str(app["configuration"]["session_limit"])),
        *_frozen(found),
    )
    return Output(found, rows if found else Text("no apps; 'pricekeeper app put' makes one"))


@operation_command(apps, "delete", ops.DELETE_APP, asks=_DELETE_APP.format_map, status="deleted")
def delete_app(reply: Reply) -> RenderableType:
    """Delete an app. Its tokens stop working at once.

    [dim]pricekeeper app delete $ORG chat --yes[/dim]
    """
    return done(f"{reply['app_id']} is deleted")


def _quotas(client: Mapping[str, Any]) -> str:
    return usd(sum(client["configuration"]["quotas"].values()))


def _frozen(found: Sequence[Mapping[str, Any]]) -> list[Column]:
    if not any("frozen" in one for one in found):
        return []
    return [Column("frozen", lambda one: frozen_since(one.get("frozen")), wraps=True)]


def _shown(reply: Reply) -> RenderableType:
    answer = reply.answer
    return to_paste(settings_file(answer)) if reply.given["yaml"] else _picture(answer)


def _picture(answer: Mapping[str, Any]) -> RenderableType:
    settings = answer["configuration"]
    about: dict[str, str | Text] = {"organisation": answer["org_id"]}
    if "app_id" in answer:
        about["app"] = answer["app_id"]
    about["client id"] = answer["client_id"]
    about |= {"timezone": settings["timezone"], "quota scope": settings["quota_scope"]}
    lines = lines_in_force(answer).items()
    about |= {harmless(title): text for (field, title), text in lines if field not in NAMES}
    if frozen := answer.get("frozen"):
        about["frozen"] = frozen_since(frozen)
    name, status = answer.get("app_name") or answer["org_name"], answer.get("status", "")
    heading = Text.assemble((harmless(name), "bold"), "  ", (harmless(status), "green"))
    heading.rstrip()
    return Section(heading, Facts(about), *claim_hint(answer.get("secret_retrieval")))


ATTEMPTS_MAX: Final = 24
"""Of a change, if others change the settings meanwhile."""


@backend_command(orgs, "set")
async def set_org(
    backend: Backend, org: OrgArgument, *, flags: OrgFlags, removals: Removals
) -> Output:
    """Change some settings of an organisation. Settings that no flag names are kept.

    [dim]pricekeeper org set $ORG --quota premium=75[/dim]

    [dim]pricekeeper org set $ORG --budget monthly=MONTH:200 --strict --unset session_limit[/dim]
    """
    admin = backend.admin
    return await _change(admin.get_org, admin.patch_org, (org,), flags, removals)


@backend_command(apps, "set")
async def set_app(
    backend: Backend, org: OrgArgument, app: AppArgument, *, flags: AppFlags, removals: Removals
) -> Output:
    """Change some settings of an app. Settings that no flag names are kept.

    A change of an inherited quota or rate limit copies all of them to the app. --unset inherits
    again.

    [dim]pricekeeper app set $ORG chat --quota premium=2[/dim]

    [dim]pricekeeper app set $ORG chat --budget daily=DAY:5 --no-budget hourly --unset quotas[/dim]
    """
    admin = backend.admin
    return await _change(admin.get_app, admin.patch_app, (org, app), flags, removals)


async def _change(
    read: Callable[..., Awaitable[Any]],
    patch: Callable[..., Awaitable[Any]],
    client: tuple[str, ...],
    flags: AppFlags,
    removals: Removals,
) -> Output:
    """Patch the settings; read again if another change came first: budgets are one list."""
    given, before = flags.fields(), plain(await read(*client))
    for attempt in count(1):
        if len(client) > 1 and (flags.quota or removals.quotas):
            _require_own_quotas(before)
        body, tag = settings_patch(before, given, removals), settings_tag(before)
        try:
            after = plain(await patch(*client, body, if_unchanged=tag))
        except PriceKeeperError as error:
            if error.code != ConflictError.code or attempt == ATTEMPTS_MAX:
                raise
            before = plain(await read(*client))
            if settings_tag(before) == tag:  # refused for another reason
                raise
        else:
            break
    return Output(after, _change_picture(before, after, shlex.join(client)))


def _require_own_quotas(app: Mapping[str, Any]) -> None:
    if app["configuration"]["quota_scope"] == "ORG":
        raise MisusedError(
            "--quota: the apps of this organisation share its quotas, so quotas of an app have no "
            f"effect; change them with 'pricekeeper org set {app['org_id']}', or its scope with "
            "--scope APP"
        )


def _change_picture(
    before: Mapping[str, Any], after: Mapping[str, Any], words: str
) -> RenderableType:
    changes = differences(lines_in_force(before), lines_in_force(after))
    name = after.get("app_name") or after["org_name"]
    heading = Text.assemble(("✓ ", "green"), (harmless(name), "bold"), f"  {after['client_id']}")
    if not changes:
        return Section(heading, Text("no change: the settings had these values already"))
    return Section(heading, drawn_changes(changes), *_next_steps(before, after, words))


def _next_steps(
    before: Mapping[str, Any], after: Mapping[str, Any], words: str
) -> Iterator[RenderableType]:
    inherited = set(after.get("inherited_fields", ()))
    for field in before.get("inherited_fields", ()):
        if field not in inherited and field in ("quotas", "rate_limits"):
            undo = f"pricekeeper app set {words} --unset {field}"
            title = field.replace("_", " ")
            yield Text(f"its {title} are its own now; to inherit them again: {undo}", "dim")
    kind = "app" if "app_id" in after else "org"
    yield Text(f"in force everywhere within 30 s; next: pricekeeper {kind} get {words}", "dim")
