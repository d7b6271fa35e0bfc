"""Aggregates: what a day, or a range of days, came to, and where budgets will end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.errors import InvalidValueError
from pricekeeper.http.caching import cached_answer
from pricekeeper.http.encoding import encode_answer
from pricekeeper.http.operation import APP, ORG, Access, Answer, Call, Operation, Parameter
from pricekeeper.selection import QuotaStatus
from pricekeeper.tenants import Policy
from pricekeeper.usecases import aggregates as cases
from pricekeeper.usecases import forecast
from pricekeeper.usecases.queries import parse_date, parse_each
from pricekeeper.wire import spend as wire
from pricekeeper.wire.spend import ForecastList

PAST_DAY_SECS: Final = 300

_DATE: Final = {"type": "string", "format": "date"}
_RANGE: Final = (
    Parameter("from", "The first day, yyyy-mm-dd.", _DATE, required=True),
    Parameter("to", "The last day, yyyy-mm-dd.", _DATE, required=True),
)


async def read_today(call: Call) -> Answer:
    """What the organisation's present day has come to so far."""
    return await _answer_day(call, cases.today(call.services, call.policy))


async def read_day(call: Call) -> Answer:
    """What a day came to; a past day without data has zeros."""
    return await _answer_day(call, _date(call.path["date"]))


async def read_range(call: Call) -> Answer:
    """What each day of a range came to, the earliest first."""
    first, last = _ends(call.request.query)
    answer, as_of_ms = await cases.read_range(call.services, call.policy, first, last)
    max_age = _max_age(call.policy, QuotaStatus.NORMAL)
    return cached_answer(call, encode_answer(answer), max_age, _lag(call, as_of_ms))


async def get_forecast(call: Call) -> Answer:
    """Where every budget that applies will end, and when it will be spent."""
    return Answer(200, await forecast.list_forecasts(call.services, call.policy))


async def _answer_day(call: Call, day: date) -> Answer:
    answer, as_of_ms = await cases.read_day(call.services, call.policy, day)
    tight = any(model.quota_status != QuotaStatus.NORMAL for model in answer.models.values())
    mode = QuotaStatus.TIGHT if tight else QuotaStatus.NORMAL
    is_today = day == cases.today(call.services, call.policy)
    max_age = _max_age(call.policy, mode) if is_today else PAST_DAY_SECS
    return cached_answer(call, encode_answer(answer), max_age, _lag(call, as_of_ms))


def _lag(call: Call, as_of_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    """The header that says how old the oldest part of an answer is."""
    lag_secs = max(0, call.services.clock.now_ms() - as_of_ms) // 1000
    return ((b"x-data-lag-secs", b"%d" % lag_secs),)


def _ends(query: Mapping[str, str]) -> tuple[date, date]:
    """The first and the last day of a range; every mistake is told."""
    ends = ("from", "to")
    required = dict.fromkeys(ends, "yyyy-mm-dd")
    first, last = parse_each(query, dict.fromkeys(ends, _date), required=required).values()
    return first, last


def _date(text: str) -> date:
    try:
        return parse_date(text)
    except ValueError:
        raise InvalidValueError("date", "must be a date such as 2026-01-23") from None


def _max_age(policy: Policy, mode: QuotaStatus) -> int:
    if mode is QuotaStatus.NORMAL:
        return policy.refresh_interval_normal_secs
    return policy.refresh_interval_tight_secs


_row: Final = partial(Operation, limit="aggregates", tag="aggregates", role=Role.VIEWER)
_DAY: Final = {200: wire.AggregateAnswer, 304: None}
_DAYS: Final = {200: wire.AggregateRange, 304: None}


def _operations(kind: str, base: str, access: Access) -> tuple[Operation, ...]:
    path, name = f"{base}/aggregates", f"{kind}Aggregates"
    return (
        _row("GET", f"{base}/forecast", f"get{kind.title()}Forecast", get_forecast,
             {200: ForecastList}, access),
        _row("GET", f"{path}/today", f"{name}Today", read_today, _DAY, access),
        _row("GET", f"{path}/{{date}}", f"{name}OnDay", read_day, _DAY, access),
        _row("GET", path, f"{name}InRange", read_range, _DAYS, access, query=_RANGE),
    )  # fmt: skip


OPERATIONS: Final = (*_operations("app", APP, Access.APP), *_operations("org", ORG, Access.ORG))
