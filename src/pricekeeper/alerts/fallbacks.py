"""A model whose quota is spent gives way to the next one, or there is none left. No I/O, no clock.

A fallback is what the record of flips says is in force on a day; each later flip of the day is
another. All models are spent when every label of the ordering has spent its quota, or has none.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from pricekeeper.alerts.alert import AlertKind, Finding, Owner
from pricekeeper.alerts.wording import (
    client_words,
    command,
    day_words,
    local_minute,
    rfc3339,
    target_words,
)
from pricekeeper.days import day_start_ms, next_midnight_ms
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.selection.fallback import StickyState
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel


def may_have_changed_model(policy: Policy, spent_usd_picos: Mapping[str, int]) -> bool:
    """Whether what was spent gives a reason to look for a fallback.

    That is a label that is spent, or usage of one that is not the first choice.
    """
    first = policy.model_ordering[0] if policy.model_ordering else None
    return any(
        label != first or is_spent(policy, label, picos) for label, picos in spent_usd_picos.items()
    )


def is_spent(policy: Policy, label: str, spent_usd_picos: int) -> bool:
    """Whether a label has spent its whole quota of the day."""
    return spent_usd_picos >= policy.quotas.get(ModelLabel(label), 0) * PICOS_PER_MICRO


def fallback_findings(policy: Policy, day: str, sticky: StickyState | None) -> Iterator[Finding]:
    """The fallback in force, if there is one."""
    if sticky is None:
        return
    whose, until_ms = _whose(policy), _ends_at_ms(policy, day)
    given_up = sorted(sticky.given_up or ([sticky.previous_label] if sticky.previous_label else []))
    left = ", ".join(given_up) or "the first choice"
    yield _finding(
        policy,
        AlertKind.FALLBACK,
        day,
        (sticky.active_label, sticky.active_index),
        title=f"{whose}: {left} is spent, {sticky.active_label} takes over",
        text=f"The quota of {left} of {whose} is spent on {day_words(day)}. Calls use "
        f"{sticky.active_label} until {local_minute(until_ms, policy.timezone)}.",
        next_step=f"See what each has spent: {command('usage show', policy, _by_app(policy))}. "
        f"Bring one back: raise its quota with --quota, or {_override(policy)}",
        about={
            "from_labels": given_up,
            "to_label": str(sticky.active_label),
            "since": rfc3339(sticky.activated_at_epoch * 1000),
        },
    )


def exhausted_findings(
    policy: Policy, day: str, spent_usd_picos: Mapping[str, int], skipped: Container[str] = ()
) -> Iterator[Finding]:
    """That no model is left, if that is so. Labels without a total have spent nothing.

    Labels that are ``skipped`` are never recommended, whatever is left of their quotas.
    """
    ordering = [label for label in policy.model_ordering if label not in skipped]
    if not ordering or not all(
        is_spent(policy, label, spent_usd_picos.get(label, 0)) for label in ordering
    ):
        return
    whose, until_ms = _whose(policy), _ends_at_ms(policy, day)
    quotas = tuple(policy.quotas.get(label, 0) for label in ordering)
    yield _finding(
        policy,
        AlertKind.EXHAUSTED,
        day,
        # The same with and without a catalogue, so that two processes tell it once.
        (*policy.model_ordering, *(policy.quotas.get(one, 0) for one in policy.model_ordering)),
        title=f"{whose}: every model is spent",
        text=f"All models of {whose} ({', '.join(ordering)}) have spent their quotas on "
        f"{day_words(day)}. Calls are refused until {local_minute(until_ms, policy.timezone)}.",
        next_step=f"See what each has spent: {command('usage show', policy, _by_app(policy))}. "
        f"Go on: {command('app set' if _by_app(policy) else 'org set', policy, _by_app(policy))} "
        f"--quota {ordering[-1]}=USD",
        about={
            "labels": list(map(str, ordering)),
            "spent_usd_micros": {
                str(label): -(-spent_usd_picos.get(label, 0) // PICOS_PER_MICRO)
                for label in ordering
            },
            "quota_usd_micros": {
                str(label): quota for label, quota in zip(ordering, quotas, strict=True)
            },
        },
    )


def _finding(
    policy: Policy,
    kind: AlertKind,
    day: str,
    identity: tuple[str | int, ...],
    *,
    title: str,
    text: str,
    next_step: str,
    about: dict[str, Any],
) -> Finding:
    by_app = _by_app(policy)
    ends_at_ms = _ends_at_ms(policy, day)
    return Finding(
        kind=kind,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(policy.scope_key, policy.incarnation if by_app else "", day, *identity),
        title=title,
        text=text,
        next_step=next_step,
        about={
            "scope": "APP" if by_app else "ORG",
            "day": day_words(day),
            **about,
            "resets_at": rfc3339(ends_at_ms),
        },
        lasts_until_ms=ends_at_ms,
        org_name=policy.org_name,
        app_id=policy.app_id if by_app else None,
        app_name=policy.app_name if by_app else None,
    )


def _by_app(policy: Policy) -> bool:
    return policy.scope_key != f"ORG#{policy.org_id}"


def _whose(policy: Policy) -> str:
    return client_words(policy, is_app=_by_app(policy))


def _ends_at_ms(policy: Policy, day: str) -> int:
    return next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day))


def _override(policy: Policy) -> str:
    org_id, *app_id = target_words(policy, _by_app(policy))
    return " ".join(["pricekeeper override set", org_id, "LABEL", *app_id])
