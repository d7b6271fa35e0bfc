"""What whoever runs the deployment should know: prices, totals that lag, secrets that are old.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pricekeeper.alerts.alert import DEPLOYMENT, AlertKind, Finding, Owner
from pricekeeper.alerts.parts import foreign
from pricekeeper.alerts.wording import client_words, command, rfc3339
from pricekeeper.days import MS_PER_DAY, org_day
from pricekeeper.tenants import Policy

LAG_INTERVALS: Final = 3
LAG_MS_MIN: Final = 180_000
_SECS_PER_DAY: Final = 86_400


def price_finding(label: str, *, is_estimated: bool, records: int, now_ms: int) -> Finding:
    """That usage of a label has no price of its own. Told once a day of UTC for each label."""
    day = org_day("UTC", now_ms)
    what = "ESTIMATED" if is_estimated else "UNKNOWN"
    if is_estimated:
        title = f"The price of {label} is estimated"
        effect = "was counted at the highest price of its model, because its tier has no price"
    else:
        title = f"The price of {label} is not known"
        effect = "was refused, because a kind of its tokens has no price"
    return Finding(
        kind=AlertKind.PRICE,
        owner=DEPLOYMENT,
        identity=(what, label, day),
        title=title,
        text=f"Usage of {label} {effect}: {records} records at one instance since its last look.",
        next_step="Add the prices to the deployment file (PRICEKEEPER_CONFIG) and restart; "
        "see pricekeeper prices show",
        about={"label": label, "price": what, "records": records},
        lasts_until_ms=(now_ms // MS_PER_DAY + 1) * MS_PER_DAY,
    )


def lag_findings(caught_up_at_ms: int, interval_secs: int, now_ms: int) -> Iterator[Finding]:
    """That the totals are not brought up to date. Each standstill is told once."""
    bound_ms = max(LAG_MS_MIN, LAG_INTERVALS * interval_secs * 1000)
    lag_ms = now_ms - caught_up_at_ms
    if lag_ms < bound_ms:
        return
    yield Finding(
        kind=AlertKind.AGGREGATOR_LAG,
        owner=DEPLOYMENT,
        identity=(caught_up_at_ms,),
        title="Totals are not up to date: the aggregator is behind",
        text=f"No aggregation was complete since {rfc3339(caught_up_at_ms)}, {lag_ms // 1000} "
        "seconds ago. Quotas are enforced late, and alerts about them come late.",
        next_step="See what is wrong: pricekeeper doctor, and aggregation_incomplete in the log. "
        "Aggregate by hand: pricekeeper aggregate",
        about={
            "caught_up_at": rfc3339(caught_up_at_ms),
            "lag_secs": lag_ms // 1000,
            "threshold_secs": bound_ms // 1000,
        },
        lasts_until_ms=now_ms,
    )


def secret_findings(policy: Policy, now_ms: int) -> Iterator[Finding]:
    """That a client's secret is old. Told at each multiple of the age that it may have."""
    created, days_max = policy.client_secret_created_at_epoch, policy.alerts.secret_days
    if created is None or not days_max:
        return
    age_days = (now_ms // 1000 - created) // _SECS_PER_DAY
    if age_days < days_max:
        return
    is_app = policy.app_id is not None
    whose = client_words(policy, is_app=is_app)
    due_epoch = created + (age_days // days_max + 1) * days_max * _SECS_PER_DAY
    yield Finding(
        kind=AlertKind.SECRET_AGE,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(policy.client_id, policy.incarnation, created, age_days // days_max * days_max),
        title=f"{whose}: its secret is {age_days} days old",
        text=f"The secret of {whose} ({foreign(policy.client_id)}) is from "
        f"{rfc3339(created * 1000)}. "
        "Whoever has seen it since can still use it.",
        next_step="Replace it, with time to roll it out: "
        f"{command('credentials rotate', policy, is_app)} --grace-hours 48",
        about={
            "client_id": policy.client_id,
            "created_at": rfc3339(created * 1000),
            "age_days": age_days,
            "threshold_days": days_max,
        },
        lasts_until_ms=due_epoch * 1000,
        org_name=policy.org_name,
        app_id=policy.app_id,
        app_name=policy.app_name,
    )
