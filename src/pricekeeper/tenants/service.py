"""Creates and updates organisations and apps.

Each change is written with its audit entry, which shows after a lost reply whether it was made. If
that can't be read, the caller gets `OutcomeUnknownError` and may repeat the request.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    ContendedError,
    NotFoundError,
    OutcomeUnknownError,
    TransactionCancelledError,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Check,
    Item,
    Put,
    Store,
    Update,
    Value,
    Write,
)
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items, stored_settings
from pricekeeper.tenants.budget_rule import BudgetRule
from pricekeeper.tenants.configuration import AppSettings, OrgSettings
from pricekeeper.tenants.ending import ClientEnding, random_name
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.tenants.policy import Life, Policy
from pricekeeper.tenants.recounts import RECOUNT_AFTER_MS, Recount, is_wanted, recount_put
from pricekeeper.values import AppId, ModelLabel, OrgId

ATTEMPTS_MAX: Final = 8
PATCH_ATTEMPTS_MAX: Final = 24
"""A patch is applied again after each earlier write, a replacement is not."""
_BACKOFF: Final = Backoff(5, 100)


def _accept_any(_: Policy) -> None:
    return


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What is written in the transaction that creates a client."""

    attributes: Mapping[str, Value] = field(default_factory=dict)
    operations: tuple[Write, ...] = ()


_NO_ENROLMENT: Final = Enrolment()


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
        enrolment: Enrolment = _NO_ENROLMENT,
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
        enrolment: Enrolment,
    ) -> Saved | None:
        """Create the client; ``None`` if another caller was faster."""
        life, of_org = self._new_life(), None
        settings: OrgSettings | AppSettings
        beside: Write
        if client.app_id is None:
            settings = parse_org_settings(body, self._labels)
            self.budget_rule.require_kept(None, settings, by)
            item = org = items.new_item(client, settings, life)
            vacant, beside = ITEM_ABSENT, items.index_put(client)
        elif org is None:
            raise NotFoundError(client.org.client_id)
        else:
            of_org, org_life = stored_settings.org_settings(org), items.life_of(org)
            settings = parse_app_settings(body, self._labels, of_org)
            item = items.new_item(client, settings, life, org_life.incarnation)
            vacant = items.no_app_of(org_life)
            beside = Check(CONFIG, items.config_key(client.org), items.same_life(org_life))
        if enrolment.operations:
            require_trusted_time(self._clock)  # a retrieval token ends at a moment
        put = Put(CONFIG, {**item, **enrolment.attributes}, vacant)
        recounts = self._recounts(client, None, settings, of_org)
        writes = [put, beside, *recounts, *enrolment.operations]
        change = stored_settings.client_created(client, settings)
        if not await self._apply(client, change, writes, by):
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
            if attempt:
                await self._clock.sleep_ms(_BACKOFF.pause_ms(attempt, secrets.randbelow))
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
        """Write the settings; ``None`` if another caller was faster.

        Only the version that was read is replaced, so a late copy of this write changes nothing.
        """
        before, settings = (
            stored_settings.read_settings(client, own),
            self._parse(client, body, org, own),
        )
        if isinstance(settings, OrgSettings):
            known = before if isinstance(before, OrgSettings) else None
            self.budget_rule.require_kept(known, settings, by)
        life, now_epoch = items.life_of(own), self._clock.now_ms() // 1000
        next_life = replace(life, version=life.version + 1, updated_at_epoch=now_epoch)
        actions = items.settings_actions(settings, next_life)
        operation = Update(CONFIG, items.config_key(client), actions, items.same_settings(life))
        change = stored_settings.settings_replaced(client, own, settings)
        writes: list[Write] = [operation, *self._recounts(client, before, settings)]
        if not await self._apply(client, change, writes, by):
            return None
        if client.app_id is None and items.INCARNATION not in own:
            await self._add_to_index(client)
        updated = operation.apply(own)
        org = updated if client.app_id is None else org
        return Saved(created=False, policy=items.policy_of(client, org, updated))

    def _parse(
        self, client: Client, body: Mapping[str, Any], org: Item, own: Item
    ) -> OrgSettings | AppSettings:
        if client.app_id is not None:
            of_org = stored_settings.org_settings(org)
            return parse_app_settings(body, self._labels, of_org)
        # Only this must be readable: the other settings are replaced.
        return parse_org_settings(body, self._labels, stored_settings.shard_count_of(own))

    async def _apply(
        self, client: Client, change: Change, writes: Sequence[Write], by: Attribution
    ) -> bool:
        try:
            await self._trail.apply(by, change, writes)
        except TransactionCancelledError:
            return False
        finally:
            self.forget(client)
        return True

    def _recounts(
        self,
        client: Client,
        before: OrgSettings | AppSettings | None,
        after: OrgSettings | AppSettings,
        org: OrgSettings | None = None,
    ) -> list[Put]:
        if not is_wanted(before, after, org):
            return []
        return [recount_put(Recount(client, self._clock.now_ms() + RECOUNT_AFTER_MS))]

    async def _add_to_index(self, client: Client) -> None:
        """Add an imported organisation to the index.

        A failure is ignored: the index is read with the items, and the next update tries again.
        """
        org_exists = Check(CONFIG, items.config_key(client), ITEM_EXISTS)
        with contextlib.suppress(TransactionCancelledError, OutcomeUnknownError):
            await self._store.transact([org_exists, items.index_put(client)])

    def _new_life(self) -> Life:
        now_ms = self._clock.now_ms()
        return Life(random_name(), 1, now_ms // 1000, now_ms // 1000, random_name(), now_ms)

    async def _read_winner(self, client: Client) -> Saved:
        """Read the settings of the writers that kept coming first.

        They wrote after this call began, so it counts as made before the last one.
        """
        try:
            return Saved(created=False, policy=await self.read_registered_policy(client))
        except NotFoundError as error:
            raise ContendedError(f"{client.client_id}: created and deleted by others") from error
