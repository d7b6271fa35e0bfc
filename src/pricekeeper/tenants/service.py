"""Creates and updates organisations and apps.

Each change is written with its audit entry, which shows after a lost reply whether it was made. If
that can't be read, the caller gets `OutcomeUnknownError` and may repeat the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.storage import ITEM_ABSENT, Check, Item, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items, stored_settings
from pricekeeper.tenants.ending import ClientEnding
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.tenants.policy import Policy
from pricekeeper.tenants.saving import BudgetRule, Creation, Enrolment, SettingsWriter
from pricekeeper.values import AppId, ModelLabel, OrgId

ATTEMPTS_MAX: Final = 8
PATCH_ATTEMPTS_MAX: Final = 24
"""A patch is applied again after each earlier write, a replacement is not."""


def _accept_any(_: Policy) -> None:
    return


@dataclass(frozen=True, slots=True)
class Saved:
    """A client after its creation or update."""

    created: bool
    policy: Policy


class Tenants(ClientEnding):
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
        super().__init__(store, clock, trail or AuditTrail(store, clock))
        self._labels = frozenset(labels)
        self.budget_rule = BudgetRule(orgs_set_budgets=orgs_set_budgets)
        self._writer = SettingsWriter(store, clock, self._trail, self.forget, self.budget_rule)

    async def put_org(self, org_id: OrgId, body: Mapping[str, Any], by: Attribution) -> Saved:
        return await self.put(Client(org_id), body, by)

    async def put_app(
        self, org_id: OrgId, app_id: AppId, body: Mapping[str, Any], by: Attribution
    ) -> Saved:
        return await self.put(Client(org_id, app_id), body, by)

    async def put(
        self,
        client: Client,
        body: Mapping[str, Any],
        by: Attribution,
        enrolment: Enrolment | None = None,
    ) -> Saved:
        """Create the client or replace its settings; its credentials do not change."""
        for _ in range(ATTEMPTS_MAX):
            org, app = await self._read(client)
            own = org if client.app_id is None else app
            if org is not None and own is not None and (own is org or items.is_app_of(own, org)):
                saved = await self._update(client, body, org, own, by)
            else:
                saved = await self._create(client, body, org, by, enrolment)
            if saved is not None:
                return saved
        return await self._read_winner(client)

    async def _create(
        self,
        client: Client,
        body: Mapping[str, Any],
        org: Item | None,
        by: Attribution,
        enrolment: Enrolment | None,
    ) -> Saved | None:
        life = self._writer.new_life()
        if client.app_id is None:
            org_settings = parse_org_settings(body, self._labels)
            item = org = items.new_item(client, org_settings, life)
            added = items.index_put(client)
            created = Creation(client, org_settings, item, ITEM_ABSENT, added)
        elif org is None:
            raise NotFoundError(client.org.client_id)
        else:
            of_org, org_life = stored_settings.org_settings(org), items.life_of(org)
            settings = parse_app_settings(body, self._labels, of_org)
            item = items.new_item(client, settings, life, org_life.incarnation)
            org_exists = Check(CONFIG, items.config_key(client.org), items.same_life(org_life))
            vacant = items.no_app_of(org_life)
            created = Creation(client, settings, item, vacant, org_exists, of_org)
        if not await self._writer.create(created, by, enrolment):
            return None
        return Saved(created=True, policy=items.policy_of(client, org, item))

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

    async def _read_winner(self, client: Client) -> Saved:
        """Read the settings of the writers that kept coming first.

        They wrote after this call began, so it counts as made before the last one.
        """
        try:
            return Saved(created=False, policy=await self.read_registered_policy(client))
        except NotFoundError as error:
            raise ContendedError(f"{client.client_id}: created and deleted by others") from error
