"""How the budgets of a client stand: every one that applies, strict quotas among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from pricekeeper.bootstrap import Services
from pricekeeper.budgets import (
    Balance,
    BudgetAccount,
    Kind,
    Scope,
    accounts_of,
    item_partition,
)
from pricekeeper.budgets.items import balance_of
from pricekeeper.storage import Query, query_items
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.tenants import Budget, Policy, QuotaScope
from pricekeeper.usecases.authorizations import micros_down, micros_up
from pricekeeper.usecases.wire import authorizations as wire
from pricekeeper.usecases.wire.values import rfc3339

VALUES_MAX: Final = 100
"""Values that are shown of a budget for each value of a tag."""
ITEMS_MAX: Final = 1_000
"""Items that are looked at for them: those of values that were used in earlier windows count."""


async def list_budgets(services: Services, policy: Policy) -> wire.BudgetList:
    """Read every budget that applies to a client, in its present window."""
    now_ms = services.clock.now_ms()
    accounts = [one for one in accounts_of(policy, now_ms) if _applies(policy, one)]
    found = [*(await services.budgets.read(accounts)).items()]
    for scope, budgets in ((Scope.ORG, policy.org_budgets), (Scope.APP, policy.budgets)):
        for key in dict.fromkeys(one.per_tag for one in budgets):
            if key is not None:
                found += await _read_values(services, policy, scope, key, now_ms)
    order = {name: index for index, name in enumerate(_names(policy))}
    found.sort(key=lambda one: order[one[0].scope, one[0].name])
    return wire.BudgetList([_answer(account, balance) for account, balance in found])


def _applies(policy: Policy, account: BudgetAccount) -> bool:
    """Quotas by app are each app's own: no call is held against the organisation's."""
    by_app = policy.quota_scope is QuotaScope.APP and policy.app_id is None
    return account.kind is Kind.BUDGET or not by_app


def _names(policy: Policy) -> Iterable[tuple[Scope, str]]:
    """The budgets in the order of the settings, then the quotas in that of the labels."""

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
    query = Query(RATE_BUCKETS, item_partition(policy, scope), prefix=prefix)
    found: list[tuple[BudgetAccount, Balance]] = []
    seen = shown = 0
    async for item in query_items(services.store, query):
        seen += 1
        value = str(item["SK"]).removeprefix(prefix)
        mine = [
            (account, balance)
            for account in accounts_of(policy, now_ms, {key: value})
            if account.scope is scope and account.tag == (key, value)
            if (balance := balance_of(item, account.id)) is not None
        ]
        found += mine
        shown += bool(mine)
        if shown == VALUES_MAX or seen == ITEMS_MAX:
            break
    return found


def _answer(account: BudgetAccount, balance: Balance) -> wire.BudgetAnswer:
    return wire.BudgetAnswer(
        name=account.name,
        scope=account.scope.value,
        window=account.window.value,
        enforcement="HARD" if account.is_hard else "SOFT",
        kind=account.kind.value,
        limit_usd_micros=micros_down(account.limit_usd_picos),
        spent_usd_micros=micros_up(balance.spent),
        held_usd_micros=micros_up(balance.held),
        unsettled_usd_micros=micros_up(balance.unsettled),
        remaining_usd_micros=micros_down(account.limit_usd_picos - balance.used),
        window_started_at=rfc3339(account.span.starts_at_ms),
        resets_at=rfc3339(account.span.ends_at_ms),
        label=UNSET if account.label is None else account.label,
        tag=UNSET if account.tag is None else dict([account.tag]),
    )
