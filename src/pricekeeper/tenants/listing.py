"""Listing organisations and apps, page by page: queries, never a scan.

A page may hold fewer entries than were asked for, even none, and still have a next one:
whoever was deleted while the page was read is left out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.errors import InvalidValueError, NotFoundError
from pricekeeper.storage import Query, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.client import Client
from pricekeeper.tenants.policy import Policy
from pricekeeper.values import AppId, OrgId

PAGE_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OrgPage:
    """Some organisations; ``after`` is where to go on, ``None`` at the end."""

    policies: tuple[Policy, ...]
    after: OrgId | None


@dataclass(frozen=True, slots=True)
class AppPage:
    """Some apps; ``after`` is where to go on, ``None`` at the end."""

    policies: tuple[Policy, ...]
    after: AppId | None


async def list_orgs(store: Store, after: OrgId | None, limit: int) -> OrgPage:
    """One query of the list of organisations, and one read of those on the page."""
    page = await store.query(
        Query(CONFIG, items.INDEX_PK, after=after or "", limit=_checked(limit))
    )
    clients = [Client(OrgId(entry["SK"])) for entry in page.items]
    found = await store.batch_get([(CONFIG, items.config_key(client)) for client in clients])
    policies = tuple(
        items.policy_of(client, org, org)
        for client, org in zip(clients, found, strict=True)
        if org is not None
    )
    return OrgPage(policies, OrgId(page.after) if page.after else None)


async def list_apps(store: Store, org_id: OrgId, after: AppId | None, limit: int) -> AppPage:
    """One read of the organisation, and one query of its apps."""
    client = Client(org_id)
    org = await store.get(CONFIG, items.config_key(client))
    if org is None:
        raise NotFoundError(client.client_id)
    behind = "" if after is None else items.app_sort_key(after)
    page = await store.query(items.apps_query(client, behind, _checked(limit)))
    policies = tuple(
        items.policy_of(items.app_of(org_id, app["SK"]), org, app)
        for app in page.items
        if items.is_app_of(app, org)
    )
    return AppPage(policies, items.app_of(org_id, page.after).app_id if page.after else None)


def _checked(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidValueError("limit", f"must be from 1 to {PAGE_MAX}")
    return limit
