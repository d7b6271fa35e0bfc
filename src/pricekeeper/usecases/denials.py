"""Lists denials of an organisation, or of every client that a caller covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from pricekeeper.activity.denials import DenialCursor, DenialListing, Listed
from pricekeeper.activity.items import KEPT_DAYS
from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY
from pricekeeper.tenants import Policy
from pricekeeper.usecases.queries import End, bounds_ms, parse_each, parse_end
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import AppId, OrgId, parse_app_id
from pricekeeper.wire import activity as wire
from pricekeeper.wire.values import rfc3339

_ZONE_OF_ALL: Final = "UTC"
"""The time zone of a date that concerns several organisations."""


class DenialsRequest(NamedTuple):
    """A query for denials. A date at the end is included, a time is not."""

    first: End | None = None
    last: End | None = None
    app_id: AppId | None = None
    after: DenialCursor | None = None


def parse_request(query: Mapping[str, str]) -> DenialsRequest:
    """Parse a query; every mistake is listed."""
    parsers: dict[str, Callable[[str], Any]] = {
        "from": parse_end,
        "to": parse_end,
        "app_id": parse_app_id,
        "after": DenialCursor.parse,
    }
    return DenialsRequest(*parse_each(query, parsers).values())


async def list_denials(
    services: Services, policy: Policy, request: DenialsRequest
) -> wire.DenialList:
    """Read a page of an organisation's denials, the newest first."""
    first_ms, last_ms = _bounds_ms(services, request, policy.timezone)
    page = await DenialListing(services.store).read_org(
        policy.org_id, first_ms, last_ms, request.app_id, request.after
    )
    return _answer(page.entries, page.after)


async def list_all_denials(
    services: Services, viewer: Viewer, request: DenialsRequest
) -> wire.DenialList:
    """Read a page of the denials of every client that the viewer covers, the newest first."""
    org_id = viewer.coverage.one
    if org_id is not None:
        policy = await services.tenants.find_policy(org_id, viewer.app_id)
        return await list_denials(services, policy, request._replace(app_id=viewer.app_id))
    first_ms, last_ms = _bounds_ms(services, request, _ZONE_OF_ALL)
    page = await DenialListing(services.store).read_all(
        lambda one: OrgId(one) in viewer.coverage, first_ms, last_ms, request.after
    )
    return _answer(page.entries, page.after)


def _bounds_ms(services: Services, request: DenialsRequest, zone: str) -> tuple[int, int]:
    """The first and the last millisecond, within the time that denials are kept."""
    now_ms = services.clock.now_ms()
    oldest_ms = now_ms - KEPT_DAYS * MS_PER_DAY
    bounds = bounds_ms(request.first, request.last, zone, (oldest_ms, now_ms + MS_PER_DAY))
    return max(bounds[0], oldest_ms), min(bounds[1], now_ms + MS_PER_DAY)


def _answer(groups: list[Listed], after: DenialCursor | None) -> wire.DenialList:
    behind = UNSET if after is None else after.text
    return wire.DenialList([_denial(one) for one in groups], behind)


def _denial(listed: Listed) -> wire.DenialAnswer:
    group = listed.group
    return wire.DenialAnswer(
        org_id=listed.name.org_id,
        app_id=group.app_id,
        kind=group.kind,
        model=group.model,
        code=group.code,
        count=group.count,
        first_at=rfc3339(group.first_at_ms),
        last_at=rfc3339(group.last_at_ms),
        example=group.why,
    )
