"""Finds high shares of denied and unsettled calls, missing prices, lag, and old secrets.

Each process judges its own calls, in stretches of the clock. These counts are lost with the
process.

- **Denials**: ``denied_pct`` percent of an app's calls in ten minutes were denied, of `ASKED_MIN`
  or more. Once an hour for each app.
- **Unsettled**: ``unsettled_pct`` percent of an organisation's charges in an hour are for
  `UNSETTLED_MIN` or more calls that were never settled. Once a day for each organisation.

Bound: the first `KEYS_MAX` clients of a stretch. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from pricekeeper import showing
from pricekeeper.alerts.alert import AlertKind, Finding, Party, foreign
from pricekeeper.alerts.wording import micros_of, rfc3339, subject_of
from pricekeeper.days import MS_PER_DAY, next_midnight_ms, org_day
from pricekeeper.tenants import Policy

DENIED_MS: Final = 600_000
UNSETTLED_MS: Final = 3_600_000
HOUR_MS: Final = 3_600_000
ASKED_MIN: Final = 20
UNSETTLED_MIN: Final = 5
KEYS_MAX: Final = 10_000
LAG_INTERVALS: Final = 3
LAG_MS_MIN: Final = 180_000
_SECS_PER_DAY: Final = 86_400

K = TypeVar("K")


class Share(NamedTuple):
    """The bad part of a whole, and how many calls that part is."""

    part: int = 0
    times: int = 0
    whole: int = 0

    def reaches(self, pct: int, times_min: int, whole_min: int) -> bool:
        """Whether the share is large enough, of enough calls; 0 percent means never."""
        is_enough = self.times >= times_min and self.whole >= max(1, whole_min)
        return pct > 0 and is_enough and self.part * 100 >= pct * self.whole


_NONE: Final = Share()


class BadShares(Generic[K]):
    """Shares of denied calls or unsettled money, in the present stretch of the clock."""

    def __init__(self, stretch_ms: int) -> None:
        self._stretch_ms = stretch_ms
        self._number = -1
        self._shares: dict[K, Share] = {}

    def note(self, key: K, part: int, whole: int, now_ms: int) -> None:
        self._turn(now_ms)
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= KEYS_MAX:
                return
            share = _NONE
        self._shares[key] = Share(share.part + part, share.times + (part > 0), share.whole + whole)

    def bad(self, now_ms: int) -> list[tuple[K, Share]]:
        self._turn(now_ms)
        return [(key, share) for key, share in self._shares.items() if share.times]

    def _turn(self, now_ms: int) -> None:
        if now_ms // self._stretch_ms != self._number:
            self._number = now_ms // self._stretch_ms
            self._shares = {}


def denial_findings(policy: Policy, share: Share, now_ms: int) -> Iterator[Finding]:
    """Find that many of an app's calls are denied."""
    if not share.reaches(policy.alerts.denied_pct, 1, ASKED_MIN):
        return
    subject = subject_of(policy)
    pct = share.part * 100 // share.whole
    hour_ms = now_ms // HOUR_MS * HOUR_MS
    yield Finding(
        AlertKind.DENIALS,
        subject.party,
        (policy.client_id, policy.incarnation, hour_ms),
        title=f"{subject.words}: {pct} % of its calls are denied",
        text=f"One instance denied {share.part} of {share.whole} calls of {subject.words} in the "
        "last ten minutes.",
        next_step=f"See what is left: {subject.command('budgets')}, and "
        f"{subject.command('limits show')}",
        about={
            "denied": share.part,
            "asked": share.whole,
            "denied_pct": pct,
            "threshold_pct": policy.alerts.denied_pct,
            "since": rfc3339(now_ms // DENIED_MS * DENIED_MS),
        },
        lasts_until_ms=hour_ms + HOUR_MS,
    )


def unsettled_findings(policy: Policy, share: Share, now_ms: int) -> Iterator[Finding]:
    """Find that a large part of an organisation's charges was never settled."""
    if not share.reaches(policy.alerts.unsettled_pct, UNSETTLED_MIN, 1):
        return
    subject = subject_of(policy)
    part, whole = micros_of(share.part), micros_of(share.whole)
    pct = share.part * 100 // share.whole
    yield Finding(
        AlertKind.UNSETTLED,
        subject.party,
        (org_day(policy.timezone, now_ms),),
        title=f"{subject.words}: {pct} % of what is charged was never settled",
        text=f"One instance charged {showing.usd(whole)} to {subject.words} in the last hour, of "
        f"which {showing.usd(part)} is for {share.times} calls that were never settled. Each is "
        "charged at its reserved maximum until it is captured or voided.",
        next_step="Find the app that does not capture its calls: "
        f"pricekeeper authorizations list {policy.org_id} APP --status unsettled",
        about={
            "unsettled_calls": share.times,
            "unsettled_usd_micros": part,
            "charged_usd_micros": whole,
            "unsettled_pct": pct,
            "threshold_pct": policy.alerts.unsettled_pct,
            "since": rfc3339(now_ms // UNSETTLED_MS * UNSETTLED_MS),
        },
        lasts_until_ms=next_midnight_ms(policy.timezone, now_ms),
    )


def price_finding(label: str, *, is_estimated: bool, records: int, now_ms: int) -> Finding:
    """A label without a price of its own; one alert for each label and day of UTC."""
    what = "ESTIMATED" if is_estimated else "UNKNOWN"
    if is_estimated:
        title = f"The price of {label} is estimated"
        effect = "was counted at the highest price of its model, because its tier has no price"
    else:
        title = f"The price of {label} is not known"
        effect = "was refused, because a kind of its tokens has no price"
    return Finding(
        AlertKind.PRICE,
        Party(),
        (what, label, org_day("UTC", now_ms)),
        title=title,
        text=f"Usage of {label} {effect}: {records} records at one instance since its last check.",
        next_step="Add the prices to the deployment file (PRICEKEEPER_CONFIG) and restart; "
        "see pricekeeper prices show",
        about={"label": label, "price": what, "records": records},
        lasts_until_ms=(now_ms // MS_PER_DAY + 1) * MS_PER_DAY,
    )


def lag_findings(caught_up_at_ms: int, interval_secs: int, now_ms: int) -> Iterator[Finding]:
    """The totals are not updated; one alert for each standstill."""
    bound_ms = max(LAG_MS_MIN, LAG_INTERVALS * interval_secs * 1000)
    lag_ms = now_ms - caught_up_at_ms
    if lag_ms < bound_ms:
        return
    yield Finding(
        AlertKind.AGGREGATOR_LAG,
        Party(),
        (caught_up_at_ms,),
        title="Totals are not up to date: the aggregator is behind",
        text=f"No aggregation was complete since {rfc3339(caught_up_at_ms)}, {lag_ms // 1000} "
        "seconds ago. Quotas and alerts about them are late.",
        next_step="Find the cause: pricekeeper doctor, and aggregation_incomplete in the log. "
        "Aggregate by hand: pricekeeper aggregate",
        about={
            "caught_up_at": rfc3339(caught_up_at_ms),
            "lag_secs": lag_ms // 1000,
            "threshold_secs": bound_ms // 1000,
        },
        lasts_until_ms=now_ms,
    )


def secret_findings(policy: Policy, now_ms: int) -> Iterator[Finding]:
    """A client's secret is old; one alert for each multiple of the allowed age."""
    created, days_max = policy.client_secret_created_at_epoch, policy.alerts.secret_days
    if created is None or not days_max:
        return
    age_days = (now_ms // 1000 - created) // _SECS_PER_DAY
    if age_days < days_max:
        return
    subject = subject_of(policy)
    due_epoch = created + (age_days // days_max + 1) * days_max * _SECS_PER_DAY
    yield Finding(
        AlertKind.SECRET_AGE,
        subject.party,
        (policy.client_id, policy.incarnation, created, age_days // days_max * days_max),
        title=f"{subject.words}: its secret is {age_days} days old",
        text=f"The secret of {subject.words} ({foreign(policy.client_id)}) is from "
        f"{rfc3339(created * 1000)}. Everyone who has seen it since can still use it.",
        next_step="Replace it; the old one works for 48 hours: "
        f"{subject.command('credentials rotate')} --grace-hours 48",
        about={
            "client_id": policy.client_id,
            "created_at": rfc3339(created * 1000),
            "age_days": age_days,
            "threshold_days": days_max,
        },
        lasts_until_ms=due_epoch * 1000,
    )
