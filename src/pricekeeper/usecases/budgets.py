"""Budgets with their balances, of one client or of all that a caller covers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from pricekeeper.bootstrap import Services
from pricekeeper.budgets import Balance, BudgetAccount, Kind, Scope, accounts_of, item_partition
from pricekeeper.errors import InvalidValueError, NotFoundError
from pricekeeper.storage import invalid_cursor
from pricekeeper.tenants import Budget, Policy, QuotaScope, read_pages
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe, micros_down, micros_up
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import AppId, OrgId, parse_app_id, parse_org_id
from pricekeeper.wire import authorizations as wire
from pricekeeper.wire.values import rfc3339

VALUES_MAX: Final = 100
"""Values shown of a budget per value of a tag."""
ITEMS_MAX: Final = 1_000
"""Items read for these, with values of earlier windows."""
ROWS_MAX: Final = 100
"""A page of all budgets ends after the client that reaches this number."""
CLIENTS_MAX: Final = 64
CONCURRENCY: Final = 8
"""Clients that are read concurrently."""
LISTED_MAX: Final = 32
"""Organisations, or apps of one, per read."""
_SCOPES: Final = (Scope.ORG, Scope.APP)


async def list_budgets(ask: Ask) -> wire.BudgetList:
    """Read every budget that applies to a client, in its present window."""
    return wire.BudgetList(await _read_answers(ask.services, ask.policy, _SCOPES))


class BudgetCursor(NamedTuple):
    """The last client of the previous page: an organisation or one of its apps."""

    org_id: OrgId
    app_id: AppId | None = None

    @classmethod
    def parse(cls, text: str) -> BudgetCursor:
        org_id, slash, app_id = text.partition("/")
        try:
            return cls(parse_org_id(org_id), parse_app_id(app_id) if slash else None)
        except InvalidValueError:
            raise invalid_cursor() from None

    @property
    def text(self) -> str:
        return self.org_id if self.app_id is None else f"{self.org_id}/{self.app_id}"


async def list_all_budgets(ask: Ask) -> wire.AllBudgets:
    """Read a page of the budgets of every client that the viewer covers.

    An app sees every budget that applies to it. Other viewers see each budget once, with its owner.
    """
    services, viewer, given = ask.services, ask.viewer, ask.query.get("after")
    after = None if given is None else BudgetCursor.parse(given)
    org_id = viewer.coverage.one
    if org_id is not None and viewer.app_id is not None:
        policy = await services.tenants.find_policy(org_id, viewer.app_id)
        return wire.AllBudgets(_owned(policy, await _read_answers(services, policy, _SCOPES)))
    found = [one async for one in _take(_read_policies(services, viewer, after), CLIENTS_MAX + 1)]
    rows: list[wire.ClientBudget] = []
    for start in range(0, min(len(found), CLIENTS_MAX), CONCURRENCY):
        some = found[:CLIENTS_MAX][start : start + CONCURRENCY]
        read = await asyncio.gather(*(_read_own_budgets(services, policy) for policy in some))
        rows += [row for owned in read for row in owned]
        shown = start + len(some)
        if shown < len(found) and (len(rows) >= ROWS_MAX or shown == CLIENTS_MAX):
            last = found[shown - 1]
            return wire.AllBudgets(rows, next=BudgetCursor(last.org_id, last.app_id).text)
    return wire.AllBudgets(rows)


async def _take(policies: AsyncIterator[Policy], count: int) -> AsyncIterator[Policy]:
    async for policy in policies:
        yield policy
        count -= 1
        if not count:
            return


async def _read_own_budgets(services: Services, policy: Policy) -> list[wire.ClientBudget]:
    scope = Scope.ORG if policy.app_id is None else Scope.APP
    return _owned(policy, await _read_answers(services, policy, (scope,)))


async def _read_policies(
    services: Services, viewer: Viewer, after: BudgetCursor | None
) -> AsyncIterator[Policy]:
    """The policies after this client: organisations in order, each followed by its apps."""
    if after is not None:
        if after.org_id not in viewer.coverage:
            raise NotFoundError("org")
        async for policy in _read_apps(services, after.org_id, after.app_id):
            yield policy
    list_orgs = partial(services.tenants.list_orgs, limit=LISTED_MAX, among=viewer.coverage.org_ids)
    async for page in read_pages(list_orgs, None if after is None else after.org_id):
        for org in page.policies:
            yield org
            async for policy in _read_apps(services, org.org_id, None):
                yield policy


async def _read_apps(
    services: Services, org_id: OrgId, behind: AppId | None
) -> AsyncIterator[Policy]:
    list_apps = partial(services.tenants.list_apps, org_id, limit=LISTED_MAX)
    with contextlib.suppress(NotFoundError):
        async for page in read_pages(list_apps, behind):
            for policy in page.policies:
                yield policy


def _owned(policy: Policy, budgets: Iterable[wire.BudgetAnswer]) -> list[wire.ClientBudget]:
    whose: dict[str, Any] = {"org_id": policy.org_id, "org_name": policy.org_name}
    if policy.app_id is not None:
        whose |= {"app_id": policy.app_id, "app_name": policy.app_name or policy.app_id}
    return [wire.ClientBudget(**asdict(one), **whose) for one in budgets]


async def _read_answers(
    services: Services, policy: Policy, scopes: Collection[Scope]
) -> list[wire.BudgetAnswer]:
    found = await read_budgets(services, policy, scopes)
    return [_answer(account, balance) for account, balance in found]


async def read_budgets(
    services: Services, policy: Policy, scopes: Collection[Scope] = _SCOPES
) -> list[tuple[BudgetAccount, Balance]]:
    """The budgets of a policy that are of these scopes, in the order of the settings.

    Of a budget for each value of a tag, those that were used in its window.
    """
    now_ms = services.clock.now_ms()
    accounts = [
        one for one in accounts_of(policy, now_ms) if one.scope in scopes and _applies(policy, one)
    ]
    found = [*(await services.ledger.read(accounts)).items()] if accounts else []
    budgets_of = {Scope.ORG: policy.org_budgets, Scope.APP: policy.budgets}
    for scope in scopes:
        for key in dict.fromkeys(one.per_tag for one in budgets_of[scope]):
            if key is not None:
                found += await _read_values(services, policy, scope, key, now_ms)
    order = {name: index for index, name in enumerate(_names(policy))}
    found.sort(key=lambda one: order[one[0].scope, one[0].name])
    return found


def _applies(policy: Policy, account: BudgetAccount) -> bool:
    """Quotas by app are each app's own: no call is held against the organisation's."""
    by_app = policy.quota_scope is QuotaScope.APP and policy.app_id is None
    return account.kind is Kind.BUDGET or not by_app


def _names(policy: Policy) -> Iterable[tuple[Scope, str]]:
    """Budgets in the order of the settings, then quotas in that of the labels."""

    def named(scope: Scope, budgets: Iterable[Budget]) -> Iterable[tuple[Scope, str]]:
        return ((scope, budget.name) for budget in budgets)

    yield from named(Scope.ORG, policy.org_budgets)
    yield from named(Scope.APP, policy.budgets)
    labels = dict.fromkeys((*policy.model_ordering, *policy.quotas))
    yield from ((scope, f"quota-{label}") for scope in Scope for label in labels)


async def _read_values(
    services: Services, policy: Policy, scope: Scope, key: str, now_ms: int
) -> list[tuple[BudgetAccount, Balance]]:
    """The accounts for each value of a tag that are open in their present windows."""
    prefix = f"TAG#{key}#"
    partition = item_partition(policy, scope)
    items = await services.ledger.read_partition(policy.org_id, partition, prefix, ITEMS_MAX)
    found: list[tuple[BudgetAccount, Balance]] = []
    shown = 0
    for item_key, accounts in items.items():
        value = (item_key.sk or "").removeprefix(prefix)
        mine = [
            (account, balance)
            for account in accounts_of(policy, now_ms, {key: value})
            if account.scope is scope and account.tag == (key, value)
            if (balance := accounts.balance(account.id)) is not None
        ]
        found += mine
        shown += bool(mine)
        if shown == VALUES_MAX:
            break
    return found


def _answer(account: BudgetAccount, balance: Balance) -> wire.BudgetAnswer:
    return describe(
        wire.BudgetAnswer,
        account,
        enforcement="HARD" if account.is_hard else "SOFT",
        spent_usd_micros=micros_down(balance.spent),
        held_usd_micros=micros_up(balance.held),
        unsettled_usd_micros=micros_up(balance.unsettled),
        remaining_usd_micros=micros_down(account.limit_usd_picos - balance.used),
        window_started_at=rfc3339(account.span.starts_at_ms),
        resets_at=rfc3339(account.span.ends_at_ms),
        tag=None if account.tag is None else dict([account.tag]),
    )
