"""Checks changed totals for crossed thresholds and changed models.

The aggregator calls this for each organisation before it saves its checkpoint, so a failed check is
repeated by the next run. The cost follows the changes: settings of clients that have spent, and the
accounts of their budgets. An unreadable item is reported, and the other clients are checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pricekeeper.alerts.alert import Finding
from pricekeeper.alerts.deciding import Decider
from pricekeeper.alerts.spend import (
    budget_findings,
    exhausted_findings,
    fallback_findings,
    may_have_changed_model,
    quota_findings,
)
from pricekeeper.budgets import Balance, BudgetAccount, Scope, accounts_of
from pricekeeper.concurrency import BoundedCache, gather_in_groups
from pricekeeper.days import day_start_ms, next_midnight_ms
from pricekeeper.errors import NotFoundError, UnreadableItemError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.book import OpenAccounts
from pricekeeper.metering import total_keys, totals_from
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.facets import HOUR, MS_PER_HOUR, NO_APP, Facet, hour_from
from pricekeeper.pricing import Catalogue
from pricekeeper.selection.items import sticky_key, sticky_state
from pricekeeper.storage import Key, Store, Table
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Policy, QuotaScope, Tenants
from pricekeeper.values import AppId, OrgId

SEEN_MAX: Final = 50_000
ACTIVE_MAX: Final = 10_000
CONCURRENCY: Final = 16
_APP: Final = "#APP#"
_LABEL: Final = "#LABEL#"


class Moved(NamedTuple):
    """The hours and tag values whose totals have changed."""

    hours: frozenset[tuple[str, int]]
    tags: frozenset[tuple[str, str]]


class WatchedSpend(NamedTuple):
    """The spend of changed labels, in pico-dollars of a day's quotas."""

    policy: Policy
    day: str
    labels: Mapping[str, int]

    def quota_findings(self) -> Iterator[Finding]:
        for label, cost in self.labels.items():
            yield from quota_findings(self.policy, label, self.day, cost)

    def accounts(self) -> list[Account]:
        others = [label for label in self.policy.model_ordering if label not in self.labels]
        return [Account(self.policy.scope_key, label, self.day) for label in others]


class Watcher:
    """Checks changed totals."""

    def __init__(
        self,
        store: Store,
        tenants: Tenants,
        decider: Decider,
        ledger: Ledger,
        catalogue: Catalogue | None = None,
    ) -> None:
        """Without a ``catalogue`` every label of an ordering counts as one that writes text."""
        self._catalogue = catalogue
        self._store = store
        self._ledger = ledger
        self._tenants = tenants
        self._decider = decider
        self._seen: BoundedCache[Facet, int] = BoundedCache(SEEN_MAX)
        self.active: BoundedCache[OrgId, bool] = BoundedCache(ACTIVE_MAX)
        """Organisations with new spend, until the checks remove them."""

    async def look(self, org_id: str, totals: Mapping[Facet, Counters]) -> None:
        """Raises `StoreError` if this must be repeated."""
        moved = {
            facet: total.cost_usd_picos
            for facet, total in totals.items()
            if self._seen.get(facet) != total.cost_usd_picos
        }
        if not moved:
            return
        by_app: dict[AppId | None, dict[Facet, int]] = {None: {}}
        for facet, cost in moved.items():
            by_app.setdefault(app_of(facet.pk), {})[facet] = cost
        policies = await self._read_policies(OrgId(org_id), list(by_app))
        if None in policies:  # else the organisation is deleted, or unreadable
            spends = list(_spends(policies, by_app))
            findings = [finding for spend in spends for finding in spend.quota_findings()]
            findings += await self._look_at_models(spends)
            findings += await self._look_at_budgets(policies, moved, by_app)
            await self._decider.decide(findings)
            self.active.put(OrgId(org_id), True)  # noqa: FBT003
        for facet, cost in moved.items():
            self._seen.put(facet, cost)

    async def _read_policies(
        self, org_id: OrgId, app_ids: Sequence[AppId | None]
    ) -> dict[AppId | None, Policy]:
        read = partial(find_policy, self._tenants, org_id)
        found = await gather_in_groups(read, app_ids, CONCURRENCY)
        read_now = zip(app_ids, found, strict=True)
        return {app_id: policy for app_id, policy in read_now if policy is not None}

    async def _look_at_models(self, spends: Sequence[WatchedSpend]) -> list[Finding]:
        doubtful = [one for one in spends if may_have_changed_model(one.policy, one.labels)]
        if not doubtful:
            return []
        keys: list[tuple[Table, Key]] = []
        for one in doubtful:
            keys.append((STICKY_STATE, sticky_key(one.policy.scope_key, one.day)))
            keys += total_keys(one.accounts())
        found = iter(await self._store.batch_get(keys))
        findings: list[Finding] = []
        for one in doubtful:
            item = next(found)
            with contextlib.suppress(UnreadableItemError):
                findings += fallback_findings(one.policy, one.day, sticky_state(item))
            readings = totals_from(one.accounts(), [next(found) for _ in one.accounts()])
            if not readings.unreadable:
                totals = {of.label: total for of, total in readings.totals.items()}
                spent = {label: total.cost_usd_picos for label, total in totals.items()}
                spent |= one.labels
                findings += exhausted_findings(one.policy, one.day, spent, self._skipped(one))
        return findings

    def _skipped(self, spend: WatchedSpend) -> Container[str]:
        if self._catalogue is None:
            return ()
        return self._catalogue.skipped_by_auto(spend.policy.model_ordering)

    async def _look_at_budgets(
        self,
        policies: Mapping[AppId | None, Policy],
        moved: Mapping[Facet, int],
        by_app: Mapping[AppId | None, Mapping[Facet, int]],
    ) -> list[Finding]:
        accounts = {
            app_id: budget_accounts(policy, moved_of(moved if app_id is None else by_app[app_id]))
            for app_id, policy in policies.items()
        }
        keys = {account.key for some in accounts.values() for account in some}
        if not keys:
            return []
        found = await self._ledger.read_items(next(iter(policies.values())).org_id, keys)
        return [
            finding
            for app_id, some in accounts.items()
            for finding in budget_findings(policies[app_id], _balances(some, found))
        ]


async def find_policy(
    tenants: Tenants, org_id: OrgId, app_id: AppId | None = None
) -> Policy | None:
    """``None`` if the client is deleted or unreadable."""
    try:
        return await tenants.find_policy(org_id, app_id)
    except (NotFoundError, UnreadableItemError):
        return None


def app_of(partition: str) -> AppId | None:
    """The app of a partition of totals; ``None`` if they are the organisation's own."""
    app_id = partition.partition(_LABEL)[0].partition(_APP)[2]
    return None if app_id in ("", NO_APP) else AppId(app_id)


def moved_of(facets: Iterable[Facet]) -> Moved:
    """The hours and tags of these totals."""
    hours = {hour_from(facet.sk) for facet in facets if facet.sk.startswith(HOUR)}
    tags = [tag for facet in facets if (tag := facet.tag) is not None]
    return Moved(frozenset(hours), frozenset((tag.key, tag.value) for tag in tags))


def budget_accounts(policy: Policy, moved: Moved) -> list[BudgetAccount]:
    """The charged accounts of the client's own budgets with thresholds.

    An hour of UTC may be in two hours of a zone, so both of its ends are checked; the day is the
    organisation's own. Usage without a tag has the empty value.
    """
    own = policy.org_budgets if policy.app_id is None else policy.budgets
    wanted = {budget.name: budget.per_tag for budget in own if budget.alert_at_pct}
    if not wanted:
        return []
    per_tag = {key for key in wanted.values() if key is not None}
    values = [(key, value) for key, value in moved.tags if key in per_tag]
    tags: list[Mapping[str, str]] = [{}, *(dict([one]) for one in values)]
    scope = Scope.ORG if policy.app_id is None else Scope.APP
    accounts: dict[BudgetAccount, None] = {}
    for at_ms in sorted({at for hour in moved.hours for at in _ends(policy.timezone, *hour)}):
        for some in tags:
            for account in accounts_of(policy, at_ms, some):
                is_asked = not some or (account.tag is not None and account.tag[0] in some)
                if account.scope is scope and account.name in wanted and is_asked:
                    accounts[account] = None
    return list(accounts)


def _spends(
    policies: Mapping[AppId | None, Policy], by_app: Mapping[AppId | None, Mapping[Facet, int]]
) -> Iterator[WatchedSpend]:
    """The changed totals by quota; where apps have their own quotas, the organisation has none."""
    for app_id, policy in policies.items():
        if app_id is None and policy.quota_scope is QuotaScope.APP:
            continue
        by_day: dict[str, dict[str, int]] = {}
        for facet, cost in by_app[app_id].items():
            account = facet.account
            if account is not None and account.scope_key == policy.scope_key:
                by_day.setdefault(account.day, {})[account.label] = cost
        for day, labels in by_day.items():
            yield WatchedSpend(policy, day, labels)


def _balances(
    accounts: Iterable[BudgetAccount], items: Mapping[Key, OpenAccounts]
) -> dict[BudgetAccount, Balance]:
    found: dict[BudgetAccount, Balance] = {}
    for account in accounts:
        with contextlib.suppress(UnreadableItemError):
            balance = items[account.key].balance(account.id)
            if balance is not None:
                found[account] = balance
    return found


def _ends(zone: str, day: str, hour: int) -> Iterator[int]:
    """The first and last instant of the part of an hour that is in that day."""
    starts_at_ms = day_start_ms(zone, day)
    yield max(hour * MS_PER_HOUR, starts_at_ms)
    yield min((hour + 1) * MS_PER_HOUR, next_midnight_ms(zone, starts_at_ms)) - 1
