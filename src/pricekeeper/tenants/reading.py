"""Reads clients: the policy in force, from the cache or the store, and pages of all clients.

A cached policy also tells whether its client exists, which every instance must know within 30 s.
Listing takes queries, never a scan. A page leaves out deleted and unreadable clients (reported), so
it may be empty and have a next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.concurrency import ReadCache, Reading, SingleFlight
from pricekeeper.errors import InvalidValueError, NotFoundError, UnreadableItemError
from pricekeeper.storage import Item, Query, Store, query_items
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.policy import Life, Policy
from pricekeeper.tenants.stored_settings import org_settings
from pricekeeper.values import AppId, OrgId

POLICY_AGE_MS_MAX: Final = 29_000
"""Conclusions from a policy are used for another second."""
POLICIES_MAX: Final = 10_000
PAGE_MAX: Final = 100
_Id = TypeVar("_Id", OrgId, AppId)


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client's items, as one read found them."""

    client: Client
    item: Item = field(repr=False)
    org_item: Item = field(repr=False)
    reading: Reading = field(repr=False)

    @property
    def life(self) -> Life:
        return items.life_of(self.item)


@dataclass(frozen=True, slots=True)
class ClientPage(Generic[_Id]):
    """A page of organisations or apps; ``after`` is ``None`` at the end."""

    policies: tuple[Policy, ...]
    after: _Id | None
    unreadable: tuple[UnreadableItemError, ...] = ()
    """One for each unreadable app, for callers that need all apps."""


class ClientReader:
    """Reads the clients of one store; `Tenants` also changes them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._cache: ReadCache[Client, Policy] = ReadCache(
            clock.monotonic_ms, POLICY_AGE_MS_MAX, POLICIES_MAX
        )
        self.recall_policy = self._cache.get
        # Keyed also by the changes so far: a read from before a change is not shared after it.
        self._reads: SingleFlight[tuple[int, Client, bool], Policy] = SingleFlight(
            "pricekeeper-policy"
        )

    async def read_record(self, client: Client) -> ClientRecord:
        """Read the client with one store call, never from the cache."""
        reading = self._cache.reading()
        org, app = await self._read(client)
        own = org if client.app_id is None else app
        if org is None or own is None or (app is not None and not items.is_app_of(app, org)):
            self._cache.drop(client)
            raise NotFoundError(client.client_id)
        return ClientRecord(client, own, org, reading)

    def policy_of(self, record: ClientRecord) -> Policy:
        """Return the policy of a record that was read just now, and cache it."""
        policy = items.policy_of(record.client, record.org_item, record.item)
        self._cache.keep(record.client, policy, record.reading)
        return policy

    async def read_registered_policy(self, client: Client) -> Policy:
        """Read the policy of a client that has credentials, never from the cache."""
        return self.policy_of(await self.read_record(client))

    async def find_policy(self, org_id: OrgId, app_id: AppId | None = None) -> Policy:
        """Find the policy, at most 30 s old; changes made here are seen at once.

        Raises `NotFoundError`. An app that is not registered may have its organisation's settings.
        """
        client = Client(org_id, app_id)
        cached = self._cache.get(client)
        if cached is not None:
            return cached
        key = (self._cache.changes, client, False)
        return await self._reads.run(key, lambda: self.read_policy(client))

    async def find_registered_policy(self, org_id: OrgId, app_id: AppId | None = None) -> Policy:
        client = Client(org_id, app_id)
        cached = self._cache.get(client)
        if cached is not None and cached.is_registered:
            return cached
        key = (self._cache.changes, client, True)
        return await self._reads.run(key, lambda: self.read_registered_policy(client))

    async def read_policy(self, client: Client) -> Policy:
        reading = self._cache.reading()
        org, app = await self._read(client)
        policy = _policy_of(client, org, app)
        if policy is None:
            self._cache.drop(client)
            raise NotFoundError(client.client_id)
        self._cache.keep(client, policy, reading)
        return policy

    @property
    def changes(self) -> int:
        """The number of changes made here; a conclusion from before one may be wrong."""
        return self._cache.changes

    def forget(self, client: Client) -> None:
        """Remove a changed client from the cache; with an organisation, its apps."""
        self._cache.forget(client)
        if client.app_id is None:
            for known in [known for known in self._cache if known.org_id == client.org_id]:
                self._cache.drop(known)

    async def list_orgs(
        self,
        after: OrgId | None = None,
        limit: int = PAGE_MAX,
        *,
        among: Collection[OrgId] | None = None,
    ) -> ClientPage[OrgId]:
        """List all organisations, or those of ``among`` that exist, sorted by id.

        A page takes one read, and a query without ``among``.
        """
        _check_limit(limit)
        if among is None:
            query = Query(CONFIG, items.INDEX_PK, after=after or "", limit=limit)
            page = await self._store.query(query)
            org_ids, last = [OrgId(entry["SK"]) for entry in page.items], page.after
        else:
            rest = sorted(org_id for org_id in among if org_id > (after or ""))
            org_ids, last = rest[:limit], rest[limit - 1] if len(rest) > limit else ""
        found = await _read_orgs(self._store, org_ids)
        policies, _ = _readable([(Client(org_id), org, org) for org_id, org in found])
        return ClientPage(policies, OrgId(last) if last else None)

    async def list_org_ids(self, among: Collection[OrgId] | None = None) -> list[OrgId]:
        return await list_org_ids(self._store, among)

    async def list_apps(
        self, org_id: OrgId, after: AppId | None = None, limit: int = PAGE_MAX
    ) -> ClientPage[AppId]:
        """List the apps of an organisation, sorted by id: one read and one query a page."""
        _check_limit(limit)
        client = Client(org_id)
        org = await self._store.get(CONFIG, items.config_key(client))
        if org is None:
            raise NotFoundError(client.client_id)
        behind = "" if after is None else items.app_sort_key(after)
        page = await self._store.query(items.apps_query(client, behind, limit))
        org_settings(org)  # if it can't be read, neither can the policy of any app
        policies, unreadable = _readable(
            (items.app_of(org_id, app["SK"]), org, app)
            for app in page.items
            if items.is_app_of(app, org)
        )
        last = items.app_of(org_id, page.after).app_id if page.after else None
        return ClientPage(policies, last, unreadable)

    async def read_all(self) -> AsyncIterator[Policy]:
        """Read every readable client: each organisation, followed by its apps."""
        async for orgs in read_pages(self.list_orgs):
            for org in orgs.policies:
                yield org
                with suppress(NotFoundError):  # it was deleted meanwhile
                    async for apps in read_pages(partial(self.list_apps, org.org_id)):
                        for app in apps.policies:
                            yield app

    async def _read(self, client: Client) -> tuple[Item | None, Item | None]:
        if client.app_id is None:
            return (await self._store.batch_get([(CONFIG, items.config_key(client))]))[0], None
        org, app = await self._store.batch_get(
            [(CONFIG, items.config_key(client.org)), (CONFIG, items.config_key(client))]
        )
        return org, app


async def read_pages(
    read_page: Callable[[Any], Awaitable[ClientPage[_Id]]], after: Any = None
) -> AsyncIterator[ClientPage[_Id]]:
    """Read all pages; each begins behind the one before, so this ends."""
    while True:
        page = await read_page(after)
        yield page
        after = page.after
        if after is None:
            return


async def list_org_ids(store: Store, among: Collection[OrgId] | None = None) -> list[OrgId]:
    """List ids without reading the settings, which may be unreadable."""
    if among is not None:
        return [org_id for org_id, _ in await _read_orgs(store, sorted(among))]
    entries = query_items(store, Query(CONFIG, items.INDEX_PK))
    return [OrgId(entry["SK"]) async for entry in entries]


async def _read_orgs(store: Store, org_ids: Sequence[OrgId]) -> list[tuple[OrgId, Item]]:
    keys = [(CONFIG, items.config_key(Client(org_id))) for org_id in org_ids]
    found = await store.batch_get(keys)
    return [(org_id, org) for org_id, org in zip(org_ids, found, strict=True) if org]


def _policy_of(client: Client, org: Item | None, app: Item | None) -> Policy | None:
    if org is None:
        return None
    if client.app_id is None:
        return items.policy_of(client, org, org)
    if app is not None and items.is_app_of(app, org):
        return items.policy_of(client, org, app)
    return items.policy_without_item(client, org)


def _readable(
    found: Iterable[tuple[Client, Item, Item]],
) -> tuple[tuple[Policy, ...], tuple[UnreadableItemError, ...]]:
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
