"""Which alerts there were, the newest first.

A page looks at `LOOKED_AT_MAX` alerts at the most, so it may have few that are wanted, or none, and
still have a next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pricekeeper.alerts import items
from pricekeeper.alerts.alert import AlertKind, DeliveryState, Owner
from pricekeeper.alerts.items import StoredAlert
from pricekeeper.authority import ALL_ORGS, Coverage
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import Item, Store
from pricekeeper.storage.tables import ALERTS

PAGE_MAX: Final = 100
LOOKED_AT_MAX: Final = 500


class HistoryPage(NamedTuple):
    """Some alerts; ``after`` is where to go on, ``None`` at the end."""

    alerts: list[StoredAlert]
    after: str | None


class AlertHistory:
    """Lists alerts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_page(
        self,
        owner: Owner | None,
        coverage: Coverage = ALL_ORGS,
        *,
        kind: AlertKind | None = None,
        state: DeliveryState | None = None,
        after: str = "",
    ) -> HistoryPage:
        """The alerts of an owner, or of all that are covered, of one kind or state or all.

        Who does not cover all organisations sees no deliveries to channels of the deployment.
        """
        is_narrow = kind is not None or state is not None or not coverage.is_all
        limit = LOOKED_AT_MAX if is_narrow else PAGE_MAX
        if owner is not None:
            page = await self._store.query(items.history_query(owner, limit, after))
            found: Iterable[Item | None] = page.items
        else:
            page = await self._store.query(items.list_query(limit, after))
            listed = [(item, items.listed_owner(item)) for item in page.items]
            keys = [
                (ALERTS, items.alert_key(one, str(item["SK"])))
                for item, one in listed
                if coverage.is_all or (one.org_id is not None and one.org_id in coverage)
            ]
            found = await self._store.batch_get(keys)
        alerts = _wanted(found, kind, state, sees_all=coverage.is_all)
        if len(alerts) <= PAGE_MAX:
            return HistoryPage(alerts, page.after or None)
        return HistoryPage(alerts[:PAGE_MAX], alerts[PAGE_MAX - 1].id)


def _wanted(
    found: Iterable[Item | None],
    kind: AlertKind | None,
    state: DeliveryState | None,
    *,
    sees_all: bool,
) -> list[StoredAlert]:
    wanted: list[StoredAlert] = []
    for item in found:
        if item is None:  # it has expired since
            continue
        try:
            alert = items.alert_from(item)
        except UnreadableItemError:  # it was reported
            continue
        if not sees_all:
            alert = alert.for_its_organisation()
        if kind in (None, alert.kind) and state in (None, alert.state):
            wanted.append(alert)
    return wanted
