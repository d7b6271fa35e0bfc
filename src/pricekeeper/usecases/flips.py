"""Lists flips: labels that were given up or set by hand, with time, reason and end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from pricekeeper.activity.event import Flip
from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY
from pricekeeper.metering import org_day
from pricekeeper.selection.history import FlipHistory, FlipPage
from pricekeeper.selection.items import KEPT_DAYS
from pricekeeper.storage import invalid_cursor
from pricekeeper.tenants import Policy
from pricekeeper.usecases.queries import End, bounds_ms, parse_each, parse_end
from pricekeeper.wire import activity as wire
from pricekeeper.wire.values import rfc3339

FLIPS_MAX: Final = 100
"""A page of an app ends with the day that reaches this number."""
_CURSOR: Final = re.compile(r"([0-9]{8})-([A-Za-z0-9._-]{0,64})")


class FlipsRequest(NamedTuple):
    """A query for flips. A date at the end is included, a time is not."""

    first: End | None = None
    last: End | None = None
    after: str | None = None
    """The day of the last flip of the previous page, ``#``, and its app, if it has one."""


def parse_request(query: Mapping[str, str]) -> FlipsRequest:
    """Parse a query; every mistake is listed."""
    parsers: dict[str, Callable[[str], Any]] = {
        "from": parse_end,
        "to": parse_end,
        "after": _parse_cursor,
    }
    return FlipsRequest(*parse_each(query, parsers).values())


def _parse_cursor(text: str) -> str:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise invalid_cursor()
    return f"{found[1]}#{found[2]}"


async def list_flips(services: Services, policy: Policy, request: FlipsRequest) -> wire.FlipList:
    """Read a page of the flips and overrides that concern a client, the newest first.

    An organisation's include those of its apps, an app's those of the whole organisation.
    """
    now_ms, zone = services.clock.now_ms(), policy.timezone
    kept = now_ms - KEPT_DAYS * MS_PER_DAY, now_ms + MS_PER_DAY
    bounds = bounds_ms(request.first, request.last, zone, kept)
    first_ms, last_ms = max(bounds[0], kept[0]), min(bounds[1], kept[1])
    days = org_day(zone, first_ms), org_day(zone, max(first_ms, last_ms))
    history = FlipHistory(services.store)
    if policy.app_id is None:
        page = await history.read_org(policy.org_id, *days, request.after or "")
    else:
        before = (request.after or "").partition("#")[0]
        page = _page_of(await history.read_client(policy.client, *days), zone, before)
    shown = [flip_answer(flip) for flip in page.flips if first_ms <= flip.at_ms <= last_ms]
    more = {"next": page.after.replace("#", "-", 1)} if page.after else {}
    return wire.FlipList(shown, **more)


def _page_of(flips: list[Flip], zone: str, before: str) -> FlipPage:
    """The flips of the last days before this day: whole days, until there are enough."""
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
    return wire.FlipAnswer(
        org_id=flip.org_id,
        at=rfc3339(flip.at_ms),
        app_id=flip.app_id,
        reason=flip.reason,
        from_label=flip.from_label,
        to_label=flip.to_label,
        given_up=[
            wire.GivenUpLabel(one.label, one.spend_usd_micros, one.quota_usd_micros)
            for one in flip.given_up
        ],
        until=rfc3339(flip.until_ms),
    )
