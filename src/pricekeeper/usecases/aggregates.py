"""The totals of days, each with the time up to which they are complete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from typing import Final

from pricekeeper.bootstrap import Services
from pricekeeper.days import day_of
from pricekeeper.errors import InvalidValueError
from pricekeeper.metering import Total, day_start_ms, org_day
from pricekeeper.metering.ranges import RangeReader
from pricekeeper.metering.totals import OrgTotals, org_totals_of
from pricekeeper.tenants import Policy, QuotaScope, read_pages
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import parse_date, parse_each
from pricekeeper.usecases.runtime import quota_use
from pricekeeper.values import ModelLabel
from pricekeeper.wire import spend as wire
from pricekeeper.wire.values import rfc3339

DAYS_MAX: Final = 92


async def read_day(
    services: Services, policy: Policy, day: date
) -> tuple[wire.AggregateAnswer, int]:
    """The totals of a day so far; a past day without data has zeros."""
    if day > today(services, policy):
        raise InvalidValueError("date", "is in the future")
    return await _read_day(services, policy, day, await _read_quotas(services, policy))


async def read_range(
    services: Services, policy: Policy, first: date, last: date
) -> tuple[wire.AggregateRange, int]:
    """The totals of each day of a range, the earliest first."""
    if last > today(services, policy):
        raise InvalidValueError("to", "is in the future")
    if not timedelta(0) <= last - first < timedelta(days=DAYS_MAX):
        raise InvalidValueError("from", f"must be at most {DAYS_MAX} days up to `to`")
    quotas = await _read_quotas(services, policy)
    dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    is_org, scope_key = policy.app_id is None, policy.scope_key
    totals = await RangeReader(services.store, services.clock).read_totals_by_day(
        policy.org_id,
        "" if is_org else f"{scope_key}#LABEL#",
        scope_key,
        policy.model_ordering,
        [day_of(day) for day in dates],
    )
    read_days = [
        await _answer(services, policy, day, quotas, org_totals_of(scope_key, totals[day_of(day)]))
        for day in dates
    ]
    days = [answer for answer, _ in read_days]
    oldest_ms = min(as_of_ms for _, as_of_ms in read_days)
    return describe(wire.AggregateRange, policy, days=days), oldest_ms


def parse_day(text: str) -> date:
    """The day that the text names."""
    try:
        return parse_date(text)
    except ValueError:
        raise InvalidValueError("date", "must be a date such as 2026-01-23") from None


def parse_range(query: Mapping[str, str]) -> tuple[date, date]:
    """The first and the last day of the query; every mistake is listed."""
    ends = ("from", "to")
    required = dict.fromkeys(ends, "yyyy-mm-dd")
    first, last = parse_each(query, dict.fromkeys(ends, parse_day), required=required).values()
    return first, last


def today(services: Services, policy: Policy) -> date:
    """Today in the organisation's time zone."""
    day = org_day(policy.timezone, services.clock.now_ms())
    return date(int(day[:4]), int(day[4:6]), int(day[6:]))


async def _read_day(
    services: Services, policy: Policy, day: date, quotas: Mapping[ModelLabel, int]
) -> tuple[wire.AggregateAnswer, int]:
    """With the time up to which the totals are complete, at first the start of the day."""
    name, metering = day_of(day), services.metering
    if policy.app_id is None:
        found = await metering.reader.read_org(policy.org_id, policy.model_ordering, name)
    else:
        labels = {*policy.model_ordering, *await metering.read_labels_used(policy.scope_key, name)}
        found = OrgTotals(await metering.read_totals(policy.scope_key, sorted(labels), name), {})
    return await _answer(services, policy, day, quotas, found)


async def _answer(
    services: Services,
    policy: Policy,
    day: date,
    quotas: Mapping[ModelLabel, int],
    found: OrgTotals,
) -> tuple[wire.AggregateAnswer, int]:
    name, totals, apps = day_of(day), found.total, None
    if policy.app_id is None and policy.quota_scope is QuotaScope.APP:
        apps = {
            str(app): sum(total.cost_usd_micros for total in by_label.values())
            for app, by_label in found.apps.items()
        }
    active, sticky = None, False
    if day == today(services, policy):
        decision = await services.selection.assess(policy)
        active, sticky = decision.label, decision.choice.sticky_fallback_active
    as_of_ms = min((total.as_of_ms for total in totals.values()), default=0)
    cost = sum(total.cost_usd_micros for total in totals.values())
    quota = sum(quotas.get(label, 0) for label in policy.model_ordering)
    answer = describe(
        wire.AggregateAnswer,
        policy,
        date=day.isoformat(),
        models=_models(services, policy, totals, quotas),
        total_cost_usd_micros=cost,
        total_quota_usd_micros=quota,
        total_quota_pct=quota_use(cost, quota, policy.tight_mode_threshold_pct)[0],
        sticky_fallback_active=sticky,
        current_active_model=active,
        updated_at=rfc3339(as_of_ms) if as_of_ms else None,
        apps=apps,
    )
    return answer, max(as_of_ms, day_start_ms(policy.timezone, name))


def _models(
    services: Services,
    policy: Policy,
    totals: Mapping[ModelLabel, Total],
    quotas: Mapping[ModelLabel, int],
) -> dict[str, wire.ModelAggregate]:
    catalogue = services.prices.catalogue
    ordered = [*policy.model_ordering, *sorted(totals.keys() - set(policy.model_ordering))]
    made = {}
    for label in ordered:
        total, quota = totals.get(label, Total()), quotas.get(label, 0)
        cost, tight_pct = total.cost_usd_micros, policy.tight_mode_threshold_pct
        percent, status = quota_use(cost, quota, tight_pct)
        made[str(label)] = describe(
            wire.ModelAggregate,
            total,
            bedrock_model_id=catalogue.model(label).bedrock_model_id if label in catalogue else "",
            quota_usd_micros=quota,
            quota_pct=percent,
            quota_status=status,
            average_cost_usd_micros=cost // total.requests if total.requests else 0,
        )
    return made


async def _read_quotas(services: Services, policy: Policy) -> Mapping[ModelLabel, int]:
    """The daily quotas; with quotas per app, their sums.

    Raises `UnreadableItemError` if an app's can't be read: the sum would be too low.
    """
    if policy.app_id is not None or policy.quota_scope is not QuotaScope.APP:
        return policy.quotas
    sums = dict.fromkeys(policy.model_ordering, 0)
    async for page in read_pages(partial(services.tenants.list_apps, policy.org_id)):
        for error in page.unreadable:
            raise error
        for app in page.policies:
            for label, quota in app.quotas.items():
                sums[label] = sums.get(label, 0) + quota
    return sums
