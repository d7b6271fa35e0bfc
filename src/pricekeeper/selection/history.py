"""The history of flips and overrides, written into the item of its day with each change.

A client's items are one partition, so its history is one query. For an organisation there is a
marker for each client and day, put before the first change of that day.

Bounds: `MARKED_MAX` markers that this process remembers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pricekeeper.activity.event import Flip, GivenUp
from pricekeeper.concurrency import BoundedCache
from pricekeeper.selection.fallback import Choice, Comeback, LabelQuota, LabelRole
from pricekeeper.selection.items import (
    flip_marker_from,
    flip_marker_put,
    flip_markers_query,
    history_from,
    history_query,
    override_key,
)
from pricekeeper.storage import Item, Store, query_items
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, OrgId

MARKED_MAX: Final = 10_000
PAGE_MAX: Final = 50
"""Markers on a page. A page ends at the end of a day, unless it would have more than `DAY_MAX`."""
DAY_MAX: Final = 500


class FlipPage(NamedTuple):
    """Some flips, newest first, and the marker of the next page; empty at the end."""

    flips: list[Flip]
    after: str = ""


class FlipHistory:
    """Marks where flips are, and reads them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._marked: BoundedCache[tuple[str, str | None, str], bool] = BoundedCache(MARKED_MAX)

    async def mark(self, org_id: OrgId, app_id: str | None, day: str) -> None:
        if (org_id, app_id, day) not in self._marked:
            await self._store.put(flip_marker_put(org_id, app_id, day))
            self._marked.put((org_id, app_id, day), True)  # noqa: FBT003

    async def read_client(self, client: Client, first_day: str, last_day: str) -> list[Flip]:
        found: list[Flip] = []
        for one in dict.fromkeys((client, client.org)):
            async for item in query_items(self._store, history_query(one, first_day, last_day)):
                found += history_from(item)
        return sorted(found, key=_moment, reverse=True)

    async def read_org(self, org_id: OrgId, first_day: str, last_day: str, after: str) -> FlipPage:
        marked: list[tuple[str, str | None, str]] = []
        query = flip_markers_query(org_id, first_day, last_day, after)
        rest = ""
        async for item in query_items(self._store, query):
            day, app_id = flip_marker_from(item)
            is_full = len(marked) >= PAGE_MAX and day != marked[-1][0]
            if is_full or len(marked) == DAY_MAX:
                rest = marked[-1][2]
                break
            marked.append((day, app_id, str(item["SK"])))
        keys = [
            (
                STICKY_STATE,
                override_key(Client(org_id, None if app_id is None else AppId(app_id)), day),
            )
            for day, app_id, _ in marked
        ]
        items: list[Item | None] = await self._store.batch_get(keys) if keys else []
        found = [flip for item in items if item is not None for flip in history_from(item)]
        return FlipPage(sorted(found, key=_moment, reverse=True), rest)


def _moment(flip: Flip) -> tuple[int, str]:
    return flip.at_ms, flip.app_id or ""


def quota_flip(policy: Policy, choice: Choice, at_ms: int, until_ms: int) -> Flip:
    """The flip of a choice in the form of the history, with the spent quotas."""
    flip = choice.flip
    if flip is None:
        raise LookupError("the choice has no flip")
    spent = [use for use in choice.quotas if use.role is LabelRole.EXCEEDED]
    return Flip(
        org_id=policy.org_id,
        at_ms=at_ms,
        app_id=_app_of(policy),
        reason="QUOTA_EXCEEDED",
        from_label=flip.previous_label,
        to_label=flip.label,
        given_up=_given_up(spent),
        until_ms=until_ms,
    )


def comeback_flip(
    policy: Policy, choice: Choice, comeback: Comeback, at_ms: int, until_ms: int
) -> Flip:
    """A comeback in the form of the history; if the comeback ends, the label is given up again."""
    labels = (comeback.other_label, comeback.label)
    from_label, to_label = labels if comeback.is_back else labels[::-1]
    ended = [] if comeback.is_back else [u for u in choice.quotas if u.label == comeback.label]
    return Flip(
        org_id=policy.org_id,
        at_ms=at_ms,
        app_id=_app_of(policy),
        reason="QUOTA_RAISED" if comeback.is_back else "QUOTA_EXCEEDED",
        from_label=from_label,
        to_label=to_label,
        given_up=_given_up(ended),
        until_ms=until_ms,
    )


def override_flip(
    policy: Policy,
    at_ms: int,
    until_ms: int,
    *,
    from_label: str | None = None,
    to_label: str | None = None,
) -> Flip:
    """An override in the form of the history; without ``to_label`` it was cleared."""
    return Flip(
        org_id=policy.org_id,
        at_ms=at_ms,
        app_id=policy.app_id,
        reason="OVERRIDE_CLEARED" if to_label is None else "MANUAL_OVERRIDE",
        from_label=from_label,
        to_label=to_label,
        given_up=(),
        until_ms=until_ms,
    )


def _app_of(policy: Policy) -> str | None:
    return policy.app_id if policy.quota_scope is QuotaScope.APP else None


def _given_up(quotas: Iterable[LabelQuota]) -> tuple[GivenUp, ...]:
    return tuple(GivenUp(use.label, use.spend_usd_micros, use.quota_usd_micros) for use in quotas)
