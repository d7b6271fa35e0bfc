"""Finds that an organisation has spent far more today than is usual by this time of the week.

*Usual* is the second largest amount of the same weekday in the last four weeks, from midnight to
the end of the present hour; a *usual day* is the same of whole days. The largest is left out, so
that one bad day does not become usual. Three of these days must have spend. Today is an anomaly if
its spend exceeds ``anomaly_pct`` percent of the usual, and the usual by a usual day and by
`DIFFERENCE_USD_MICROS`. One alert a day. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from pricekeeper import showing
from pricekeeper.alerts.alert import AlertKind, Finding
from pricekeeper.alerts.wording import day_ends_at_ms, day_words, micros_of, rfc3339, subject_of
from pricekeeper.days import date_of, day_of, day_start_ms
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
    """The spend of a day in pico-dollars: up to an hour of it, and of the whole day."""

    by_then: int
    whole: int


def past_day(hours: Mapping[int, int], zone: str, day: str, elapsed_ms: int) -> PastDay | None:
    """The spend of a day, and of its part up to the end of the hour at ``elapsed_ms``.

    ``hours``: spend by hour since the epoch. ``None`` if it is empty.
    """
    if not hours:
        return None
    until_ms = day_start_ms(zone, day) + elapsed_ms
    by_then = sum(cost for hour, cost in hours.items() if hour * _MS_PER_HOUR <= until_ms)
    return PastDay(by_then, sum(hours.values()))


def usual_day(past: Sequence[PastDay | None]) -> PastDay | None:
    """The usual spend by these days; ``None`` if too few of them have spend."""
    known = [one for one in past if one is not None]
    if len(known) < WEEKS_MIN:
        return None
    return PastDay(sorted(one.by_then for one in known)[-2], sorted(one.whole for one in known)[-2])


def is_anomalous(spent: int, usual: PastDay | None, pct: int) -> bool:
    """Whether the spend is far above the usual; a ``pct`` of 0 means never."""
    if usual is None or not pct:
        return False
    beyond, least = spent - usual.by_then, DIFFERENCE_USD_MICROS * PICOS_PER_MICRO
    return beyond >= max(least, usual.whole) and spent * 100 > usual.by_then * pct


def anomaly_findings(
    policy: Policy, day: str, spent: int, past: Sequence[PastDay | None], now_ms: int
) -> Iterator[Finding]:
    """Find that far more is spent than usual."""
    usual = usual_day(past)
    if usual is None or not is_anomalous(spent, usual, policy.alerts.anomaly_pct):
        return
    spent_micros, usual_micros = micros_of(spent), micros_of(usual.by_then)
    subject = subject_of(policy)
    times = f"{spent // usual.by_then} times" if usual.by_then else "more than nothing, which is"
    yield Finding(
        AlertKind.ANOMALY,
        subject.party,
        (day,),
        title=f"{subject.words}: {showing.usd(spent_micros)} today, {times} what is usual",
        text=f"{subject.words} has spent {showing.usd(spent_micros)} on {day_words(day)} so far. "
        f"On the same weekday of the last {WEEKS} weeks it was usually "
        f"{showing.usd(usual_micros)} by this hour.",
        next_step="See who spends: "
        f"pricekeeper spend --from {day_words(day)} --group-by app,label,hour; "
        f"stop it: {subject.command('freeze')} --reason TEXT",
        about={
            "day": day_words(day),
            "as_of": rfc3339(now_ms),
            "spent_usd_micros": spent_micros,
            "usual_usd_micros": usual_micros,
            "threshold_pct": policy.alerts.anomaly_pct,
            "past_usd_micros": {
                day_words(one): None if spent is None else micros_of(spent.by_then)
                for one, spent in zip(past_days(day), past, strict=True)
            },
        },
        lasts_until_ms=day_ends_at_ms(policy, day),
    )
