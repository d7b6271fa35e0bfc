"""``pricekeeper org set`` and ``pricekeeper app set``: change some settings, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import (
    AppArgument,
    NameOption,
    OrgArgument,
    ScopeOption,
    TimezoneOption,
    apps,
    orgs,
    shared_fields,
)
from pricekeeper.cli.command import Outcome, backend_command
from pricekeeper.cli.differences import differences, drawn_changes, lines_in_force
from pricekeeper.cli.drawing import page
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.settings_input import (
    AdvisoryOption,
    BudgetOption,
    NoBudgetOption,
    NoQuotaOption,
    NoRateLimitOption,
    OrderOption,
    QuotaOption,
    RateLimitOption,
    Removals,
    SessionLimitOption,
    StrictOption,
    TagKeysOption,
    TightOption,
    UnsetOption,
    parse_budgets,
    parse_enforcement,
    parse_tag_keys,
    settings_patch,
)
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import ConflictError, PriceKeeperError
from pricekeeper.values import settings_tag

__all__ = ["apps", "orgs"]

ATTEMPTS_MAX: Final = 24
"""How often settings are read anew that others keep changing."""
Json: TypeAlias = dict[str, Any]


@backend_command(orgs, "set")
async def set_org(
    backend: Backend,
    org: OrgArgument,
    *,
    name: NameOption = None,
    timezone: TimezoneOption = None,
    scope: ScopeOption = None,
    order: OrderOption = None,
    quota: QuotaOption = None,
    no_quota: NoQuotaOption = None,
    rate_limit: RateLimitOption = None,
    no_rate_limit: NoRateLimitOption = None,
    budget: BudgetOption = None,
    no_budget: NoBudgetOption = None,
    session_limit: SessionLimitOption = None,
    tight_pct: TightOption = None,
    tag_keys: TagKeysOption = None,
    strict: StrictOption = False,
    advisory: AdvisoryOption = False,
    unset: UnsetOption = None,
) -> Outcome:
    """Change some settings of an organisation; whatever no flag names stays as it is.

    [dim]pricekeeper org set $ORG --quota premium=75[/dim]

    [dim]pricekeeper org set $ORG --budget monthly=MONTH:200 --strict --unset session_limit[/dim]
    """
    given = {
        "org_name": name,
        "timezone": timezone,
        "quota_scope": scope,
        "tag_keys": parse_tag_keys(tag_keys),
        "budgets": parse_budgets(budget),
        "quota_enforcement": parse_enforcement(strict=strict, advisory=advisory),
        **shared_fields(order, quota, rate_limit, session_limit, tight_pct),
    }
    removals = Removals(unset or (), no_quota or (), no_rate_limit or (), no_budget or ())
    admin = backend.admin
    before, answer = await _change(
        lambda: admin.get_org(org),
        lambda read, tag: admin.patch_org(org, settings_patch(read, given, removals), tag=tag),
    )
    return Outcome(answer, _picture(before, answer, f"org get {org}"))


@backend_command(apps, "set")
async def set_app(
    backend: Backend,
    org: OrgArgument,
    app: AppArgument,
    *,
    name: NameOption = None,
    order: OrderOption = None,
    quota: QuotaOption = None,
    no_quota: NoQuotaOption = None,
    rate_limit: RateLimitOption = None,
    no_rate_limit: NoRateLimitOption = None,
    budget: BudgetOption = None,
    no_budget: NoBudgetOption = None,
    session_limit: SessionLimitOption = None,
    tight_pct: TightOption = None,
    unset: UnsetOption = None,
) -> Outcome:
    """Change some settings of an app; whatever no flag names stays as it is.

    If a flag changes a quota or a rate limit that the app inherits, all of its quotas or limits
    become its own, the others with what they are now. --unset lets the app inherit again.

    [dim]pricekeeper app set $ORG chat --quota premium=2[/dim]

    [dim]pricekeeper app set $ORG chat --budget daily=DAY:5 --no-budget hourly --unset quotas[/dim]
    """
    given = {
        "app_name": name,
        "budgets": parse_budgets(budget),
        **shared_fields(order, quota, rate_limit, session_limit, tight_pct),
    }
    removals = Removals(unset or (), no_quota or (), no_rate_limit or (), no_budget or ())
    admin = backend.admin
    before = await admin.get_app(org, app)
    if (quota or no_quota) and before["configuration"]["quota_scope"] == "ORG":
        raise MisusedError(
            "--quota: the apps of this organisation spend from its quotas, and their own do not "
            f"count; change those with 'pricekeeper org set {org}', or its scope with --scope APP"
        )
    before, answer = await _change(
        lambda: admin.get_app(org, app),
        lambda read, tag: admin.patch_app(org, app, settings_patch(read, given, removals), tag=tag),
    )
    return Outcome(answer, _picture(before, answer, f"app get {org} {shlex.quote(app)}"))


async def _change(
    read: Callable[[], Awaitable[Json]], patch: Callable[[Json, str], Awaitable[Json]]
) -> tuple[Json, Json]:
    """Change settings as they are: if others change them meanwhile, they are read again.

    A list of budgets is replaced as a whole, so what another has added must not be missing in it.
    Returns the settings before and after.
    """
    before, attempts = await read(), 1
    while True:
        tag = settings_tag(before)
        try:
            return before, await patch(before, tag)
        except PriceKeeperError as error:
            if error.code != ConflictError.code or attempts == ATTEMPTS_MAX:
                raise
            before, attempts = await read(), attempts + 1
            if settings_tag(before) == tag:  # it is refused for another reason
                raise


def _picture(before: Mapping[str, Any], after: Mapping[str, Any], look: str) -> RenderableType:
    """What changed, and what to do next."""
    changes = differences(lines_in_force(before), lines_in_force(after))
    name = after.get("app_name") or after["org_name"]
    heading = Text.assemble(("✓ ", "green"), (harmless(name), "bold"), f"  {after['client_id']}")
    if not changes:
        return page(heading, Text("it was so already; nothing changed"))
    return page(heading, drawn_changes(changes), *_next_steps(before, after, look))


def _next_steps(
    before: Mapping[str, Any], after: Mapping[str, Any], look: str
) -> Iterator[RenderableType]:
    """How to undo what became the app's own, and where to look."""
    inherited = set(after.get("inherited_fields", ()))
    for field in before.get("inherited_fields", ()):
        if field not in inherited and field in ("quotas", "rate_limits"):
            undo = f"pricekeeper {look.replace('get', 'set', 1)} --unset {field}"
            title = field.replace("_", " ")
            yield Text(f"its {title} are its own now; to inherit them again: {undo}", "dim")
    yield Text(f"every instance follows within 30 s; next: pricekeeper {look}", "dim")
