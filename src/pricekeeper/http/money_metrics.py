"""Dollars and denials in the metrics: month's spend, budgets, held and unsettled amounts.

Values are read from the store, so every instance shows the same, also after a restart. Spend is a
counter; its reset with the month looks like a restart to ``increase()``.

Names come from outside. Ids follow in brackets after equal names, and after a name that ends with a
bracket, because it could imitate another line. Unprintable characters are replaced.

Budget lines exist only for organisations with spend this month or held or unsettled amounts, and
for accounts in use. Budgets for each value of a tag have none: their number is unbounded.

Bounds: `SERIES_MAX` lines of spend, the others as ``other``; `CLIENTS_MAX` clients with budgets, by
id; the log says if there are more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog
from prometheus_client import Gauge

from pricekeeper.activity.denials import OTHERS as OTHER_DENIERS
from pricekeeper.activity.denials import DenialLog
from pricekeeper.authorizations import State
from pricekeeper.bootstrap import Services
from pricekeeper.budgets import Balance, BudgetAccount, Scope, accounts_of
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import InvalidValueError, NotFoundError, StoreError, UnreadableItemError
from pricekeeper.http.metrics import BUDGET_LIMIT, BUDGET_USED, HELD, UNSETTLED, Metrics
from pricekeeper.metering import org_day
from pricekeeper.metering.spend import OTHERS, MonthSpend, PicosBySpender, Spender, month_of
from pricekeeper.tenants import Client, Policy, read_pages
from pricekeeper.values import AppId, OrgId

SERIES_MAX: Final = 1_000
NAME_MS_MAX: Final = 600_000
OTHER: Final = "other"

_APP: Final = "#APP#"
_ORG: Final = "ORG#"
_PICOS_PER_USD: Final = 1_000_000_000_000
_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"

_log = structlog.get_logger(__name__)


class ScopeOwner(NamedTuple):
    """The names of an organisation or app, and its time zone."""

    org_name: str
    app_name: str | None
    timezone: str


class Series(NamedTuple):
    """The labels of one line."""

    org: str
    app: str
    label: str


class SpendMetric:
    """Keeps the gauge of dollars up to date."""

    def __init__(self, services: Services, gauge: Gauge, *, series_max: int = SERIES_MAX) -> None:
        self._services = services
        self._gauge = gauge
        self._series_max = series_max
        self._months = MonthSpend(services.store, services.clock)
        self._owners: BoundedCache[str, tuple[ScopeOwner, int]] = BoundedCache(2 * series_max)
        self._chosen: dict[Spender, None] = {}
        self._shown: set[Series] = set()

    @property
    def org_ids(self) -> set[OrgId]:
        """Organisations that have spent this month, as of the last refresh."""
        return {ids_of(spender.scope_key)[0] for spender in self._chosen}

    async def refresh(self) -> None:
        """Read and show the totals. If the store does not answer, the old values stay."""
        try:
            months = await self._months.read()
            chosen = self._choose(months)
            owners = {spender.scope_key: await self._find_owner(spender) for spender in chosen}
        except StoreError as error:
            _log.warning("spend_not_read", error=str(error))
            return
        self._show(sum_by_series(months, owners, chosen, self._services.clock.now_ms()))

    def _choose(self, months: Mapping[str, PicosBySpender]) -> dict[Spender, None]:
        """Choose the scopes with their own line: those that had one, then the highest spenders."""
        spent: dict[Spender, int] = defaultdict(int)
        for sums in months.values():
            for spender, picos in sums.items():
                spent[spender] += picos
        spent.pop(OTHERS, None)
        chosen = {spender: None for spender in self._chosen if spender in spent}
        for spender in sorted(spent, key=lambda one: (-spent[one], one)):
            if len(chosen) >= self._series_max:
                break
            chosen.setdefault(spender)
        self._chosen = chosen
        return chosen

    async def _find_owner(self, spender: Spender) -> ScopeOwner:
        """Names at most `NAME_MS_MAX` old; the ids of a deleted scope."""
        now_ms = self._services.clock.monotonic_ms()
        known = self._owners.get(spender.scope_key)
        if known is not None and now_ms - known[1] < NAME_MS_MAX:
            return known[0]
        org_id, app_id = ids_of(spender.scope_key)
        try:
            found = await self._services.tenants.read_registered_policy(Client(org_id, app_id))
            owner = ScopeOwner(found.org_name, found.app_name, found.timezone)
        except (NotFoundError, InvalidValueError, UnreadableItemError):
            owner = ScopeOwner(org_id, app_id, "UTC")
        self._owners.put(spender.scope_key, (owner, now_ms))
        return owner

    def _show(self, dollars: Mapping[Series, int]) -> None:
        for series in self._shown - dollars.keys():
            self._gauge.labels(*series).set(0)
        for series, picos in dollars.items():
            self._gauge.labels(*series).set(picos / _PICOS_PER_USD)
        self._shown.update(dollars)


def ids_of(scope_key: str) -> tuple[OrgId, AppId | None]:
    """The organisation and the app of a scope."""
    org_id, _, app_id = scope_key.removeprefix(_ORG).partition(_APP)
    return OrgId(org_id), AppId(app_id) if app_id else None


def sum_by_series(
    months: Mapping[str, PicosBySpender],
    owners: Mapping[str, ScopeOwner],
    chosen: Iterable[Spender],
    now_ms: int,
) -> dict[Series, int]:
    """Sum pico-dollars by line, each in the current month of its organisation."""
    lines = name_series(owners, chosen)
    current = {
        scope_key: month_of(org_day(owner.timezone, now_ms)) for scope_key, owner in owners.items()
    }
    utc_month = month_of(org_day("UTC", now_ms))
    found: dict[Series, int] = dict.fromkeys(lines.values(), 0)
    rest = Series(OTHER, OTHER, OTHER)
    for month, sums in months.items():
        for spender, picos in sums.items():
            if month == current.get(spender.scope_key, utc_month):
                line = lines.get(spender, rest)
                found[line] = found.get(line, 0) + picos
    return found


def name_series(
    owners: Mapping[str, ScopeOwner], chosen: Iterable[Spender]
) -> dict[Spender, Series]:
    """The labels of each spender's line: names, with ids where a name is not unique."""
    org_ids: dict[str, set[str]] = defaultdict(set)
    app_ids: dict[tuple[str, str], set[str]] = defaultdict(set)
    for scope_key, owner in owners.items():
        org_id, app_id = ids_of(scope_key)
        org_ids[printable(owner.org_name)].add(org_id)
        app_ids[org_id, printable(owner.app_name or app_id or "")].add(app_id or "")
    lines = {}
    for spender in chosen:
        owner = owners[spender.scope_key]
        org_id, app_id = ids_of(spender.scope_key)
        org = printable(owner.org_name)
        app = printable(owner.app_name or app_id or "")
        if len(org_ids[org]) > 1 or org == OTHER or org.endswith(")"):
            org = f"{org} ({org_id})"
        if app_id and (len(app_ids[org_id, app]) > 1 or app.endswith(")")):
            app = f"{app} ({app_id})"
        lines[spender] = Series(org, app, spender.label)
    return lines


def whose(
    org_name: str, app_name: str | None, org_id: OrgId, app_id: AppId | None
) -> tuple[str, str, str, str]:
    """The labels of an owner's lines. A line without an app is the organisation's."""
    return printable(org_name), printable(app_name or app_id or ""), org_id, app_id or ""


def printable(name: str) -> str:
    """The name without control characters."""
    return "".join(one if one.isprintable() else _UNPRINTABLE for one in name)


CLIENTS_MAX: Final = 1_000
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BudgetMetrics:
    """Keeps the gauges of budgets up to date."""

    _services: Services
    _metrics: Metrics
    clients_max: int = CLIENTS_MAX

    async def refresh(self, spenders: Collection[OrgId]) -> None:
        """Show budgets; ``spenders`` have spent this month.

        If the store does not answer, the old values stay.
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
        found: list[Policy] = []
        for org_id in org_ids:
            try:
                found.append(await self._services.tenants.find_policy(org_id))
                async for page in read_pages(partial(self._services.tenants.list_apps, org_id)):
                    found += page.policies
                    if len(found) > self.clients_max:
                        break
            except NotFoundError:
                continue
            if len(found) > self.clients_max:
                _log.warning("budgets_not_all_shown", clients_max=self.clients_max)
                return found[: self.clients_max]
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
    """An unregistered app has only its id."""
    policy = by_client.get((org_id, app_id)) or by_client.get((org_id, None))
    if policy is None:
        return whose(org_id, None, org_id, app_id)
    return whose(policy.org_name, policy.app_name if app_id else None, org_id, app_id)


def _dollars(picos: Mapping[Labels, int]) -> dict[Labels, float]:
    return {labels: amount / _PICOS_PER_USD for labels, amount in picos.items()}


def count_by_name(log: DenialLog) -> dict[tuple[str, str, str, str], int]:
    """Count this process's denials by organisation, app, requested model and kind."""
    owners = {
        _scope(org_id, app_id): ScopeOwner(org_name, app_name, "")
        for (org_id, app_id), (org_name, app_name) in log.names.items()
    }
    chosen = {
        denier: Spender(_scope(denier.org_id, denier.app_id), denier.model)
        for denier in log.totals
        if denier != OTHER_DENIERS
    }
    lines = name_series(owners, chosen.values())
    counts: dict[tuple[str, str, str, str], int] = {}
    for denier, count in log.totals.items():
        line = (OTHER, OTHER, OTHER) if denier == OTHER_DENIERS else lines[chosen[denier]]
        labels = (*line, denier.kind)
        counts[labels] = counts.get(labels, 0) + count
    return counts


def _scope(org_id: str, app_id: str | None) -> str:
    return f"ORG#{org_id}" if app_id is None else f"ORG#{org_id}#APP#{app_id}"
