"""``usage show --all``: what everybody has spent today, by name.

One request for an organisation, and one for each of its apps if these have quotas of their own.
So the number of organisations has a bound, and who wants more goes on behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import client_of
from pricekeeper.cli.drawing import STATUS_STYLES, Section, pct_bar, usd
from pricekeeper.cli.exits import unless_missing
from pricekeeper.cli.listing import Listing, table

if TYPE_CHECKING:
    from pricekeeper.cli.backends import AnyAdmin

ORGS_MAX: Final = 1_000
ORGS_DEFAULT: Final = 100

_PAGE_MAX: Final = 100
_EMPTY_PAGES_MAX: Final = 1_000
"""A page may be empty and have a next one, if what was on it has been deleted."""


async def read_overview(backend: Backend, limit: int, after: str | None) -> dict[str, Any]:
    """At most so many organisations, each with its apps; ``next`` is where to go on."""
    listed, behind = await _read_orgs(backend.admin, limit, after)
    orgs = [entry for org in listed if (entry := await _read_org(backend, org)) is not None]
    return {"orgs": orgs, "next": behind}


async def _read_orgs(
    admin: AnyAdmin, limit: int, after: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    found: list[dict[str, Any]] = []
    for _ in range(_EMPTY_PAGES_MAX):
        wanted = min(_PAGE_MAX, limit - len(found))
        orgs, after = await admin.page_orgs(after=after, limit=wanted)
        found += orgs
        if after is None or len(found) >= limit:
            break
    return found, after


async def _read_org(backend: Backend, org: Mapping[str, Any]) -> dict[str, Any] | None:
    """An organisation and its apps; ``None`` if it was deleted meanwhile."""
    org_id = org["org_id"]
    day = await _read_day(backend, org_id)
    if day is None:
        return None
    apps: list[dict[str, Any]] = []
    if day["quota_scope"] == "APP":
        for app in await backend.admin.list_apps(org_id):
            app_day = await _read_day(backend, org_id, app["app_id"])
            if app_day is not None:
                names = {"app_id": app["app_id"], "app_name": app["app_name"]}
                apps.append({**names, **_totals(app_day)})
    return {
        "org_id": org_id,
        "org_name": org["org_name"],
        "date": day["date"],
        "quota_scope": day["quota_scope"],
        **_totals(day),
        "apps": apps,
    }


async def _read_day(
    backend: Backend, org_id: str, app_id: str | None = None
) -> dict[str, Any] | None:
    keeper = backend.reader(client_of(org_id, app_id))
    return await unless_missing(keeper.usage(waits_for_limit=True))


def _totals(day: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cost_usd_micros", "quota_usd_micros", "quota_pct", "quota_status")
    return {
        "total_cost_usd_micros": day["total_cost_usd_micros"],
        "total_quota_usd_micros": day["total_quota_usd_micros"],
        "models": {
            label: {name: model[name] for name in names} for label, model in day["models"].items()
        },
    }


def draw_overview(overview: Mapping[str, Any]) -> RenderableType:
    """A row for each label of each client, under the names that people use."""
    rows = table(
        "organisation", "app", "model", "spent", "quota", "", "",
        numbers=["spent", "quota"], wraps=["organisation", "app"],
    )  # fmt: skip
    for number, org in enumerate(overview["orgs"]):
        if number:
            rows.add_section()
        _draw_client(rows, org["org_name"], "", org["models"])
        for app in org["apps"]:
            _draw_client(rows, org["org_name"], app["app_name"], app["models"])
    spent = sum(org["total_cost_usd_micros"] for org in overview["orgs"])
    heading = Text.assemble(
        (usd(spent), "bold"), f" today, by {len(overview['orgs'])} organisations"
    )
    return Section(heading, rows, *_more(overview["next"]))


def _draw_client(
    rows: Listing, org_name: str, app_name: str, models: Mapping[str, Mapping[str, Any]]
) -> None:
    for label, model in models.items():
        style = STATUS_STYLES[model["quota_status"]]
        rows.add_row(
            org_name,
            app_name,
            label,
            usd(model["cost_usd_micros"]),
            usd(model["quota_usd_micros"]),
            pct_bar(model["quota_pct"], style),
            Text(f"{model['quota_pct']:.1f} %", style, justify="right"),
        )


def _more(behind: str | None) -> Iterable[RenderableType]:
    if behind is not None:
        yield Text(f"there are more: pricekeeper usage show --all --after {behind}", "yellow")
