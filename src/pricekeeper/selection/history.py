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
from pricekeeper.selection.fallback import Choice, Comeback, LabelQuota, LabelRole, StickyFlip
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
from pricekeeper.wire.activity import FlipReason

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


class Moment(NamedTuple):
    """When a decision is made, and the organisation's day."""

    now_ms: int
    day: str
    starts_at_ms: int
    ends_at_ms: int


def quota_flip(policy: Policy, choice: Choice, flip: StickyFlip, at: Moment) -> Flip:
    """The flip of a choice in the form of the history, with the spent quotas."""
    spent = [use for use in choice.quotas if use.role is LabelRole.EXCEEDED]
    labels = flip.previous_label, flip.label
    return _flip(policy, _app_of(policy), at, "QUOTA_EXCEEDED", *labels, spent)


def comeback_flip(policy: Policy, choice: Choice, comeback: Comeback, at: Moment) -> Flip:
    """A comeback in the form of the history; if the comeback ends, the label is given up again."""
    app_id, label, other = _app_of(policy), comeback.label, comeback.other_label
    if comeback.is_back:
        return _flip(policy, app_id, at, "QUOTA_RAISED", other, label)
    ended = [use for use in choice.quotas if use.label == label]
    return _flip(policy, app_id, at, "QUOTA_EXCEEDED", label, other, ended)


def override_flip(policy: Policy, at: Moment, label: str) -> Flip:
    """An override in the form of the history."""
    return _flip(policy, policy.app_id, at, "MANUAL_OVERRIDE", None, label)


def cleared_flip(policy: Policy, at: Moment, label: str) -> Flip:
    """The end of an override in the form of the history."""
    return _flip(policy, policy.app_id, at, "OVERRIDE_CLEARED", label, None)


def _flip(
    policy: Policy,
    app_id: str | None,
    at: Moment,
    reason: FlipReason,
    from_label: str | None,
    to_label: str | None,
    given_up: Iterable[LabelQuota] = (),
) -> Flip:
    quotas = tuple(
        GivenUp(use.label, use.spend_usd_micros, use.quota_usd_micros) for use in given_up
    )
    return Flip(
        policy.org_id, at.now_ms, app_id, reason, from_label, to_label, quotas, at.ends_at_ms
    )


def _app_of(policy: Policy) -> str | None:
    return policy.app_id if policy.quota_scope is QuotaScope.APP else None
