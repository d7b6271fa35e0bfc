"""``pricekeeper org set`` and ``pricekeeper app set``: change some settings, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import AppArgument, OrgArgument, apps, orgs
from pricekeeper.cli.command import Output, backend_command
from pricekeeper.cli.differences import differences, drawn_changes, lines_in_force
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.exits import MisusedError
from pricekeeper.cli.settings_input import AppFlags, OrgFlags, Removals, settings_patch
from pricekeeper.cli.terminal import harmless
from pricekeeper.errors import ConflictError, PriceKeeperError
from pricekeeper.values import settings_tag

__all__ = ["apps", "orgs"]

ATTEMPTS_MAX: Final = 24
"""How often settings are read anew that others keep changing."""
Json: TypeAlias = dict[str, Any]


@backend_command(orgs, "set")
async def set_org(
    backend: Backend, org: OrgArgument, *, flags: OrgFlags, removals: Removals
) -> Output:
    """Change some settings of an organisation; whatever no flag names stays as it is.

    [dim]pricekeeper org set $ORG --quota premium=75[/dim]

    [dim]pricekeeper org set $ORG --budget monthly=MONTH:200 --strict --unset session_limit[/dim]
    """
    admin, given = backend.admin, flags.fields()
    before, answer = await _change(
        lambda: admin.get_org(org),
        lambda read, tag: admin.patch_org(org, settings_patch(read, given, removals), tag=tag),
    )
    return Output(answer, _picture(before, answer, f"org get {org}"))


@backend_command(apps, "set")
async def set_app(
    backend: Backend, org: OrgArgument, app: AppArgument, *, flags: AppFlags, removals: Removals
) -> Output:
    """Change some settings of an app; whatever no flag names stays as it is.

    If a flag changes a quota or a rate limit that the app inherits, all of its quotas or limits
    become its own, the others with what they are now. --unset lets the app inherit again.

    [dim]pricekeeper app set $ORG chat --quota premium=2[/dim]

    [dim]pricekeeper app set $ORG chat --budget daily=DAY:5 --no-budget hourly --unset quotas[/dim]
    """
    admin, given = backend.admin, flags.fields()
    before = await admin.get_app(org, app)
    if (flags.quota or removals.quotas) and before["configuration"]["quota_scope"] == "ORG":
        raise MisusedError(
            "--quota: the apps of this organisation spend from its quotas, and their own do not "
            f"count; change those with 'pricekeeper org set {org}', or its scope with --scope APP"
        )
    before, answer = await _change(
        lambda: admin.get_app(org, app),
        lambda read, tag: admin.patch_app(org, app, settings_patch(read, given, removals), tag=tag),
    )
    return Output(answer, _picture(before, answer, f"app get {org} {shlex.quote(app)}"))


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
        return Section(heading, Text("it was so already; nothing changed"))
    return Section(heading, drawn_changes(changes), *_next_steps(before, after, look))


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
