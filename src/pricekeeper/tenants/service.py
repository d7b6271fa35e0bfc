"""Creates, updates, freezes and deletes organisations and apps.

Each change is written with its audit entry, which shows after a lost reply whether it was made. If
that can't be read, the caller gets `OutcomeUnknownError` and may repeat the request.

Deleting an organisation is one transaction: its apps' items name its incarnation, so they stop
counting at once. They are removed afterwards, in bounded steps that any later call can finish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.storage import ITEM_ABSENT, Action, Check, Item, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import ending, items, stored_settings
from pricekeeper.tenants.ending import (
    end_app,
    end_org,
    start_generation,
    sweep_apps,
    update_alone,
)
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.tenants.policy import Freeze, Policy
from pricekeeper.tenants.reading import ClientReader
from pricekeeper.tenants.saving import BudgetRule, Creation, Enrolment, SettingsWriter
from pricekeeper.values import AppId, ModelLabel, OrgId

REVOCATIONS: Final = Family(
    "pricekeeper_revocations", "Tokens, sessions and clients that ended early, by kind.", ("kind",)
)
ATTEMPTS_MAX: Final = 8
PATCH_ATTEMPTS_MAX: Final = 24
"""A patch is applied again after each earlier write, a replacement is not."""


def _accept_any(_: Policy) -> None:
    return


@dataclass(slots=True)
class TenantsMeter:
    """Counts what this instance has deleted."""

    clients_deleted: int = counted(REVOCATIONS, "client")


@dataclass(frozen=True, slots=True)
class Saved:
    """A client after its creation or update."""

    created: bool
    policy: Policy


class Tenants(ClientReader):
    """The organisations and apps of one store; ``labels`` are the deployment's model labels."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        labels: Collection[ModelLabel],
        *,
        trail: AuditTrail | None = None,
        orgs_set_budgets: bool = False,
    ) -> None:
        """``orgs_set_budgets``: organisations' administrators may raise their budgets."""
        super().__init__(store, clock)
        self._clock = clock
        self._trail = trail or AuditTrail(store, clock)
        self._labels = frozenset(labels)
        self.budget_rule = BudgetRule(orgs_set_budgets=orgs_set_budgets)
        self._writer = SettingsWriter(store, clock, self._trail, self.forget, self.budget_rule)
        self.meter = TenantsMeter()

    async def put_org(
        self,
        org_id: OrgId,
        body: Mapping[str, Any],
        by: Attribution,
        enrolment: Enrolment | None = None,
    ) -> Saved:
        """Create it or replace its settings; its credentials do not change."""
        client = Client(org_id)
        for _ in range(ATTEMPTS_MAX):
            current = await self._store.get(CONFIG, items.config_key(client))
            if current is None:
                settings = parse_org_settings(body, self._labels)
                item = items.new_item(client, settings, self._writer.new_life())
                created = Creation(client, settings, item, ITEM_ABSENT, items.index_put(client))
                if await self._writer.create(created, by, enrolment):
                    return Saved(created=True, policy=items.policy_of(client, item, item))
            elif saved := await self._update(client, body, current, current, by):
                return saved
        return await self._read_winner(client)

    async def put_app(
        self,
        org_id: OrgId,
        app_id: AppId,
        body: Mapping[str, Any],
        by: Attribution,
        enrolment: Enrolment | None = None,
    ) -> Saved:
        """Create it or replace its overrides; its credentials do not change."""
        client = Client(org_id, app_id)
        for _ in range(ATTEMPTS_MAX):
            org, app = await self._read(client)
            if org is None:
                raise NotFoundError(client.org.client_id)
            if app is None or not items.is_app_of(app, org):
                of_org = stored_settings.org_settings(org)
                settings = parse_app_settings(body, self._labels, of_org)
                org_life = items.life_of(org)
                item = items.new_item(
                    client, settings, self._writer.new_life(), org_life.incarnation
                )
                org_key = items.config_key(client.org)
                org_exists = Check(CONFIG, org_key, items.same_life(org_life))
                vacant = items.no_app_of(org_life)
                created = Creation(client, settings, item, vacant, org_exists, of_org)
                if await self._writer.create(created, by, enrolment):
                    return Saved(created=True, policy=items.policy_of(client, org, item))
            elif saved := await self._update(client, body, org, app, by):
                return saved
        return await self._read_winner(client)

    async def patch(
        self,
        client: Client,
        patch: Mapping[str, Any],
        by: Attribution,
        check: Callable[[Policy], None] = _accept_any,
    ) -> Saved:
        """Change only the settings that a merge patch names.

        ``check`` may refuse the change by raising.
        """
        for attempt in range(PATCH_ATTEMPTS_MAX):
            await self._writer.pause(attempt)
            record = await self.read_record(client)
            org, own = record.org_item, record.item
            check(items.policy_of(client, org, own))
            body = stored_settings.patched_body(stored_settings.settings_of(client, own), patch)
            if saved := await self._update(client, body, org, own, by):
                return saved
        raise ContendedError(f"{client.client_id}: others kept changing its settings")

    async def _update(
        self, client: Client, body: Mapping[str, Any], org: Item, own: Item, by: Attribution
    ) -> Saved | None:
        if client.app_id is None:
            # Only this must be readable: the other settings are replaced.
            shard_count = stored_settings.shard_count_of(own)
            settings = parse_org_settings(body, self._labels, shard_count)
            updated = await self._writer.update(client, settings, own, by)
            org = updated or org
        else:
            of_org = stored_settings.org_settings(org)
            overrides = parse_app_settings(body, self._labels, of_org)
            updated = await self._writer.update(client, overrides, own, by)
        if updated is None:
            return None
        return Saved(created=False, policy=items.policy_of(client, org, updated))

    async def delete_org(self, org_id: OrgId, by: Attribution) -> None:
        """Delete the organisation with all of its apps.

        Raises `NotPermittedError` if a key above the caller's has frozen any of them.
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
                self.forget(client)
        self.meter.clients_deleted += ended
        self.meter.clients_deleted += await sweep_apps(self._store, client)
        if not ended:
            raise NotFoundError(client.client_id)

    async def delete_app(self, org_id: OrgId, app_id: AppId, by: Attribution) -> None:
        """Delete the app.

        Raises `NotPermittedError` if a key above the caller's has frozen it or its organisation:
        else it could be created again, unfrozen.
        """
        client = Client(org_id, app_id)
        record = await self.read_record(client)
        try:
            await end_app(
                self._trail, self._read_own_item, client, record.item, record.org_item, by
            )
        finally:
            self.forget(client)
        self.meter.clients_deleted += 1

    async def end_tokens_issued_before_now(
        self,
        client: Client,
        *,
        also: Sequence[Action] = (),
        audited: tuple[Attribution, Change] | None = None,
    ) -> None:
        """Invalidate everything that was issued to the client: one read, one write.

        ``also`` changes the client's item in the same write. May be repeated after an
        `OutcomeUnknownError`: a late first write changes nothing.
        """
        alone = partial(update_alone, self._store)
        make = alone if audited is None else self._trail.maker(*audited)
        try:
            await start_generation(make, self._clock, self._read_own_item, client, also)
        finally:
            self.forget(client)

    async def freeze(self, client: Client, by: Attribution) -> Freeze:
        """Deny models and tokens to the client; with an organisation, to all of its apps.

        A second freeze replaces the reason and keeps the time. Raises `NotPermittedError` if a key
        above the caller's has frozen it.
        """
        try:
            now_epoch = self._clock.now_ms() // 1000
            return await ending.freeze(self._trail, self._read_own_item, client, by, now_epoch)
        finally:
            self.forget(client)

    async def unfreeze(self, client: Client, by: Attribution) -> bool:
        """Lift the client's own freeze, not its organisation's; returns whether there was one."""
        try:
            return await ending.unfreeze(self._trail, self._read_own_item, client, by)
        finally:
            self.forget(client)

    async def _read_winner(self, client: Client) -> Saved:
        """Read the settings of the writers that kept coming first.

        They wrote after this call began, so it counts as made before the last one.
        """
        try:
            return Saved(created=False, policy=await self.read_registered_policy(client))
        except NotFoundError as error:
            raise ContendedError(f"{client.client_id}: created and deleted by others") from error
