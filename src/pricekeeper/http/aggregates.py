"""Aggregates: what a day, or a range of days, came to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError
from pricekeeper.http.caching import cached
from pricekeeper.http.operation import Access, Answer, Call, Operation, Parameter
from pricekeeper.http.runtime import quota_use
from pricekeeper.metering import Total, day_start_ms, org_day
from pricekeeper.metering.days import day_of
from pricekeeper.selection import QuotaStatus
from pricekeeper.tenants import Policy, QuotaScope
from pricekeeper.usecases.wire import aggregates as wire
from pricekeeper.usecases.wire.values import rfc3339
from pricekeeper.values import ModelLabel

DAYS_MAX: Final = 92
DAYS_AT_ONCE: Final = 8
PAST_DAY_SECS: Final = 300

_ORG: Final = "/api/v1/orgs/{org_id}"
_APP: Final = "/api/v1/orgs/{org_id}/apps/{app_id}"
_YYYY_MM_DD: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATE: Final = {"type": "string", "format": "date"}
_RANGE: Final = (
    Parameter("from", "The first day, yyyy-mm-dd.", _DATE, required=True),
    Parameter("to", "The last day, yyyy-mm-dd.", _DATE, required=True),
)


async def today(call: Call) -> Answer:
    """What the organisation's present day has come to so far."""
    return await _one_day(call, _today(call))


async def on_day(call: Call) -> Answer:
    """What a day came to; a past day without data has zeros."""
    day = _date("date", call.path["date"])
    if day > _today(call):
        raise InvalidValueError("date", "is in the future")
    return await _one_day(call, day)


async def in_range(call: Call) -> Answer:
    """What each day of a range came to, the earliest first."""
    policy, query, now = call.policy, call.request.query, _today(call)
    first, last = _ends(query)
    if last > now:
        raise InvalidValueError("to", "is in the future")
    if not timedelta(0) <= last - first < timedelta(days=DAYS_MAX):
        raise InvalidValueError("from", f"must be at most {DAYS_MAX} days up to `to`")
    turn = asyncio.Semaphore(DAYS_AT_ONCE)
    quotas = await _quotas(call)

    async def read(day: date) -> tuple[wire.AggregateAnswer, int]:
        async with turn:
            return await _aggregate(call, day, quotas)

    count = (last - first).days + 1
    read_days = await asyncio.gather(*(read(first + timedelta(days=n)) for n in range(count)))
    days = [answer for answer, _ in read_days]
    more = {} if policy.app_id is None else {"app_id": str(policy.app_id)}
    body = wire.AggregateRange(policy.org_id, days, **more)
    oldest_ms = min(as_of_ms for _, as_of_ms in read_days)
    return cached(call, body, _max_age(policy, QuotaStatus.NORMAL), _lag(call, oldest_ms))


async def _one_day(call: Call, day: date) -> Answer:
    answer, as_of_ms = await _aggregate(call, day, await _quotas(call))
    tight = any(model.quota_status != QuotaStatus.NORMAL for model in answer.models.values())
    mode = QuotaStatus.TIGHT if tight else QuotaStatus.NORMAL
    max_age = _max_age(call.policy, mode) if day == _today(call) else PAST_DAY_SECS
    return cached(call, answer, max_age, _lag(call, as_of_ms))


def _lag(call: Call, as_of_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    """The header that says how old the oldest part of an answer is."""
    lag_secs = max(0, call.services.clock.now_ms() - as_of_ms) // 1000
    return ((b"x-data-lag-secs", b"%d" % lag_secs),)


async def _aggregate(
    call: Call, day: date, quotas: Mapping[ModelLabel, int]
) -> tuple[wire.AggregateAnswer, int]:
    """The answer for a day, and the moment up to which it is complete.

    Before the first aggregation that is the day's beginning: nothing had been counted by then.
    """
    policy, name = call.policy, day_of(day)
    metering, more = call.services.metering, dict[str, Any]()
    if policy.app_id is None:
        found = await metering.org_totals(policy.org_id, policy.model_ordering, name)
        totals = found.total
        if policy.quota_scope is QuotaScope.APP:
            more["apps"] = {
                str(app): sum(total.cost_usd_micros for total in by_label.values())
                for app, by_label in found.apps.items()
            }
    else:
        labels = {*policy.model_ordering, *await metering.labels_used(policy.scope_key, name)}
        totals = await metering.totals(policy.scope_key, sorted(labels), name)
        more["app_id"] = str(policy.app_id)
    active, sticky = None, False
    if day == _today(call):
        decision = await call.services.selection.assess(policy)
        active, sticky = decision.label, decision.choice.sticky_fallback_active
    as_of_ms = min((total.as_of_ms for total in totals.values()), default=0)
    cost = sum(total.cost_usd_micros for total in totals.values())
    quota = sum(quotas.get(label, 0) for label in policy.model_ordering)
    answer = wire.AggregateAnswer(
        org_id=policy.org_id,
        date=day.isoformat(),
        timezone=policy.timezone,
        quota_scope=policy.quota_scope,
        models=_models(call, policy, totals, quotas),
        total_cost_usd_micros=cost,
        total_quota_usd_micros=quota,
        total_quota_pct=quota_use(policy, cost, quota)[0],
        sticky_fallback_active=sticky,
        current_active_model=active,
        updated_at=rfc3339(as_of_ms) if as_of_ms else None,
        **more,
    )
    return answer, max(as_of_ms, day_start_ms(policy.timezone, name))


def _models(
    call: Call,
    policy: Policy,
    totals: Mapping[ModelLabel, Total],
    quotas: Mapping[ModelLabel, int],
) -> dict[str, wire.ModelAggregate]:
    catalogue = call.services.prices.catalogue
    ordered = [*policy.model_ordering, *sorted(totals.keys() - set(policy.model_ordering))]
    made = {}
    for label in ordered:
        total, quota = totals.get(label, Total()), quotas.get(label, 0)
        percent, status = quota_use(policy, total.cost_usd_micros, quota)
        made[str(label)] = wire.ModelAggregate(
            bedrock_model_id=catalogue.model(label).bedrock_model_id if label in catalogue else "",
            cost_usd_micros=total.cost_usd_micros,
            quota_usd_micros=quota,
            quota_pct=percent,
            quota_status=status,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            cache_read_tokens=total.cache_read_tokens,
            cache_write_tokens=total.cache_write_tokens,
            requests=total.requests,
            average_cost_usd_micros=total.cost_usd_micros // total.requests
            if total.requests
            else 0,
        )
    return made


async def _quotas(call: Call) -> Mapping[ModelLabel, int]:
    """What may be spent a day: where each app has its own quotas, all of them together.

    Raises `UnreadableItemError` if those of an app can't be read: a sum without them is too low.
    """
    policy = call.policy
    if policy.app_id is not None or policy.quota_scope is not QuotaScope.APP:
        return policy.quotas
    sums = dict.fromkeys(policy.model_ordering, 0)
    after = None
    while True:  # ends with the partition: every page begins behind the one before
        page = await call.services.tenants.list_apps(policy.org_id, after)
        for error in page.unreadable:
            raise error
        for app in page.policies:
            for label, quota in app.quotas.items():
                sums[label] = sums.get(label, 0) + quota
        after = page.after
        if after is None:
            return sums


def _today(call: Call) -> date:
    day = org_day(call.policy.timezone, call.services.clock.now_ms())
    return date(int(day[:4]), int(day[4:6]), int(day[6:]))


def _ends(query: Mapping[str, str]) -> tuple[date, date]:
    """The first and the last day of a range; every mistake is told."""
    days, mistakes = [], []
    for end in ("from", "to"):
        try:
            days.append(_date(end, query.get(end, "")))
        except InvalidValueError as error:
            message = error.message if end in query else "is required: yyyy-mm-dd"
            mistakes.append(FieldError(end, message))
    if mistakes:
        told = ", ".join(f"{one.field}: {one.message}" for one in mistakes)
        raise RequestRefusedError(told, tuple(mistakes))
    return days[0], days[1]


def _date(field: str, text: str) -> date:
    try:
        if not _YYYY_MM_DD.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(field, "must be a date such as 2026-01-23") from None


def _max_age(policy: Policy, mode: QuotaStatus) -> int:
    if mode is QuotaStatus.NORMAL:
        return policy.refresh_interval_normal_secs
    return policy.refresh_interval_tight_secs


def _operations(base: str, kind: str, access: Access) -> Sequence[Operation]:
    common: dict[str, Any] = {
        "access": access,
        "limit": "aggregates",
        "tag": "aggregates",
        "key_may_read": True,
    }
    one = {200: wire.AggregateAnswer, 304: None}
    return (
        Operation(
            "GET",
            f"{base}/aggregates/today",
            f"{kind}AggregatesToday",
            today.__doc__ or "",
            today,
            answers=one,
            **common,
        ),
        Operation(
            "GET",
            f"{base}/aggregates/{{date}}",
            f"{kind}AggregatesOnDay",
            on_day.__doc__ or "",
            on_day,
            answers=one,
            **common,
        ),
        Operation(
            "GET",
            f"{base}/aggregates",
            f"{kind}AggregatesInRange",
            in_range.__doc__ or "",
            in_range,
            answers={200: wire.AggregateRange, 304: None},
            query=_RANGE,
            **common,
        ),
    )


OPERATIONS: Final = (
    *_operations(_APP, "app", Access.APP),
    *_operations(_ORG, "org", Access.ORG),
)
