"""Listing organisations and apps, page by page: queries, never a scan.

A page may hold fewer entries than were asked for, even none, and still have a next one: clients
that are deleted while the page is read are left out. So are clients whose items can't be read,
which is reported; ``unreadable`` lists their keys, for callers that need all clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pricekeeper.client_ids import Client
from pricekeeper.errors import InvalidValueError, NotFoundError, UnreadableItemError
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items, stored_settings
from pricekeeper.tenants.policy import Policy
from pricekeeper.values import AppId, OrgId

PAGE_MAX: Final = 100
_Page = TypeVar("_Page", bound="OrgPage | AppPage")


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
    unreadable: tuple[UnreadableItemError, ...] = ()
    """The apps that are left out because their items can't be read."""


async def read_pages(
    read_page: Callable[[Any], Awaitable[_Page]], after: Any = None
) -> AsyncIterator[_Page]:
    """Every page from there on. It ends, because each begins behind the one before."""
    while True:
        page = await read_page(after)
        yield page
        after = page.after
        if after is None:
            return


async def list_orgs(
    store: Store, after: OrgId | None, limit: int, among: Collection[OrgId] | None = None
) -> OrgPage:
    """One read of the organisations on the page; which they are takes a query, unless it is said.

    ``among`` are those that the page is to be made of, whether they exist or not.
    """
    _check_limit(limit)
    if among is None:
        page = await store.query(Query(CONFIG, items.INDEX_PK, after=after or "", limit=limit))
        org_ids, behind_page = [OrgId(entry["SK"]) for entry in page.items], page.after
    else:
        rest = sorted(org_id for org_id in among if org_id > (after or ""))
        org_ids, behind_page = rest[:limit], rest[limit - 1] if len(rest) > limit else ""
    found = await _read_orgs(store, org_ids)
    policies, _ = _readable([(Client(org_id), org, org) for org_id, org in found])
    return OrgPage(policies, OrgId(behind_page) if behind_page else None)


async def list_org_ids(store: Store, among: Collection[OrgId] | None = None) -> list[OrgId]:
    """Every organisation there is, or those of ``among``; also if its settings can't be read."""
    if among is not None:
        return [org_id for org_id, _ in await _read_orgs(store, sorted(among))]
    entries = query_items(store, Query(CONFIG, items.INDEX_PK))
    return [OrgId(entry["SK"]) async for entry in entries]


async def _read_orgs(store: Store, org_ids: Sequence[OrgId]) -> list[tuple[OrgId, Item]]:
    """Those that exist, with their items."""
    keys = [(CONFIG, items.config_key(Client(org_id))) for org_id in org_ids]
    found = await store.batch_get(keys)
    return [(org_id, org) for org_id, org in zip(org_ids, found, strict=True) if org]


async def list_apps(store: Store, org_id: OrgId, after: AppId | None, limit: int) -> AppPage:
    """One read of the organisation, and one query of its apps."""
    _check_limit(limit)
    client = Client(org_id)
    org = await store.get(CONFIG, items.config_key(client))
    if org is None:
        raise NotFoundError(client.client_id)
    behind = "" if after is None else items.app_sort_key(after)
    page = await store.query(items.apps_query(client, behind, limit))
    stored_settings.org_settings(org)  # if it can't be read, neither can the policy of any app
    policies, unreadable = _readable(
        [
            (items.app_of(org_id, app["SK"]), org, app)
            for app in page.items
            if items.is_app_of(app, org)
        ]
    )
    behind_page = items.app_of(org_id, page.after).app_id if page.after else None
    return AppPage(policies, behind_page, unreadable)


def _readable(
    found: Iterable[tuple[Client, Item, Item]],
) -> tuple[tuple[Policy, ...], tuple[UnreadableItemError, ...]]:
    """The policies of those clients whose items can be read, and why the others' can't."""
    policies, unreadable = [], []
    for client, org, own in found:
        try:
            policies.append(items.policy_of(client, org, own))
        except UnreadableItemError as error:
            unreadable.append(error)
    return tuple(policies), tuple(unreadable)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidValueError("limit", f"must be from 1 to {PAGE_MAX}")
