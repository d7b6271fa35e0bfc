"""Finds crossed thresholds, fallbacks, and apps without a model left.

A threshold is compared with the **charged** amount, spent and unsettled; holds do not count,
because most of a hold is released. Each threshold of a limit alerts once in a window; a raised
limit is another limit. Each flip of a day is a fallback. All models are spent when no label of the
ordering has quota left. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pricekeeper import showing
from pricekeeper.alerts.alert import AlertKind, Finding, foreign
from pricekeeper.alerts.wording import (
    Subject,
    day_ends_at_ms,
    day_words,
    local_minute,
    micros_of,
    quota_subject,
    rfc3339,
)
from pricekeeper.budgets import Balance, BudgetAccount, Scope
from pricekeeper.budgets import Kind as AccountKind
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.selection import StickyState
from pricekeeper.tenants import Budget, Policy, Window
from pricekeeper.values import ModelLabel

_FULL_PCT: Final = 100
_OFTEN: Final = {
    Window.HOUR: "hourly",
    Window.DAY: "daily",
    Window.WEEK: "weekly",
    Window.MONTH: "monthly",
}


class _Use(NamedTuple):
    charged_usd_picos: int
    limit_usd_picos: int
    threshold_pct: int

    @property
    def facts(self) -> dict[str, int]:
        return {
            "threshold_pct": self.threshold_pct,
            "charged_pct": self.charged_pct,
            "charged_usd_micros": micros_of(self.charged_usd_picos),
            "limit_usd_micros": self.limit_usd_picos // PICOS_PER_MICRO,
        }

    @property
    def charged_pct(self) -> int:
        """Whole percent of the limit; 100 if the limit is 0."""
        if not self.limit_usd_picos:
            return 100
        return self.charged_usd_picos * 100 // self.limit_usd_picos

    @property
    def words(self) -> str:
        """For example ``$160.20 of $200.00 (80 %)``."""
        charged = showing.usd(micros_of(self.charged_usd_picos))
        limit = showing.usd(self.limit_usd_picos // PICOS_PER_MICRO)
        return f"{charged} of {limit} ({self.charged_pct} %)"


def _uses(charged: int, limit: int, at_pct: Iterable[int]) -> Iterator[_Use]:
    """The thresholds that are reached. The first charge reaches all thresholds of a limit of 0."""
    for pct in at_pct:
        if charged > 0 and charged * 100 >= pct * limit:
            yield _Use(charged, limit, pct)


def budget_findings(policy: Policy, balances: Mapping[BudgetAccount, Balance]) -> Iterator[Finding]:
    """Find the crossed thresholds of these accounts."""
    budgets = {
        **{(Scope.ORG, one.name): one for one in policy.org_budgets},
        **{(Scope.APP, one.name): one for one in policy.budgets},
    }
    for account, balance in balances.items():
        budget = budgets.get((account.scope, account.name))
        if account.kind is AccountKind.BUDGET and budget is not None:
            charged = balance.spent + balance.unsettled
            for use in _uses(charged, account.limit_usd_picos, budget.alert_at_pct):
                yield _budget_finding(policy, account, budget, use)


def _budget_finding(policy: Policy, account: BudgetAccount, budget: Budget, use: _Use) -> Finding:
    subject = Subject(policy, account.scope is Scope.APP)
    about: dict[str, object] = {
        "name": account.name,
        "scope": account.scope.value,
        "window": account.window.value,
        "enforcement": budget.enforcement.value,
        **use.facts,
        "window_started_at": rfc3339(account.span.starts_at_ms),
        "resets_at": rfc3339(account.span.ends_at_ms),
    }
    name = f"{_OFTEN[account.window]} budget {foreign(account.name)}"
    if account.labels:
        about["labels"] = list(account.labels)
    if account.tag is not None:
        key, value = account.tag
        about["tag"] = {key: value}
        name += f" for {foreign(key)} {foreign(value) if value else '(none)'}"
    if not account.is_hard:
        effect = "It is soft: it denies no calls."
    elif use.charged_pct >= _FULL_PCT:
        effect = "Calls are denied until then."
    else:
        effect = "Once it is spent, calls are denied."
    resets_at = local_minute(account.span.ends_at_ms, policy.timezone)
    change = subject.change(f"--budget {account.name}={account.window.value}:USD")
    return Finding(
        AlertKind.BUDGET,
        subject.party,
        (
            account.key.pk,
            account.key.sk or "",
            account.id,
            use.limit_usd_picos,
            use.threshold_pct,
        ),
        title=f"{subject.words}: {use.threshold_pct} % of the {name} is spent",
        text=f"{use.words} of the {name} of {subject.words} is spent. "
        f"It resets at {resets_at}. {effect}",
        next_step=f"See what is left: {subject.command('budgets')}. Raise it: {change}",
        about=about,
        lasts_until_ms=account.span.ends_at_ms,
    )


def quota_findings(
    policy: Policy, label: str, day: str, charged_usd_picos: int
) -> Iterator[Finding]:
    """Find the crossed thresholds of a label's quota on that day."""
    quota = policy.quotas.get(ModelLabel(label))
    if quota is None:
        return
    limit, subject = quota * PICOS_PER_MICRO, quota_subject(policy)
    ends_at_ms = day_ends_at_ms(policy, day)
    change = subject.change(f"--quota {label}=USD")
    for use in _uses(charged_usd_picos, limit, policy.alerts.quota_at_pct):
        effect = "Once it is spent, the next model of the ordering takes over."
        if use.charged_pct >= _FULL_PCT:
            effect = "The next model of the ordering takes over until then."
        yield Finding(
            AlertKind.QUOTA,
            subject.party,
            (policy.scope_key, _life(subject), label, day, limit, use.threshold_pct),
            title=f"{subject.words}: {use.threshold_pct} % of the quota of {label} is spent",
            text=f"{use.words} of the quota of {label} of {subject.words} is spent on "
            f"{day_words(day)}. It resets at {local_minute(ends_at_ms, policy.timezone)}. {effect}",
            next_step=f"See who spends: {subject.command('usage show')}. Raise it: {change}",
            about={
                "label": label,
                "scope": subject.scope,
                "day": day_words(day),
                **use.facts,
                "resets_at": rfc3339(ends_at_ms),
            },
            lasts_until_ms=ends_at_ms,
        )


def may_have_changed_model(policy: Policy, spent_usd_picos: Mapping[str, int]) -> bool:
    """Whether to look for a fallback: a label is spent, or a later choice was used."""
    first = policy.model_ordering[0] if policy.model_ordering else None
    return any(
        label != first or _is_spent(policy, label, picos)
        for label, picos in spent_usd_picos.items()
    )


def _is_spent(policy: Policy, label: str, spent_usd_picos: int) -> bool:
    return spent_usd_picos >= policy.quotas.get(ModelLabel(label), 0) * PICOS_PER_MICRO


def fallback_findings(policy: Policy, day: str, sticky: StickyState | None) -> Iterator[Finding]:
    """Find the fallback in force, if there is one."""
    if sticky is None:
        return
    subject = quota_subject(policy)
    until = local_minute(day_ends_at_ms(policy, day), policy.timezone)
    given_up = sorted(sticky.given_up or ([sticky.previous_label] if sticky.previous_label else []))
    left = ", ".join(given_up) or "the first choice"
    org_id, *app_id = subject.target
    override = " ".join(["pricekeeper override set", org_id, "LABEL", *app_id])
    yield _model_finding(
        subject,
        AlertKind.FALLBACK,
        day,
        (sticky.active_label, sticky.active_index),
        title=f"{subject.words}: {left} is spent, {sticky.active_label} takes over",
        text=f"The quota of {left} of {subject.words} is spent on {day_words(day)}. "
        f"Calls use {sticky.active_label} until {until}.",
        next_step=f"See what each has spent: {subject.command('usage show')}. "
        f"Bring one back: raise its quota with --quota, or {override}",
        about={
            "from_labels": given_up,
            "to_label": str(sticky.active_label),
            "since": rfc3339(sticky.activated_at_epoch * 1000),
        },
    )


def exhausted_findings(
    policy: Policy, day: str, spent_usd_picos: Mapping[str, int], skipped: Container[str] = ()
) -> Iterator[Finding]:
    """Find that no model is left. A label without a total has spent nothing.

    ``skipped`` labels are never recommended, so their quotas do not count.
    """
    ordering = [label for label in policy.model_ordering if label not in skipped]
    spent = {label: spent_usd_picos.get(label, 0) for label in ordering}
    if not ordering or not all(_is_spent(policy, label, spent[label]) for label in ordering):
        return
    subject = quota_subject(policy)
    until = local_minute(day_ends_at_ms(policy, day), policy.timezone)
    yield _model_finding(
        subject,
        AlertKind.EXHAUSTED,
        day,
        # All labels, so that a process without a catalogue finds the same identity.
        (*policy.model_ordering, *(policy.quotas.get(one, 0) for one in policy.model_ordering)),
        title=f"{subject.words}: every model is spent",
        text=f"All models of {subject.words} ({', '.join(ordering)}) have spent their quotas on "
        f"{day_words(day)}. Calls are refused until {until}.",
        next_step=f"See what each has spent: {subject.command('usage show')}. "
        f"Allow more: {subject.change(f'--quota {ordering[-1]}=USD')}",
        about={
            "labels": list(map(str, ordering)),
            "spent_usd_micros": {str(label): micros_of(spent[label]) for label in ordering},
            "quota_usd_micros": {str(label): policy.quotas.get(label, 0) for label in ordering},
        },
    )


def _model_finding(
    subject: Subject,
    kind: AlertKind,
    day: str,
    identity: tuple[str | int, ...],
    *,
    about: dict[str, Any],
    **texts: str,
) -> Finding:
    ends_at_ms = day_ends_at_ms(subject.policy, day)
    return Finding(
        kind,
        subject.party,
        (subject.policy.scope_key, _life(subject), day, *identity),
        about={
            "scope": subject.scope,
            "day": day_words(day),
            **about,
            "resets_at": rfc3339(ends_at_ms),
        },
        lasts_until_ms=ends_at_ms,
        **texts,
    )


def _life(subject: Subject) -> str:
    return subject.policy.incarnation if subject.is_app else ""
