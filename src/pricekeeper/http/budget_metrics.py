"""Budgets in the metrics: what is used of each, what calls hold, and what nobody has settled.

They are read from the accounts and authorizations themselves, so every instance shows the same, and
a restart changes nothing. Only organisations that have spent something this month, or have
something held or unsettled, are looked at: a query for each, and a read for each of their clients.
An account that was not used in its window yet has no line. Budgets for each value of a tag have
none either: their values have no bound.

Bounds: `CLIENTS_MAX` clients, in the order of their ids; the log says if there are more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

import structlog

from pricekeeper.authorizations import State
from pricekeeper.bootstrap import Services
from pricekeeper.budgets import Balance, BudgetAccount, Scope, accounts_of
from pricekeeper.errors import NotFoundError, StoreError, UnreadableItemError
from pricekeeper.http.metrics import BUDGET_LIMIT, BUDGET_USED, HELD, UNSETTLED, Metrics
from pricekeeper.http.spend import whose
from pricekeeper.tenants import Policy, read_pages
from pricekeeper.values import AppId, OrgId

CLIENTS_MAX: Final = 1_000
_PICOS_PER_USD: Final = 1_000_000_000_000
Labels = tuple[str, ...]

_log = structlog.get_logger(__name__)


class BudgetMetrics:
    """Keeps the gauges of budgets up to date."""

    def __init__(
        self, services: Services, metrics: Metrics, *, clients_max: int = CLIENTS_MAX
    ) -> None:
        self._services = services
        self._metrics = metrics
        self._clients_max = clients_max

    async def refresh(self, spenders: Collection[OrgId]) -> None:
        """Show how budgets stand; ``spenders`` have spent something this month.

        If the store does not answer, what was shown stays.
        """
        try:
            org_ids = await self._services.tenants.list_org_ids()
            exposed = await self._services.authorizations.read_exposed(org_ids)
            active = {*spenders, *(OrgId(org_id) for org_id, _ in exposed)}
            policies = await self._read_policies(sorted(active.intersection(org_ids)))
            accounts = {
                account: policy
                for policy in policies
                for account in accounts_of(policy, self._services.clock.now_ms())
                if account.scope is (Scope.ORG if policy.app_id is None else Scope.APP)
            }
            balances = await self._services.ledger.read_open(accounts)
        except (StoreError, UnreadableItemError) as error:
            _log.warning("budgets_not_read", error=str(error))
            return
        by_client = {(policy.org_id, policy.app_id): policy for policy in policies}
        held, unsettled = Counter[Labels](), Counter[Labels]()
        for org_id, one in exposed:
            app_id = None if one.grant.terms.app_id is None else AppId(one.grant.terms.app_id)
            labels = (*_names(by_client, OrgId(org_id), app_id), one.grant.terms.label)
            sums = held if one.state is State.OPEN else unsettled
            sums[labels] += one.grant.held_usd_picos
        self._metrics.show_changes(HELD, _dollars(held))
        self._metrics.show_changes(UNSETTLED, _dollars(unsettled))
        self._show_accounts(accounts, balances)

    async def _read_policies(self, org_ids: Iterable[OrgId]) -> list[Policy]:
        """The settings of these organisations and of their apps."""
        found: list[Policy] = []
        for org_id in org_ids:
            try:
                found.append(await self._services.tenants.find_policy(org_id))
                async for page in read_pages(partial(self._services.tenants.list_apps, org_id)):
                    found += page.policies
                    if len(found) > self._clients_max:
                        break
            except NotFoundError:  # it was deleted meanwhile
                continue
            if len(found) > self._clients_max:
                _log.warning("budgets_not_all_shown", clients_max=self._clients_max)
                return found[: self._clients_max]
        return found

    def _show_accounts(
        self, accounts: Mapping[BudgetAccount, Policy], balances: Mapping[BudgetAccount, Balance]
    ) -> None:
        used, limits = dict[Labels, float](), dict[Labels, float]()
        for account, policy in accounts.items():
            balance = balances.get(account)
            if balance is None:
                continue
            owner = whose(policy.org_name, policy.app_name, policy.org_id, policy.app_id)
            labels = (*owner, account.name, account.window.value)
            limits[labels] = account.limit_usd_picos / _PICOS_PER_USD
            if account.limit_usd_picos:
                used[labels] = balance.used / account.limit_usd_picos
        self._metrics.show_changes(BUDGET_USED, used)
        self._metrics.show_changes(BUDGET_LIMIT, limits)


def _names(
    by_client: Mapping[tuple[OrgId, AppId | None], Policy], org_id: OrgId, app_id: AppId | None
) -> Labels:
    """The labels that say whose a line is; an app that nobody has registered has its id alone."""
    policy = by_client.get((org_id, app_id)) or by_client.get((org_id, None))
    if policy is None:
        return whose(org_id, None, org_id, app_id)
    return whose(policy.org_name, policy.app_name if app_id else None, org_id, app_id)


def _dollars(picos: Mapping[Labels, int]) -> dict[Labels, float]:
    return {labels: amount / _PICOS_PER_USD for labels, amount in picos.items()}
