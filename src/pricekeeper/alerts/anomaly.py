"""Whether an organisation has spent far more today than it usually has by this time of the week.

The rule, in whole numbers. *Usual* is the second largest of what was spent on the same weekday in
the last four weeks, from midnight to the end of the hour that it is now, by the organisation's
clocks; a *usual day* is the same of the whole days. (The largest does not count, so one bad day is
not usual for a month.) It takes three such days on which anything was spent. Today is an anomaly if
it is more than ``anomaly_pct`` percent of what is usual by now, and if what it is beyond that is a
usual day at least, and no less than `DIFFERENCE_USD_MICROS`. Told once a day.

What is compared is today's spend so far with whole hours of the past, so the part of the present
hour that is still to come is never a reason. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from pricekeeper import showing
from pricekeeper.alerts.alert import AlertKind, Finding, Owner
from pricekeeper.alerts.wording import client_words, command, day_words, rfc3339
from pricekeeper.days import date_of, day_of, day_start_ms, next_midnight_ms
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy

WEEKS: Final = 4
WEEKS_MIN: Final = 3
DIFFERENCE_USD_MICROS: Final = 5_000_000
_MS_PER_HOUR: Final = 3_600_000


def past_days(day: str) -> list[str]:
    """The same weekday in each of the last weeks, the latest first."""
    return [day_of(date_of(day) - timedelta(weeks=week)) for week in range(1, WEEKS + 1)]


class PastDay(NamedTuple):
    """What was spent on a day, in pico-dollars: up to an hour of it, and on all of it."""

    by_then: int
    whole: int


def past_day(hours: Mapping[int, int], zone: str, day: str, elapsed_ms: int) -> PastDay | None:
    """What was spent on a day up to the end of the hour that is so far into it.

    ``hours`` has what was spent in each hour since the epoch, of that day. ``None`` without any.
    """
    if not hours:
        return None
    until_ms = day_start_ms(zone, day) + elapsed_ms
    by_then = sum(cost for hour, cost in hours.items() if hour * _MS_PER_HOUR <= until_ms)
    return PastDay(by_then, sum(hours.values()))


def usual_day(past: Sequence[PastDay | None]) -> PastDay | None:
    """What is usual by these days; ``None`` if there are too few of them to tell."""
    known = [one for one in past if one is not None]
    if len(known) < WEEKS_MIN:
        return None
    return PastDay(sorted(one.by_then for one in known)[-2], sorted(one.whole for one in known)[-2])


def is_anomalous(spent: int, usual: PastDay | None, pct: int) -> bool:
    """Whether that is far above what is usual; a ``pct`` of 0 is never."""
    if usual is None or not pct:
        return False
    beyond, least = spent - usual.by_then, DIFFERENCE_USD_MICROS * PICOS_PER_MICRO
    return beyond >= max(least, usual.whole) and spent * 100 > usual.by_then * pct


def anomaly_findings(
    policy: Policy, day: str, spent: int, past: Sequence[PastDay | None], now_ms: int
) -> Iterator[Finding]:
    """That far more is spent than usual, if that is so."""
    usual = usual_day(past)
    if usual is None or not is_anomalous(spent, usual, policy.alerts.anomaly_pct):
        return
    spent_micros, usual_micros = (-(-picos // PICOS_PER_MICRO) for picos in (spent, usual.by_then))
    whose = client_words(policy, is_app=False)
    times = f"{spent // usual.by_then} times" if usual.by_then else "more than nothing, which is"
    yield Finding(
        kind=AlertKind.ANOMALY,
        owner=Owner(policy.org_id, policy.org_incarnation),
        identity=(day,),
        title=f"{whose}: {showing.usd(spent_micros)} today, {times} what is usual",
        text=f"{whose} has spent {showing.usd(spent_micros)} on {day_words(day)} so far. "
        f"On the same weekday of the last {WEEKS} weeks it was usually "
        f"{showing.usd(usual_micros)} by this hour.",
        next_step="See who spends: "
        f"pricekeeper spend --from {day_words(day)} --group-by app,label,hour; "
        f"stop it: {command('freeze', policy, is_app=False)} --reason TEXT",
        about={
            "day": day_words(day),
            "as_of": rfc3339(now_ms),
            "spent_usd_micros": spent_micros,
            "usual_usd_micros": usual_micros,
            "threshold_pct": policy.alerts.anomaly_pct,
            "past_usd_micros": {
                day_words(one): None if spent is None else -(-spent.by_then // PICOS_PER_MICRO)
                for one, spent in zip(past_days(day), past, strict=True)
            },
        },
        lasts_until_ms=next_midnight_ms(policy.timezone, day_start_ms(policy.timezone, day)),
        org_name=policy.org_name,
    )
