"""``adopt``: take over the organisations of another service."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import Facts, Section, usd
from pricekeeper.cli.opening import open_local_store
from pricekeeper.cli.options import argument, option
from pricekeeper.clock import SystemClock
from pricekeeper.errors import InvalidValueError
from pricekeeper.settings import Settings, parse_store_location
from pricekeeper.values import parse_app_id, parse_org_id

top = typer.Typer()


@store_command(top, "adopt")
async def adopt(
    settings: Settings,
    orgs: Annotated[list[str], argument("ORG...", "The organisations' ids.")],
    *,
    source: Annotated[str, option("--from URL", "The other service's store; it is only read.")],
    apps: Annotated[
        list[str] | None,
        option("--app APP", "An app that has usage and no settings of its own; may be repeated."),
    ] = None,
) -> Output:
    """Take over organisations from another service with the schema document's tables.

    Copies usage, fallbacks and overrides of today, settings and credentials. Safe to repeat: it
    never counts usage twice. Run it once while the other service is running, and again after it
    has stopped.

    [dim]pricekeeper adopt $ORG --from "dynamodb://eu-central-1?prefix=old-"[/dim]
    """
    from pricekeeper.adoption import Adopter  # noqa: PLC0415
    from pricekeeper.pricing import load_catalogue, split_micros  # noqa: PLC0415

    other = replace(settings, store=parse_store_location(source))
    if other.store == settings.store:
        raise InvalidValueError("--from", "is this store; give ours another file or table prefix")
    wanted = [parse_org_id(org) for org in orgs]
    more_apps = [parse_app_id(app) for app in apps or ()]
    labels = load_catalogue(settings.config_path).labels
    async with (
        open_local_store(settings) as store,
        open_local_store(other, any_format=True) as theirs,
    ):
        adopter = Adopter(
            theirs, store, SystemClock(), retention_days=settings.retention_days, labels=labels
        )
        adoptions = [await adopter.adopt(org_id, more_apps) for org_id in wanted]
    sections = [
        Section(
            Text(f"adopted {one.org_id}", "bold green"),
            Facts(
                {
                    "organisation and apps added": f"{one.clients_added} of {one.apps + 1}",
                    "daily totals changed": f"{one.accounts_changed} of {one.accounts}",
                    "cost adopted in all": usd(split_micros(one.cost_usd_picos)[0]),
                    "fallbacks and overrides added": str(one.sticky_added),
                }
            ),
        )
        for one in adoptions
    ]
    next_step = Text("next: stop the other service, run this again, then: pricekeeper serve", "dim")
    return Output({"adopted": adoptions}, Section(Text("adoption"), *sections, next_step))
