"""What happened: denials, flips, and the events of the stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from msgspec import UNSET

from pricekeeper.activity import event as values
from pricekeeper.activity.denials import DenialCursor, DenialListing, Listed
from pricekeeper.activity.event import Flip
from pricekeeper.activity.items import ALL, KEPT_DAYS
from pricekeeper.authority import Coverage
from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY
from pricekeeper.metering import org_day
from pricekeeper.selection import FlipHistory, FlipPage
from pricekeeper.selection.items import KEPT_DAYS as FLIPS_KEPT_DAYS
from pricekeeper.storage import invalid_cursor
from pricekeeper.tenants import Policy
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.authorizations import considered_labels
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import bounds_ms, parse_each, parse_end
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import OrgId, parse_app_id
from pricekeeper.wire import activity as wire
from pricekeeper.wire.values import Response

_ZONE_OF_ALL: Final = "UTC"
"""For a date that concerns several organisations."""


async def list_denials(ask: Ask) -> wire.DenialList:
    """Read a page of an organisation's denials, the newest first."""
    found = _parse_denials(ask)
    policy = await ask.read_org_policy(found["app_id"])
    return await _list_org_denials(ask, policy, found)


async def list_all_denials(ask: Ask) -> wire.DenialList:
    """Read a page of the denials of all covered clients, the newest first."""
    found, viewer, services = _parse_denials(ask), ask.viewer, ask.services
    org_id = viewer.coverage.one
    if org_id is not None:
        policy = await services.tenants.find_policy(org_id, viewer.app_id)
        return await _list_org_denials(ask, policy, {**found, "app_id": viewer.app_id})
    first_ms, last_ms = _bounds_ms(services, found, _ZONE_OF_ALL, KEPT_DAYS)
    page = await DenialListing(services.store).read_all(
        lambda one: OrgId(one) in viewer.coverage, first_ms, last_ms, found["after"]
    )
    return _denial_list(page.entries, page.after)


def _parse_denials(ask: Ask) -> Mapping[str, Any]:
    ends = {"from": parse_end, "to": parse_end}
    return parse_each(ask.query, {**ends, "app_id": parse_app_id, "after": DenialCursor.parse})


async def _list_org_denials(ask: Ask, policy: Policy, found: Mapping[str, Any]) -> wire.DenialList:
    first_ms, last_ms = _bounds_ms(ask.services, found, policy.timezone, KEPT_DAYS)
    page = await DenialListing(ask.services.store).read_org(
        policy.org_id, first_ms, last_ms, found["app_id"], found["after"]
    )
    return _denial_list(page.entries, page.after)


def _bounds_ms(
    services: Services, found: Mapping[str, Any], zone: str, kept_days: int
) -> tuple[int, int]:
    """The range of a query, within the time that its subject is kept."""
    now_ms = services.clock.now_ms()
    kept = now_ms - kept_days * MS_PER_DAY, now_ms + MS_PER_DAY
    first_ms, last_ms = bounds_ms(found["from"], found["to"], zone, kept)
    return max(first_ms, kept[0]), min(last_ms, kept[1])


def _denial_list(groups: list[Listed], after: DenialCursor | None) -> wire.DenialList:
    denials = [
        describe(wire.DenialAnswer, one.group, org_id=one.name.org_id, example=one.group.why)
        for one in groups
    ]
    return wire.DenialList(denials, UNSET if after is None else after.text)


FLIPS_MAX: Final = 100
"""A page of an app ends with the day that reaches this number."""
_CURSOR: Final = re.compile(r"([0-9]{8})-([A-Za-z0-9._-]{0,64})")


def _parse_cursor(text: str) -> str:
    """The day of the last flip of the previous page, ``#``, and its app, if any."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise invalid_cursor()
    return f"{found[1]}#{found[2]}"


async def list_flips(ask: Ask) -> wire.FlipList:
    """Read a page of the flips and overrides that concern a client, the newest first.

    An organisation's include those of its apps, an app's those of the whole organisation.
    """
    policy, zone = ask.policy, ask.policy.timezone
    ends = {"from": parse_end, "to": parse_end}
    found = parse_each(ask.query, {**ends, "after": _parse_cursor})
    after: str = found["after"] or ""
    first_ms, last_ms = _bounds_ms(ask.services, found, zone, FLIPS_KEPT_DAYS)
    days = org_day(zone, first_ms), org_day(zone, max(first_ms, last_ms))
    history = FlipHistory(ask.services.store)
    if policy.app_id is None:
        page = await history.read_org(policy.org_id, *days, after)
    else:
        flips = await history.read_client(policy.client, *days)
        page = _page_of(flips, zone, after.partition("#")[0])
    shown = [flip_answer(flip) for flip in page.flips if first_ms <= flip.at_ms <= last_ms]
    return wire.FlipList(shown, page.after.replace("#", "-", 1) or UNSET)


def _page_of(flips: list[Flip], zone: str, before: str) -> FlipPage:
    """Whole days before this one, until there are enough flips."""
    shown: list[Flip] = []
    last = ""
    for day, some in groupby(flips, key=lambda flip: org_day(zone, flip.at_ms)):
        if before and day >= before:
            continue
        if len(shown) >= FLIPS_MAX:
            return FlipPage(shown, f"{last}#")
        shown += some
        last = day
    return FlipPage(shown)


def flip_answer(flip: Flip) -> wire.FlipAnswer:
    """Describe a flip."""
    return describe(wire.FlipAnswer, flip, given_up=_given_up(flip))


def _given_up(flip: Flip) -> list[wire.GivenUpLabel]:
    return [describe(wire.GivenUpLabel, one) for one in flip.given_up]


RESET: Final = "reset"
EVENTS: Final[dict[str, type[Response]]] = {
    "spend": wire.SpendEvent,
    "denied": wire.DeniedEvent,
    "flip": wire.FlipEvent,
    "authorization": wire.AuthorizationEvent,
    "alert": wire.AlertEvent,
    RESET: wire.ResetEvent,
}


def audience_of(viewer: Viewer) -> str:
    """The feed that contains everything that the viewer may see."""
    return viewer.coverage.one or ALL


def tell(event: values.Event, viewer: Viewer) -> tuple[str, Response] | None:
    """The name and body of an event for the viewer; ``None`` if the viewer may not see it."""
    if not _is_covered(event, viewer.coverage):
        return None
    seen: values.Event | None = event
    if viewer.app_id is not None:
        seen = values.seen_by_app(event, viewer.app_id)
    if seen is None:
        return None
    response = _response(seen)
    return next(name for name, kind in EVENTS.items() if type(response) is kind), response


def _is_covered(event: values.Event, coverage: Coverage) -> bool:
    return coverage.is_all if event.org_id is None else OrgId(event.org_id) in coverage


def _response(event: values.Event) -> Response:
    if isinstance(event, values.CountedSpend):
        rows = [describe(wire.SpendEventRow, one) for one in event.rows]
        records = [_record(one) for one in event.records]
        return describe(wire.SpendEvent, event, rows=rows, records=records)
    if isinstance(event, values.DeniedCalls):
        return describe(wire.DeniedEvent, event, example=event.why)
    if isinstance(event, values.Flip):
        return describe(wire.FlipEvent, event, given_up=_given_up(event))
    if isinstance(event, values.AuthorizationChanges):
        changes = [describe(wire.AuthorizationEventRow, one) for one in event.rows]
        entries = [_entry(one) for one in event.lines]
        return describe(wire.AuthorizationEvent, event, rows=changes, entries=entries)
    return describe(wire.AlertEvent, event, alert=event.told)


def _record(counted: values.Counted) -> wire.SpendEventRecord:
    status = "ERROR" if counted.is_error else "OK"
    return describe(wire.SpendEventRecord, counted, status=status)


def _entry(line: values.AuthorizationLine) -> wire.AuthorizationEventEntry:
    considered = considered_labels(line.considered)
    return describe(wire.AuthorizationEventEntry, line, considered=considered)
