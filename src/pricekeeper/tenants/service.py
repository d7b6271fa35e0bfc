"""Organisations and apps: create or update, read, list, delete, and the policy in force.

Every change is made with its entry in the audit trail, which also says after a lost reply whether
it was made. Where that can't be seen the `OutcomeUnknownError` goes to the caller, who can send
the same request again without harm: updates replace, a patch that is applied twice is the same
patch, and credentials are never touched by them.

Deleting an organisation is one transaction however many apps it has. Its apps' items name the
incarnation they were created under, so from that moment they count for nothing, also if the
organisation is created again; removing them afterwards is cleaning up, in bounded steps that
any later call can finish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.concurrency import SingleFlight
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.storage import ITEM_ABSENT, Action, Check, Item, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import freezing, items, stored_settings
from pricekeeper.tenants.cache import PolicyCache, Reading
from pricekeeper.tenants.ending import end_app, end_org, sweep_apps
from pricekeeper.tenants.freeze import Freeze
from pricekeeper.tenants.generations import start_generation, update_alone
from pricekeeper.tenants.listing import (
    PAGE_MAX,
    AppPage,
    OrgPage,
    list_apps,
    list_org_ids,
    list_orgs,
    read_pages,
)
from pricekeeper.tenants.meter import TenantsMeter
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.tenants.patching import patched_body
from pricekeeper.tenants.policy import Life, Policy
from pricekeeper.tenants.raising import BudgetRule
from pricekeeper.tenants.saving import Creation, Enrolment, SettingsWriter
from pricekeeper.values import AppId, ModelLabel, OrgId

ATTEMPTS_MAX: Final = 8
PATCH_ATTEMPTS_MAX: Final = 24
"""More than for what replaces: a patch that another write came before has to be made anew."""


def _accept_any(_: Policy) -> None:
    return


@dataclass(frozen=True, slots=True)
class Saved:
    """A client was created or updated, and this is what holds for it now."""

    created: bool
    policy: Policy


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client as the store had it at one moment; `Tenants.policy_of` says what holds for it."""

    client: Client
    item: Item = field(repr=False)
    """The client's own item."""
    org_item: Item = field(repr=False)
    reading: Reading = field(repr=False)

    @property
    def life(self) -> Life:
        return items.life_of(self.item)


class Tenants:
    """The organisations and apps in one store; ``labels`` are the deployment's model labels."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        labels: Collection[ModelLabel],
        *,
        trail: AuditTrail | None = None,
        orgs_set_budgets: bool = False,
    ) -> None:
        """``orgs_set_budgets``: whether an organisation's administrators raise its budgets."""
        self._store = store
        self._clock = clock
        self._trail = trail or AuditTrail(store, clock)
        self._labels = frozenset(labels)
        self._cache = PolicyCache(clock)
        self.budget_rule = BudgetRule(orgs_set_budgets=orgs_set_budgets)
        self._writer = SettingsWriter(store, clock, self._trail, self._cache, self.budget_rule)
        self._reads: SingleFlight[tuple[int, Client, bool], Policy] = SingleFlight(
            "pricekeeper-policy"
        )
        """By how much had changed, whose policy it is, and whether it has to be registered."""
        self.meter = TenantsMeter()
        """Organisations and apps that this instance has ended, with everything issued to them."""

    async def put_org(
        self,
        org_id: OrgId,
        body: Mapping[str, Any],
        by: Attribution,
        enrolment: Enrolment | None = None,
    ) -> Saved:
        """Create the organisation, or replace its settings; credentials are left alone."""
        client = Client(org_id)
        for _ in range(ATTEMPTS_MAX):
            current = await self._store.get(CONFIG, items.config_key(client))
            if current is None:
                settings = parse_org_settings(body, self._labels)
                item = items.new_item(client, settings, self._writer.new_life())
                created = Creation(client, settings, item, ITEM_ABSENT, items.index_put(client))
                if await self._writer.create(created, by, enrolment):
                    return Saved(created=True, policy=items.policy_of(client, item, item))
            else:
                # Of what is there, only this has to be readable: the rest is being replaced.
                shard_count = stored_settings.shard_count_of(current)
                settings = parse_org_settings(body, self._labels, shard_count)
                if updated := await self._writer.update(client, settings, current, by):
                    if items.INCARNATION not in current:
                        await self._writer.add_to_index(client)
                    return Saved(created=False, policy=items.policy_of(client, updated, updated))
        return await self._read_winner(client)

    async def put_app(
        self,
        org_id: OrgId,
        app_id: AppId,
        body: Mapping[str, Any],
        by: Attribution,
        enrolment: Enrolment | None = None,
    ) -> Saved:
        """Create the app, or replace what it overrides; credentials are left alone."""
        client = Client(org_id, app_id)
        for _ in range(ATTEMPTS_MAX):
            org, app = await self._read(client)
            if org is None:
                raise NotFoundError(client.org.client_id)
            own_org = stored_settings.org_settings(org)
            settings = parse_app_settings(body, self._labels, own_org)
            org_life = items.life_of(org)
            if app is None or not items.is_app_of(app, org):
                item = items.new_item(
                    client, settings, self._writer.new_life(), org_life.incarnation
                )
                org_key = items.config_key(client.org)
                org_exists = Check(CONFIG, org_key, items.same_life(org_life))
                vacant = items.no_app_of(org_life)
                created = Creation(client, settings, item, vacant, org_exists, own_org)
                if await self._writer.create(created, by, enrolment):
                    return Saved(created=True, policy=items.policy_of(client, org, item))
            elif updated := await self._writer.update(client, settings, app, by):
                return Saved(created=False, policy=items.policy_of(client, org, updated))
        return await self._read_winner(client)

    async def patch_org(
        self,
        org_id: OrgId,
        patch: Mapping[str, Any],
        by: Attribution,
        check: Callable[[Policy], None] = _accept_any,
    ) -> Saved:
        """Change the settings of an organisation that the patch names, and no others.

        ``check`` refuses the change by an error, if the settings are not as somebody expects.
        """
        client = Client(org_id)
        for attempt in range(PATCH_ATTEMPTS_MAX):
            await self._writer.pause(attempt)
            org = (await self.read_record(client)).item
            check(items.policy_of(client, org, org))
            body = patched_body(stored_settings.org_settings(org), patch)
            settings = parse_org_settings(body, self._labels, stored_settings.shard_count_of(org))
            if updated := await self._writer.update(client, settings, org, by):
                if items.INCARNATION not in org:
                    await self._writer.add_to_index(client)
                return Saved(created=False, policy=items.policy_of(client, updated, updated))
        raise _contended(client)

    async def patch_app(
        self,
        org_id: OrgId,
        app_id: AppId,
        patch: Mapping[str, Any],
        by: Attribution,
        check: Callable[[Policy], None] = _accept_any,
    ) -> Saved:
        """Change what the patch names of that which an app overrides, and nothing else.

        ``check`` is as in `patch_org`.
        """
        client = Client(org_id, app_id)
        for attempt in range(PATCH_ATTEMPTS_MAX):
            await self._writer.pause(attempt)
            record = await self.read_record(client)
            org, app = record.org_item, record.item
            check(items.policy_of(client, org, app))
            body = patched_body(stored_settings.app_settings(app), patch)
            settings = parse_app_settings(body, self._labels, stored_settings.org_settings(org))
            if updated := await self._writer.update(client, settings, app, by):
                return Saved(created=False, policy=items.policy_of(client, org, updated))
        raise _contended(client)

    async def read_record(self, client: Client) -> ClientRecord:
        """The client as it is at this moment: one read, never from the cache."""
        reading = self._cache.reading()
        org, app = await self._read(client)
        own = org if client.app_id is None else app
        if org is None or own is None or (app is not None and not items.is_app_of(app, org)):
            self._cache.drop(client)
            raise NotFoundError(client.client_id)
        return ClientRecord(client, own, org, reading)

    def policy_of(self, record: ClientRecord) -> Policy:
        """The client's policy, which is cached until this read is too old."""
        policy = items.policy_of(record.client, record.org_item, record.item)
        self._cache.keep(policy, record.reading)
        return policy

    async def get(self, client: Client) -> Policy:
        """Read the policy of a registered client as it is at this moment."""
        return self.policy_of(await self.read_record(client))

    def recall_policy(self, client: Client) -> Policy | None:
        """What `find_policy` would find without asking the store, if there is that."""
        return self._cache.get(client)

    async def find_policy(self, org_id: OrgId, app_id: AppId | None = None) -> Policy:
        """The client's policy as of at most 30 s ago; changes made here are seen at once.

        Raises `NotFoundError` for a client that does not exist, or exists no more. An app that
        nobody has registered may have its organisation's settings: see `unregistered_policy`.
        """
        client = Client(org_id, app_id)
        cached = self._cache.get(client)
        if cached is not None:
            return cached
        # A read from before a change is not shared after it.
        key = (self._cache.changes, client, False)
        return await self._reads.run(key, lambda: self.read_policy(client))

    async def read_policy(self, client: Client) -> Policy:
        """Read the client's policy as it is at this moment: one read, never from the cache."""
        reading = self._cache.reading()
        org, app = await self._read(client)
        policy = _policy_of(client, org, app)
        if policy is None:
            self._cache.drop(client)
            raise NotFoundError(client.client_id)
        self._cache.keep(policy, reading)
        return policy

    async def find_registered_policy(self, org_id: OrgId, app_id: AppId | None = None) -> Policy:
        """As `find_policy`, for a client that was registered and has its own credentials."""
        client = Client(org_id, app_id)
        cached = self._cache.get(client)
        if cached is not None and cached.is_registered:
            return cached
        key = (self._cache.changes, client, True)
        return await self._reads.run(key, lambda: self.get(client))

    async def list_orgs(
        self,
        after: OrgId | None = None,
        limit: int = PAGE_MAX,
        *,
        among: Collection[OrgId] | None = None,
    ) -> OrgPage:
        """Organisations in the order of their ids, all or ``among`` some: one read a page.

        For all of them it takes a query besides.
        """
        return await list_orgs(self._store, after, limit, among)

    async def list_org_ids(self, among: Collection[OrgId] | None = None) -> list[OrgId]:
        """The ids of all organisations, or of those ``among`` some that exist, in order.

        One query for a thousand of all, or one read of these.
        """
        return await list_org_ids(self._store, among)

    async def list_apps(
        self, org_id: OrgId, after: AppId | None = None, limit: int = PAGE_MAX
    ) -> AppPage:
        """The apps of an organisation in the order of their ids: one read, one query a page."""
        return await list_apps(self._store, org_id, after, limit)

    async def read_all(self) -> AsyncIterator[Policy]:
        """Every client that can be read: each organisation, followed by its apps."""
        async for orgs in read_pages(self.list_orgs):
            for org in orgs.policies:
                yield org
                async for apps in read_pages(partial(self.list_apps, org.org_id)):
                    for app in apps.policies:
                        yield app

    async def delete_org(self, org_id: OrgId, by: Attribution) -> None:
        """End the organisation and all of its apps: at once, whatever is left to clean up.

        An organisation's own key does not if it, or an app of it, was frozen from above.
        """
        client = Client(org_id)
        org = await self._store.get(CONFIG, items.config_key(client))
        ended = False
        if org is not None:
            try:
                ended = await end_org(
                    self._store, self._trail, self._read_own_item, client, org, by
                )
            finally:
                self._cache.forget(client)
        self.meter.clients_deleted += ended
        self.meter.clients_deleted += await sweep_apps(self._store, client)
        if not ended:
            raise NotFoundError(client.client_id)

    async def delete_app(self, org_id: OrgId, app_id: AppId, by: Attribution) -> None:
        """End the app.

        An organisation's own key ends no app that was frozen from above, itself or with its
        organisation: it could create the app anew, without the freeze.
        """
        client = Client(org_id, app_id)
        record = await self.read_record(client)
        try:
            await end_app(
                self._trail, self._read_own_item, client, record.item, record.org_item, by
            )
        finally:
            self._cache.forget(client)
        self.meter.clients_deleted += 1

    async def end_tokens_issued_before_now(
        self,
        client: Client,
        *,
        also: Sequence[Action] = (),
        audited: tuple[Attribution, Change] | None = None,
    ) -> None:
        """Stop everything that was ever issued to the client from counting: one read, one write.

        ``also`` is changed on the client's item in the same write. ``audited`` is left out if the
        client itself does it. Repeating this after an `OutcomeUnknownError` does no harm: should
        the first write arrive late, it changes nothing.
        """
        alone = partial(update_alone, self._store)
        make = alone if audited is None else self._trail.maker(*audited)
        try:
            await start_generation(make, self._clock, self._read_own_item, client, also)
        finally:
            self._cache.forget(client)

    async def freeze(self, client: Client, by: Attribution) -> Freeze:
        """Keep the client from getting models and tokens, all apps of an organisation with it.

        Doing it again keeps the first moment and replaces the reason. `NotPermittedError` if an
        organisation's own key is to change what was frozen from above.
        """
        try:
            now_epoch = self._clock.now_ms() // 1000
            return await freezing.freeze(self._trail, self._read_own_item, client, by, now_epoch)
        finally:
            self._cache.forget(client)

    async def unfreeze(self, client: Client, by: Attribution) -> bool:
        """Lift the client's own freeze; whether there was one. An organisation's stays in force."""
        try:
            return await freezing.unfreeze(self._trail, self._read_own_item, client, by)
        finally:
            self._cache.forget(client)

    @property
    def changes(self) -> int:
        """How many changes were made here: whatever was concluded before one may be wrong."""
        return self._cache.changes

    def forget(self, client: Client) -> None:
        """Remove the client from the cache, because another module has changed its item."""
        self._cache.forget(client)

    async def _read_own_item(self, client: Client) -> Item:
        return (await self.read_record(client)).item

    async def _read(self, client: Client) -> tuple[Item | None, Item | None]:
        """The item of the organisation, and the app's if the client is one."""
        if client.app_id is None:
            return (await self._store.batch_get([(CONFIG, items.config_key(client))]))[0], None
        org, app = await self._store.batch_get(
            [(CONFIG, items.config_key(client.org)), (CONFIG, items.config_key(client))]
        )
        return org, app

    async def _read_winner(self, client: Client) -> Saved:
        """Read the settings that others wrote each time before this call could.

        Each of those writes came after this call began, so this one counts as having been made
        just before the last of them.
        """
        try:
            return Saved(created=False, policy=await self.get(client))
        except NotFoundError as error:
            raise ContendedError(f"{client.client_id}: created and deleted by others") from error


def _contended(client: Client) -> ContendedError:
    return ContendedError(f"{client.client_id}: others kept changing its settings")


def _policy_of(client: Client, org: Item | None, app: Item | None) -> Policy | None:
    """What holds for the client by these items; ``None`` if it does not exist."""
    if org is None:
        return None
    if client.app_id is None:
        return items.policy_of(client, org, org)
    if app is not None and items.is_app_of(app, org):
        return items.policy_of(client, org, app)
    return items.policy_without_item(client, org)
