"""Adopts an organisation that another service kept in the schema document's tables.

Copies its usage, sticky states of open days, then settings and credentials: it can be used here
only once its spend is here. The source is only read. Nothing is replaced or counted twice
(`metering.adopting`), so an adoption may be repeated, also after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pricekeeper.clock import Clock
from pricekeeper.days import day_start_ms, is_day, next_midnight_ms
from pricekeeper.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    ReasonCode,
    TransactionCancelledError,
)
from pricekeeper.metering.adopting import UsageAdopter
from pricekeeper.selection.items import adopted_put
from pricekeeper.storage import ITEM_ABSENT, Item, Put, Query, Store, Write, query_items
from pricekeeper.storage.format import ORGS
from pricekeeper.storage.tables import CONFIG, STICKY_STATE
from pricekeeper.storage.values import Foreign
from pricekeeper.tenants import Client, Policy, config_key
from pricekeeper.tenants.items import APP_PREFIX, index_put, policy_of
from pricekeeper.values import AppId, OrgId, parse_app_id

ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a run found in the source and changed here."""

    org_id: str
    apps: int
    clients_added: int
    accounts: int
    accounts_changed: int
    cost_usd_picos: int
    """All adopted cost, also of earlier runs."""
    sticky_added: int


@dataclass(frozen=True, slots=True)
class _Source:
    org: Item
    apps: Mapping[AppId, Item]

    def policy(self, client: Client) -> Policy:
        if client.app_id is None or client.app_id not in self.apps:
            return policy_of(client.org, self.org, self.org)
        return policy_of(client, self.org, self.apps[client.app_id])


class Adopter:
    """Copies organisations from another service's store into ours."""

    def __init__(
        self,
        source: Store,
        store: Store,
        clock: Clock,
        *,
        retention_days: int,
        labels: Sequence[str],
    ) -> None:
        self._source = source
        self._store = store
        self._clock = clock
        self._labels = labels
        self._usage = UsageAdopter(source, store, clock, retention_days)

    async def adopt(self, org_id: OrgId, more_apps: Collection[AppId] = ()) -> Adoption:
        """Adopt one organisation. ``more_apps`` have usage, but no settings of their own.

        Raises `NotFoundError` without the organisation, `ConflictError` if pricekeeper wrote the
        source, and `UnreadableItemError` for an item without the document's attributes.
        """
        if (await self._source.query(ORGS)).items:
            raise ConflictError(
                "from", "is a store of pricekeeper: there is nothing to adopt in it"
            )
        source = await self._read_clients(org_id)
        apps = [*source.apps, *(app for app in more_apps if app not in source.apps)]
        clients = [Client(org_id, None), *(Client(org_id, app) for app in apps)]
        policies = [source.policy(client) for client in clients]  # raises before anything is copied
        accounts = changed = cost_usd_picos = sticky = 0
        for client, policy in zip(clients, policies, strict=True):
            scope = f"ORG#{org_id}" + ("" if client.app_id is None else f"#APP#{client.app_id}")
            labels = {*self._labels, *policy.model_ordering, *policy.quotas}
            for label in sorted(labels):
                found = await self._usage.adopt(scope, label, policy.agg_shard_count)
                accounts += found.accounts
                changed += found.changed
                cost_usd_picos += found.cost_usd_picos
            sticky += await self._copy_sticky(scope, policy)
        added = 0
        for app_id, item in source.apps.items():
            added += await self._copy(_client_put(Client(org_id, app_id), item))
        org = Client(org_id, None)
        added += await self._copy(_client_put(org, source.org), index_put(org))
        return Adoption(org_id, len(apps), added, accounts, changed, cost_usd_picos, sticky)

    async def _read_clients(self, org_id: OrgId) -> _Source:
        org: Item | None = None
        apps: dict[AppId, Item] = {}
        async for item in query_items(self._source, Query(CONFIG, f"ORG#{org_id}")):
            sort_key = str(item.get("SK", ""))
            if sort_key.startswith(APP_PREFIX):
                apps[parse_app_id(sort_key.removeprefix(APP_PREFIX))] = item
            elif "quota_scope" in item:
                org = item
        if org is None:
            raise NotFoundError("org")
        return _Source(org, apps)

    async def _copy_sticky(self, scope: str, policy: Policy) -> int:
        added = 0
        async for day, item in self._sticky_states(scope):
            ends_ms = next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day))
            if ends_ms > self._clock.now_ms():
                added += await self._copy(adopted_put(item, policy, ends_ms))
        return added

    async def _sticky_states(self, scope: str) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        async for item in query_items(self._source, Query(STICKY_STATE, scope, prefix="DAY#")):
            day = str(item["SK"]).removeprefix("DAY#")
            if is_day(day):
                yield day, item

    async def _copy(self, *puts: Put) -> bool:
        """Write these items together; ``False`` if the first exists already."""
        operations: list[Write] = list(puts)
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.transact(operations)
            except TransactionCancelledError as cancelled:
                if cancelled.reasons[0].code is not ReasonCode.CONDITION_FAILED:
                    raise
                return attempt > 0  # an earlier attempt may have written it and lost its reply
            except OutcomeUnknownError:
                continue
            return True
        raise OutcomeUnknownError("no reply to several writes; run it again")


def _client_put(client: Client, item: Item) -> Put:
    known = {name: value for name, value in item.items() if not isinstance(value, Foreign)}
    return Put(CONFIG, {**known, **config_key(client).attributes}, ITEM_ABSENT)
