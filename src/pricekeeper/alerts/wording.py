"""What an alert says to people: what happened, how much of what, until when, and what to do next.

Plain sentences, since they are read in chats, in mails and on telephones. No I/O, no clock.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from pricekeeper import showing
from pricekeeper.alerts.parts import foreign
from pricekeeper.alerts.use import Use
from pricekeeper.budgets import BudgetAccount, Scope
from pricekeeper.days import date_of
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy, Window

FULL_PCT: Final = 100
rfc3339: Final = showing.rfc3339
_OFTEN: Final = {
    Window.HOUR: "hourly",
    Window.DAY: "daily",
    Window.WEEK: "weekly",
    Window.MONTH: "monthly",
}


class Words(NamedTuple):
    """An alert for people, with the marks of `parts.foreign`."""

    title: str
    text: str
    next_step: str


def local_minute(epoch_ms: int, zone: str) -> str:
    """A moment on the organisation's own clocks, such as ``2026-02-01 00:00 Europe/Berlin``."""
    at = datetime.fromtimestamp(epoch_ms // 1000, UTC).astimezone(ZoneInfo(zone))
    return f"{at:%Y-%m-%d %H:%M} {zone}"


def day_words(day: str) -> str:
    """A day as people write it: ``2026-01-23``."""
    return date_of(day).isoformat()


def client_words(policy: Policy, *, is_app: bool) -> str:
    """The organisation, or the app and its organisation, by name."""
    if is_app and policy.app_name is not None:
        return f"{foreign(policy.app_name)} of {foreign(policy.org_name)}"
    return foreign(policy.org_name)


def of_limit(use: Use) -> str:
    """How much of what: ``$160.20 of $200.00 (80 %)``."""
    charged = showing.usd(-(-use.charged_usd_picos // PICOS_PER_MICRO))
    limit = showing.usd(use.limit_usd_picos // PICOS_PER_MICRO)
    return f"{charged} of {limit} ({use.charged_pct} %)"


def budget_words(policy: Policy, account: BudgetAccount, use: Use, *, is_hard: bool) -> Words:
    """A threshold of a budget was crossed."""
    is_app = account.scope is Scope.APP
    whose = client_words(policy, is_app=is_app)
    name = f"{_OFTEN[account.window]} budget {foreign(account.name)}"
    if account.tag is not None:
        key, value = account.tag
        name += f" for {foreign(key)} {foreign(value) if value else '(none)'}"
    anew = local_minute(account.span.ends_at_ms, policy.timezone)
    if use.charged_pct >= FULL_PCT:
        effect = "Calls are denied until then." if is_hard else "It is soft: calls go on."
    elif is_hard:
        effect = "Once it is spent, calls are denied."
    else:
        effect = "It is soft: calls go on when it is spent."
    look = command("budgets", policy, is_app)
    budget = f"{account.name}={account.window.value}:USD"
    change = command("app set" if is_app else "org set", policy, is_app)
    return Words(
        f"{whose}: {use.threshold_pct} % of the {name} is spent",
        f"{of_limit(use)} of the {name} of {whose} is spent. It resets at {anew}. {effect}",
        f"See what is left: {look}. Raise it: {change} --budget {budget}",
    )


def quota_words(policy: Policy, label: str, day: str, use: Use, ends_at_ms: int) -> Words:
    """A threshold of a quota was crossed."""
    is_app = policy.scope_key != f"ORG#{policy.org_id}"
    whose = client_words(policy, is_app=is_app)
    anew = local_minute(ends_at_ms, policy.timezone)
    effect = "Once it is spent, the next model of the ordering takes over."
    if use.charged_pct >= FULL_PCT:
        effect = "The next model of the ordering takes over until then."
    look = command("usage show", policy, is_app)
    change = command("app set" if is_app else "org set", policy, is_app)
    return Words(
        f"{whose}: {use.threshold_pct} % of the quota of {label} is spent",
        f"{of_limit(use)} of the quota of {label} of {whose} is spent on {day_words(day)}. "
        f"It resets at {anew}. {effect}",
        f"See who spends: {look}. Raise it: {change} --quota {label}=USD",
    )


def command(words: str, policy: Policy, is_app: bool) -> str:  # noqa: FBT001 - app or not
    """A command about the organisation or the app, to be pasted."""
    return " ".join(["pricekeeper", words, *target_words(policy, is_app)])


def target_words(policy: Policy, is_app: bool) -> list[str]:  # noqa: FBT001 - app or not
    """The ids of the organisation and of the app, to be pasted into a shell.

    An app's id may look like a host. Quotes part it at its dots, so that it is no link in a mail.
    """
    ids = [policy.org_id, *([policy.app_id] if is_app and policy.app_id is not None else [])]
    return [shlex.quote(one).replace(".", "'.'") for one in ids]
