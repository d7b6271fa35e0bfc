"""Which thresholds of budgets and quotas were crossed. No I/O, no clock.

What counts is what was **charged**: spent and unsettled. What is held for calls that are under way
does not count, because most of it comes back.

A threshold is found once in a window for each limit: raise the limit, and its thresholds are
looked at anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pricekeeper.alerts.alert import AlertKind, Finding, Owner
from pricekeeper.alerts.use import Use, uses
from pricekeeper.alerts.wording import budget_words, day_words, quota_words, rfc3339
from pricekeeper.budgets import Balance, BudgetAccount, Scope
from pricekeeper.budgets import Kind as AccountKind
from pricekeeper.days import day_start_ms, next_midnight_ms
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Budget, Policy
from pricekeeper.values import ModelLabel


def budget_findings(policy: Policy, balances: Mapping[BudgetAccount, Balance]) -> Iterator[Finding]:
    """The thresholds of these accounts that were crossed."""
    budgets = {
        **{(Scope.ORG, one.name): one for one in policy.org_budgets},
        **{(Scope.APP, one.name): one for one in policy.budgets},
    }
    for account, balance in balances.items():
        budget = budgets.get((account.scope, account.name))
        if account.kind is AccountKind.BUDGET and budget is not None:
            charged = balance.spent + balance.unsettled
            for use in uses(charged, account.limit_usd_picos, budget.alert_at_pct):
                yield _budget_finding(policy, account, budget, use)


def _budget_finding(policy: Policy, account: BudgetAccount, budget: Budget, use: Use) -> Finding:
    app_id = policy.app_id if account.scope is Scope.APP else None
    about: dict[str, object] = {
        "name": account.name,
        "scope": account.scope.value,
        "window": account.window.value,
        "enforcement": budget.enforcement.value,
        **use.facts,
        "window_started_at": rfc3339(account.span.starts_at_ms),
        "resets_at": rfc3339(account.span.ends_at_ms),
    }
    if account.labels:
        about["labels"] = list(account.labels)
    if account.tag is not None:
        about["tag"] = dict([account.tag])
    words = budget_words(policy, account, use, is_hard=account.is_hard)
    return Finding(
        kind=AlertKind.BUDGET,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(
            account.key.pk,
            account.key.sk or "",
            account.id,
            use.limit_usd_picos,
            use.threshold_pct,
        ),
        title=words.title,
        text=words.text,
        next_step=words.next_step,
        about=about,
        lasts_until_ms=account.span.ends_at_ms,
        org_name=policy.org_name,
        app_id=app_id,
        app_name=None if app_id is None else policy.app_name,
    )


def quota_findings(
    policy: Policy, label: str, day: str, charged_usd_picos: int
) -> Iterator[Finding]:
    """The thresholds of a label's quota on that day that were crossed."""
    quota = policy.quotas.get(ModelLabel(label))
    if quota is None:
        return
    limit = quota * PICOS_PER_MICRO
    by_app = policy.scope_key != f"ORG#{policy.org_id}"
    ends_at_ms = next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day))
    for use in uses(charged_usd_picos, limit, policy.alerts.quota_at_pct):
        words = quota_words(policy, label, day, use, ends_at_ms)
        yield Finding(
            kind=AlertKind.QUOTA,
            owner=Owner(policy.org_id, policy.org_incarnation),
            identity=(
                policy.scope_key,
                policy.incarnation if by_app else "",
                label,
                day,
                limit,
                use.threshold_pct,
            ),
            title=words.title,
            text=words.text,
            next_step=words.next_step,
            about={
                "label": label,
                "scope": "APP" if by_app else "ORG",
                "day": day_words(day),
                **use.facts,
                "resets_at": rfc3339(ends_at_ms),
            },
            lasts_until_ms=ends_at_ms,
            org_name=policy.org_name,
            app_id=policy.app_id if by_app else None,
            app_name=policy.app_name if by_app else None,
        )
