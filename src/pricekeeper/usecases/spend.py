"""Spend in a range, broken down by the groups of a query."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

from pricekeeper.authority import ALL_ORGS, Coverage, only
from pricekeeper.authorizations import State
from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY, date_of, day_of, day_start_ms
from pricekeeper.errors import FieldError, InvalidValueError, NotFoundError
from pricekeeper.metering import org_day
from pricekeeper.metering.breakdown import DAY, HOUR, Cell, Grouping, Row, parse_grouping
from pricekeeper.metering.counters import NOTHING, Counters
from pricekeeper.metering.facets import MS_PER_HOUR, hour_of
from pricekeeper.metering.ranges import DayRange, RangeReader
from pricekeeper.usecases.describing import describe, micros_up
from pricekeeper.usecases.queries import NO_END, End, parse_each, parse_end, parse_tag
from pricekeeper.values import AppId, OrgId, parse_app_id, parse_model_label, parse_org_id
from pricekeeper.wire import spend as wire
from pricekeeper.wire.values import rfc3339

DAYS_MAX: Final = 400
HOURLY_DAYS_MAX: Final = 31
SUM_FIELDS: Final = wire.SpendSum.__struct_fields__

_HOURS_PER_DAY: Final = 24
_ONE_DAY: Final = timedelta(days=1)
_FIRST_ZONE: Final = "Pacific/Kiritimati"
"""Where a day begins first."""
_LAST_ZONE: Final = "Etc/GMT+12"
"""Where it ends last."""
_LATE_MS: Final = 2 * MS_PER_DAY
"""A record may be a day late, and its total later."""


class Viewer(NamedTuple):
    """Whose data may be seen: one app's, or that of the covered organisations."""

    coverage: Coverage = ALL_ORGS
    app_id: AppId | None = None


Exposure = Counter[str]
"""Pico-dollars that are ``held``, or charged as ``unsettled``."""


class Filter(NamedTuple):
    """An empty value of a tag selects usage without the tag."""

    org_id: OrgId | None = None
    app_id: AppId | None = None
    label: str | None = None
    tag: tuple[str, str] | None = None


class SpendRequest(NamedTuple):
    """A query for spend. Dates are included at both ends; a time at the end is not."""

    first: End
    last: End
    grouping: Grouping
    wanted: Filter = Filter()
    is_live: bool = True
    """Whether to add usage since the last aggregation, if the range includes now."""


def parse_request(query: Mapping[str, str]) -> SpendRequest:
    """Parse a query; every mistake is listed."""
    parsers: dict[str, Callable[[str], Any]] = {
        "from": parse_end,
        "to": parse_end,
        "group_by": parse_grouping,
        "org_id": parse_org_id,
        "app_id": parse_app_id,
        "label": lambda text: str(parse_model_label(text)),
        "tag": _parse_tag,
        "live": _parse_live,
    }

    def check(found: Mapping[str, Any]) -> Iterator[FieldError]:
        grouping, tag = found.get("group_by"), found.get("tag")
        if grouping is not None and tag is not None and grouping.tag_key not in {None, tag[0]}:
            yield FieldError("tag", "must be the tag of `group_by`, if that names one")

    required = dict.fromkeys(("from", "to"), f"it {NO_END}")
    found = parse_each(query, parsers, check, required=required)
    grouping, tag = found["group_by"] or Grouping(), found["tag"]
    if tag is not None:
        grouping = grouping._replace(tag_key=tag[0])
    wanted = Filter(found["org_id"], found["app_id"], found["label"], tag)
    is_live = True if found["live"] is None else found["live"]
    return SpendRequest(found["from"], found["to"], grouping, wanted, is_live)


def _parse_tag(text: str) -> tuple[str, str]:
    tag = parse_tag(text)
    if "#" in tag[0]:
        raise InvalidValueError("tag", "names a tag with #, which can't be a tag key")
    return tag


def _parse_live(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidValueError("live", "must be true or false")
    return text == "true"


def _has_now(span: DayRange, now_ms: int) -> bool:
    """Whether the range can contain new usage: a record or an aggregation may be late."""
    return span.last_day >= org_day(_LAST_ZONE, now_ms - _LATE_MS)


def _narrow(viewer: Viewer, wanted: Filter) -> Viewer:
    """A filter outside of the viewer's data is absent."""
    coverage = viewer.coverage
    if wanted.org_id is not None:
        if wanted.org_id not in coverage:
            raise NotFoundError("org")
        coverage = only(wanted.org_id)
    if viewer.app_id is not None and wanted.app_id not in {None, viewer.app_id}:
        raise NotFoundError("app")
    if wanted.app_id is not None and coverage.one is None:
        raise InvalidValueError("app_id", "needs org_id, whose app it is")
    return Viewer(coverage, viewer.app_id or wanted.app_id)


async def read_spend(
    services: Services, viewer: Viewer, request: SpendRequest
) -> tuple[wire.SpendAnswer, int]:
    """The spend that the viewer may see, and the time up to which it is complete."""
    zone, own_app_id, wanted = _FIRST_ZONE, viewer.app_id, request.wanted
    viewer = _narrow(viewer, wanted)
    org_id = viewer.coverage.one
    if org_id is not None:
        zone = (await services.tenants.find_policy(org_id, own_app_id)).timezone
    span = span_of(request, zone, services.clock.now_ms())
    org_ids = [org_id] if org_id else await services.tenants.list_org_ids(viewer.coverage.org_ids)
    live = None
    if request.is_live and _has_now(span, services.clock.now_ms()):
        live = await services.metering.live.read(org_ids, request.grouping.tag_key)
    reader = RangeReader(services.store, services.clock)
    found = await reader.read_spend(
        org_ids,
        viewer.app_id,
        span,
        request.grouping,
        label=wanted.label,
        tag_value=None if wanted.tag is None else wanted.tag[1],
        live=live,
    )
    exposures = await _read_exposures(services, viewer, org_ids, span, request)
    counters = {row.group: row.counters for row in found.rows}
    groups = sorted(counters.keys() | exposures.keys())
    answer = wire.SpendAnswer(
        [
            _row(
                request.grouping,
                Row(group, counters.get(group, NOTHING)),
                exposures.get(group, Exposure()),
            )
            for group in groups
        ],
        _sum(found.total, sum(exposures.values(), Exposure())),
        rfc3339(found.as_of_ms) if found.as_of_ms else None,
    )
    return answer, found.as_of_ms


async def _read_exposures(
    services: Services,
    viewer: Viewer,
    org_ids: Collection[OrgId],
    span: DayRange,
    request: SpendRequest,
) -> dict[tuple[str, ...], Exposure]:
    """Holds and unsettled charges of authorizations of that time, by group."""
    grouping, wanted = request.grouping, request.wanted
    found: dict[tuple[str, ...], Exposure] = defaultdict(Exposure)
    # Organisations' days begin and end at most a day from those of UTC.
    first_ms = day_start_ms("UTC", span.first_day) - MS_PER_DAY
    last_ms = day_start_ms("UTC", span.last_day) + 2 * MS_PER_DAY
    for org_id, one in await services.authorizations.read_exposed(org_ids, first_ms, last_ms):
        grant = one.grant
        if viewer.app_id is not None and grant.terms.app_id != viewer.app_id:
            continue
        if wanted.label not in {None, grant.terms.label}:
            continue
        if wanted.tag is not None and grant.tags.get(wanted.tag[0], "") != wanted.tag[1]:
            continue
        policy = await services.tenants.find_policy(OrgId(org_id))
        day = org_day(policy.timezone, grant.authorized_at_ms)
        hour = hour_of(grant.authorized_at_ms)
        if not span.first_day <= day <= span.last_day or not span.has_hour(hour):
            continue
        cell = Cell(org_id, grant.terms.app_id or "", grant.terms.label, day, hour)
        group = grouping.group_of(cell, grant.tags.get(grouping.tag_key or "", ""))
        state = "held" if one.state is State.OPEN else "unsettled"
        found[group][state] += grant.held_usd_picos
    return found


def span_of(request: SpendRequest, zone: str, now_ms: int) -> DayRange:
    """The days and hours of a query. Raises for an empty range or one that is too long."""
    first, last = request.first, request.last
    days_max = HOURLY_DAYS_MAX if request.grouping.has_hours else DAYS_MAX
    too_long = f"must be at most {days_max} days up to `to`"
    if request.grouping.has_hours:
        too_long += " with groups by hour"
    if isinstance(first, date) and isinstance(last, date):
        if last > date_of(org_day(zone, now_ms)):
            raise InvalidValueError("to", "is in the future")
        if first > last:
            raise InvalidValueError(
                "from", "is after `to`; it must be the same day or an earlier one"
            )
        if last - first >= timedelta(days=days_max):
            raise InvalidValueError("from", too_long)
        return DayRange(day_of(first), day_of(last))
    if isinstance(first, date) or isinstance(last, date):
        raise InvalidValueError("to", "must be a date if `from` is one, else a full hour")
    if last >= now_ms + MS_PER_HOUR:
        raise InvalidValueError("to", "is in the future")
    hours = hour_of(first), hour_of(last) - 1
    if hours[1] < hours[0]:
        raise InvalidValueError("from", "must be before `to`")
    if hours[1] - hours[0] >= days_max * _HOURS_PER_DAY:
        raise InvalidValueError("from", too_long)
    # An hour of UTC is part of the day before or after somewhere.
    edges = date_of(org_day("UTC", first)) - _ONE_DAY, date_of(org_day("UTC", last)) + _ONE_DAY
    return DayRange(day_of(edges[0]), day_of(edges[1]), hours)


def _row(grouping: Grouping, row: Row, exposure: Exposure) -> dict[str, str | int]:
    made: dict[str, str | int] = {
        name: _shown(name, text) for name, text in zip(grouping.names, row.group, strict=True)
    }
    sums = _sum(row.counters, exposure)
    return made | {name: getattr(sums, name) for name in SUM_FIELDS}


def _shown(name: str, text: str) -> str:
    if name == DAY:
        return date_of(text).isoformat()
    if name == HOUR:
        return rfc3339(int(text) * MS_PER_HOUR)
    return text


def _sum(counters: Counters, exposure: Exposure) -> wire.SpendSum:
    return describe(
        wire.SpendSum,
        counters,
        held_usd_micros=micros_up(exposure["held"]),
        unsettled_usd_micros=micros_up(exposure["unsettled"]),
    )
