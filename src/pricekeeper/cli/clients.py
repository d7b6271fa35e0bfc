"""``pricekeeper org`` and ``pricekeeper app``: who there is, and what holds for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.command import Outcome, backend_command
from pricekeeper.cli.drawing import (
    budgets,
    claim_hint,
    facts,
    frozen_since,
    page,
    rate_limits,
    to_paste,
    usd,
)
from pricekeeper.cli.listing import table
from pricekeeper.cli.options import argument, option
from pricekeeper.cli.settings_input import (
    AdvisoryOption,
    BudgetOption,
    FileOption,
    OrderOption,
    QuotaOption,
    RateLimitOption,
    SessionLimitOption,
    StrictOption,
    TagKeysOption,
    TightOption,
    parse_budgets,
    parse_enforcement,
    parse_order,
    parse_quotas,
    parse_rate_limits,
    parse_tag_keys,
    settings_body,
    settings_file,
)
from pricekeeper.cli.terminal import harmless
from pricekeeper.values import parse_app_id, parse_org_id

if TYPE_CHECKING:
    from pricekeeper.tenants import Client

orgs = typer.Typer(no_args_is_help=True, help="Organisations.")
apps = typer.Typer(no_args_is_help=True, help="Apps of an organisation.")

NEW = "new"
FROZEN = "frozen"
OrgArgument = Annotated[str, argument("ORG", "The organisation's UUID.")]
OptionalOrg = Annotated[str | None, argument("ORG", "The organisation's UUID.")]
NewOrgArgument = Annotated[str, argument("ORG", "The organisation's UUID; 'new' makes one.")]
AppArgument = Annotated[str, argument("APP", "The app's id.")]
OptionalApp = Annotated[str | None, argument("APP", "The app; else the organisation itself.")]
NameOption = Annotated[str | None, option("--name", "What people call it.")]
TimezoneOption = Annotated[
    str | None, option("--timezone", "IANA name; its midnight resets the quotas.")
]
ScopeOption = Annotated[str | None, option("--scope ORG|APP", "Whether apps share the quotas.")]
YamlOption = Annotated[bool, option("--yaml", "Print a file that 'put --file' takes again.")]


@backend_command(orgs, "put", may_create=True)
async def put_org(
    backend: Backend,
    org: NewOrgArgument,
    *,
    file: FileOption = None,
    name: NameOption = None,
    timezone: TimezoneOption = None,
    scope: ScopeOption = None,
    order: OrderOption = None,
    quota: QuotaOption = None,
    rate_limit: RateLimitOption = None,
    session_limit: SessionLimitOption = None,
    tight_pct: TightOption = None,
    tag_keys: TagKeysOption = None,
    budget: BudgetOption = None,
    strict: StrictOption = False,
    advisory: AdvisoryOption = False,
) -> Outcome:
    """Create an organisation, or replace its settings; credentials are never reset.

    [dim]pricekeeper org put new --name Acme --timezone Europe/Berlin --scope APP
    --order premium,standard,economy --quota premium=50 --quota standard=20 --quota economy=5[/dim]

    [dim]pricekeeper org put $ORG --file org.yaml --quota premium=75[/dim]

    [dim]pricekeeper org put $ORG --file org.yaml --budget monthly=MONTH:200 --strict[/dim]
    """
    body = settings_body(
        file,
        {
            "org_name": name,
            "timezone": timezone,
            "quota_scope": scope,
            "tag_keys": parse_tag_keys(tag_keys),
            "budgets": parse_budgets(budget),
            "quota_enforcement": parse_enforcement(strict=strict, advisory=advisory),
            **shared_fields(order, quota, rate_limit, session_limit, tight_pct),
        },
    )
    answer = await backend.admin.put_org(str(uuid.uuid4()) if org == NEW else org, body)
    return Outcome(answer, _picture(answer))


@backend_command(orgs, "get")
async def get_org(backend: Backend, org: OrgArgument, *, yaml: YamlOption = False) -> Outcome:
    """Show an organisation.

    [dim]pricekeeper org get $ORG[/dim]

    [dim]pricekeeper org get $ORG --yaml > org.yaml[/dim]
    """
    answer = await backend.admin.get_org(org)
    return Outcome(answer, to_paste(settings_file(answer)) if yaml else _picture(answer))


@backend_command(orgs, "list")
async def list_orgs(backend: Backend) -> Outcome:
    """Show every organisation.

    [dim]pricekeeper org list --json | jq -r '.[].org_id'[/dim]
    """
    found = await backend.admin.list_orgs()
    frozen = _frozen_columns(found)
    rows = table(
        "organisation",
        "name",
        "timezone",
        "scope",
        "quotas a day",
        *frozen,
        numbers=["quotas a day"],
        wraps=["name", FROZEN],
    )
    for org in found:
        settings = org["configuration"]
        quotas = usd(sum(settings["quotas"].values()))
        rows.add_row(
            org["org_id"],
            org["org_name"],
            settings["timezone"],
            settings["quota_scope"],
            quotas,
            *_frozen_cells(frozen, org),
        )
    return Outcome(
        found, rows if found else Text("no organisations; see 'pricekeeper org put --help'")
    )


@backend_command(orgs, "delete", asks=lambda given: f"End {given['org']} and all of its apps?")
async def delete_org(backend: Backend, org: OrgArgument) -> Outcome:
    """End an organisation and all of its apps; their tokens stop working at once.

    Its spend is in no report any more, also of days gone by: export it first, or freeze instead.

    [dim]pricekeeper org delete $ORG --yes[/dim]
    """
    await backend.admin.delete_org(org)
    return Outcome({"org_id": org, "status": "deleted"}, Text(f"{org} is no more"))


@backend_command(apps, "put")
async def put_app(
    backend: Backend,
    org: OrgArgument,
    app: AppArgument,
    *,
    file: FileOption = None,
    name: NameOption = None,
    order: OrderOption = None,
    quota: QuotaOption = None,
    rate_limit: RateLimitOption = None,
    session_limit: SessionLimitOption = None,
    tight_pct: TightOption = None,
    budget: BudgetOption = None,
) -> Outcome:
    """Create an app, or replace what it overrides; credentials are never reset.

    [dim]pricekeeper app put $ORG chat --name Chat[/dim]

    [dim]pricekeeper app put $ORG chat --name Chat --order standard,economy
    --rate-limit '*:rpm=60/1m'[/dim]
    """
    shared = shared_fields(order, quota, rate_limit, session_limit, tight_pct)
    body = settings_body(file, {"app_name": name, "budgets": parse_budgets(budget), **shared})
    answer = await backend.admin.put_app(org, app, body)
    return Outcome(answer, _picture(answer))


@backend_command(apps, "get")
async def get_app(
    backend: Backend, org: OrgArgument, app: AppArgument, *, yaml: YamlOption = False
) -> Outcome:
    """Show an app, and what it inherits.

    [dim]pricekeeper app get $ORG chat[/dim]
    """
    answer = await backend.admin.get_app(org, app)
    return Outcome(answer, to_paste(settings_file(answer)) if yaml else _picture(answer))


@backend_command(apps, "list")
async def list_apps(backend: Backend, org: OrgArgument) -> Outcome:
    """Show every app of an organisation.

    [dim]pricekeeper app list $ORG[/dim]
    """
    found = await backend.admin.list_apps(org)
    frozen = _frozen_columns(found)
    rows = table(
        "app",
        "name",
        "order",
        "quotas a day",
        "sessions",
        *frozen,
        numbers=["quotas a day", "sessions"],
        wraps=["name", "order", FROZEN],
    )
    for app in found:
        settings = app["configuration"]
        rows.add_row(
            app["app_id"],
            app["app_name"],
            " > ".join(settings["model_ordering"]),
            usd(sum(settings["quotas"].values())),
            str(settings["session_limit"]),
            *_frozen_cells(frozen, app),
        )
    return Outcome(found, rows if found else Text("no apps; see 'pricekeeper app put --help'"))


@backend_command(
    apps, "delete", asks=lambda given: f"End the app {given['app']} of {given['org']}?"
)
async def delete_app(backend: Backend, org: OrgArgument, app: AppArgument) -> Outcome:
    """End an app; its tokens stop working at once.

    [dim]pricekeeper app delete $ORG chat --yes[/dim]
    """
    await backend.admin.delete_app(org, app)
    answer = {"org_id": org, "app_id": app, "status": "deleted"}
    return Outcome(answer, Text(f"{app} is no more"))


def client_of(org: str, app: str | None) -> Client:
    """The client that the command line names."""
    from pricekeeper.tenants import Client  # noqa: PLC0415  # --help needs none

    return Client(parse_org_id(org), None if app is None else parse_app_id(app))


def shared_fields(
    order: str | None,
    quota: list[str] | None,
    rate_limit: list[str] | None,
    session_limit: int | None,
    tight_pct: int | None,
) -> dict[str, Any]:
    """The flags that organisations and apps have in common, as fields."""
    return {
        "model_ordering": parse_order(order),
        "quotas": parse_quotas(quota),
        "rate_limits": parse_rate_limits(rate_limit),
        "session_limit": session_limit,
        "tight_mode_threshold_pct": tight_pct,
    }


def _frozen_columns(found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A column for freezes, where there is one."""
    return (FROZEN,) if any("frozen" in one for one in found) else ()


def _frozen_cells(columns: Sequence[str], one: Mapping[str, Any]) -> tuple[Text | str, ...]:
    """What such a column says of one organisation or app."""
    return tuple(frozen_since(one["frozen"]) if "frozen" in one else "" for _ in columns)


def _picture(answer: Mapping[str, Any]) -> RenderableType:
    """An organisation or app with all that holds for it."""
    settings = answer["configuration"]
    inherited = set(answer.get("inherited_fields", ()))
    name = answer.get("app_name") or answer["org_name"]
    status = f"  {answer['status']}" if "status" in answer else ""

    def line(field: str, text: str) -> Text:
        return Text.assemble(text, ("  inherited", "dim") if field in inherited else "")

    about: dict[str, str | Text] = {"organisation": answer["org_id"]}
    if "app_id" in answer:
        about["app"] = answer["app_id"]
    about |= {
        "client id": answer["client_id"],
        "timezone": settings["timezone"],
        "quota scope": settings["quota_scope"],
        "order": line("model_ordering", " > ".join(settings["model_ordering"])),
        "quotas a day": line(
            "quotas", "  ".join(f"{label} {usd(n)}" for label, n in settings["quotas"].items())
        ),
        "rate limits": line("rate_limits", rate_limits(settings["rate_limits"]) or "none"),
        "sessions": line("session_limit", f"{settings['session_limit']} at most"),
        "tight from": line("tight_mode_threshold_pct", f"{settings['tight_mode_threshold_pct']} %"),
    }
    if enforcement := settings.get("quota_enforcement"):
        about["quotas are"] = enforcement
    if listed := settings.get("budgets"):
        about["budgets"] = budgets(listed)
    if tag_keys := settings.get("tag_keys"):
        about["totals by tag"] = ", ".join(tag_keys)
    if frozen := answer.get("frozen"):
        about["frozen"] = frozen_since(frozen)
    heading = Text.assemble((harmless(name), "bold"), (harmless(status), "green"))
    return page(heading, facts(about), *claim_hint(answer.get("secret_retrieval")))
