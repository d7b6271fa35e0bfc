"""Forecasts when the budgets of a client will be spent, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pricekeeper.bootstrap import Services
from pricekeeper.budgets import Balance, BudgetAccount, Scope, Span, window_at
from pricekeeper.days import day_start_ms
from pricekeeper.forecast import Forecast, Hourly, RecordedHours, Stretch, forecast
from pricekeeper.metering import org_day
from pricekeeper.metering.breakdown import DAY, Grouping
from pricekeeper.metering.ranges import DayRange, RangeReader
from pricekeeper.tenants import Policy, Window
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.budgets import read_budgets
from pricekeeper.usecases.describing import describe, micros_down, micros_up
from pricekeeper.wire import spend as wire
from pricekeeper.wire.values import rfc3339

TOTAL_WINDOWS: Final = (Window.DAY, Window.MONTH)
_NO_HOURS: Final = Hourly({}, 0)


class _Subject(NamedTuple):
    """A window to forecast, in pico-dollars, and the fields of its answer."""

    span: Span
    spent: int
    limit: int | None
    hourly: Hourly
    about: Mapping[str, Any]


async def list_forecasts(ask: Ask) -> wire.ForecastList:
    """A forecast for every budget that applies, and for today's and this month's total.

    A budget for each value of a tag has a straight line alone: hours of the many totals by tag
    would cost more to read than all others together.
    """
    services, policy = ask.services, ask.policy
    now_ms = services.clock.now_ms()
    budgets = await read_budgets(services, policy)
    own = Scope.ORG if policy.app_id is None else Scope.APP
    recorded = {
        scope: await services.spend_history.read(policy, whole_org=scope is Scope.ORG)
        for scope in {own, *(account.scope for account, _ in budgets)}
    }
    spent_by_day = await _read_month(services, policy, now_ms)
    subjects = [_budget(account, balance, recorded) for account, balance in budgets]
    subjects += [
        _total(window, policy.timezone, own, recorded[own], spent_by_day, now_ms)
        for window in TOTAL_WINDOWS
    ]
    # Tens of milliseconds of arithmetic, which must not delay others.
    answers = await asyncio.to_thread(_forecast_all, subjects, policy.timezone, now_ms)
    return wire.ForecastList(answers)


async def _read_month(services: Services, policy: Policy, now_ms: int) -> dict[str, int]:
    month = window_at(Window.MONTH, policy.timezone, now_ms)
    days = DayRange(org_day(policy.timezone, month.starts_at_ms), org_day(policy.timezone, now_ms))
    reader = RangeReader(services.store, services.clock)
    found = await reader.read_spend([policy.org_id], policy.app_id, days, Grouping((DAY,)))
    return {row.group[0]: row.counters.cost_usd_picos for row in found.rows}


def _budget(
    account: BudgetAccount, balance: Balance, recorded: Mapping[Scope, RecordedHours]
) -> _Subject:
    about = {
        "kind": account.kind.value,
        "scope": account.scope.value,
        "window": account.window.value,
        "name": account.name,
        "label": account.label,
        "tag": None if account.tag is None else dict([account.tag]),
    }
    hourly = _NO_HOURS
    if account.tag is None:
        hourly = recorded[account.scope].of(account.labels)
    spent = balance.spent + balance.unsettled
    return _Subject(account.span, spent, account.limit_usd_picos, hourly, about)


def _total(
    window: Window,
    zone: str,
    scope: Scope,
    recorded: RecordedHours,
    spent_by_day: Mapping[str, int],
    now_ms: int,
) -> _Subject:
    span = window_at(window, zone, now_ms)
    spent = sum(
        picos for day, picos in spent_by_day.items() if day_start_ms(zone, day) >= span.starts_at_ms
    )
    about = {"kind": "TOTAL", "scope": scope.value, "window": window.value}
    return _Subject(span, spent, None, recorded.of(), about)


def _forecast_all(
    subjects: Sequence[_Subject], zone: str, now_ms: int
) -> list[wire.ForecastAnswer]:
    answers = []
    for subject in subjects:
        stretch = Stretch(subject.span.starts_at_ms, now_ms, subject.span.ends_at_ms, zone)
        made = forecast(stretch, subject.spent, subject.limit, subject.hourly)
        answers.append(_answer(subject, made))
    return answers


def _answer(subject: _Subject, made: Forecast) -> wire.ForecastAnswer:
    ends = {"spent_at": made.reached_at_ms, "spent_at_earliest": made.reached_at_ms_earliest}
    return describe(
        wire.ForecastAnswer,
        made,
        window_started_at=rfc3339(subject.span.starts_at_ms),
        resets_at=rfc3339(subject.span.ends_at_ms),
        limit_usd_micros=None if subject.limit is None else micros_down(subject.limit),
        spent_usd_micros=micros_down(subject.spent),
        expected_usd_micros=_micros(made.expected),
        low_usd_micros=_micros(made.low),
        high_usd_micros=_micros(made.high),
        straight_line_usd_micros=_micros(made.straight_line),
        method=made.method.value,
        **{name: at_ms and rfc3339(at_ms) for name, at_ms in ends.items()},
        **subject.about,
    )


def _micros(usd_picos: int | None) -> int | None:
    """Rounded up, so that a forecast is never below the spending."""
    return None if usd_picos is None else micros_up(usd_picos)
