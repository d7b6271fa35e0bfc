"""Dollars in the metrics: what each organisation and app spent this month, under their names.

The value is a counter for Prometheus: it grows during a month of the organisation's and begins anew
with the next one, which ``increase()`` takes for a restart. It is read from the stored totals, so a
restart of the service changes nothing.

Names come from outside. Two organisations (or apps of one) with the same name are told apart by
their ids in brackets, and so is a name that ends with a bracket, because it could be made to look
like one with an id. What can't be printed is replaced. There are at most `SERIES_MAX` lines: those
who spent the most when they were first seen. All others are one line, ``other``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog
from prometheus_client import Gauge

from pricekeeper.bootstrap import Services
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import InvalidValueError, NotFoundError, StoreError, UnreadableItemError
from pricekeeper.metering import org_day
from pricekeeper.metering.spend import OTHERS, MonthSpend, PicosBySpender, Spender, month_of
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

SERIES_MAX: Final = 1_000
NAME_MS_MAX: Final = 600_000
"""How old a name may be."""
OTHER: Final = "other"

_APP: Final = "#APP#"
_ORG: Final = "ORG#"
_PICOS_PER_USD: Final = 1_000_000_000_000
_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"

_log = structlog.get_logger(__name__)


class ScopeOwner(NamedTuple):
    """Whose scope it is, by what people call it."""

    org_name: str
    app_name: str | None
    timezone: str


class Series(NamedTuple):
    """The labels of one line."""

    org: str
    app: str
    label: str


class SpendMetric:
    """Keeps the gauge of dollars up to date."""

    def __init__(self, services: Services, gauge: Gauge, *, series_max: int = SERIES_MAX) -> None:
        self._services = services
        self._gauge = gauge
        self._series_max = series_max
        self._months = MonthSpend(services.store, services.clock)
        self._owners: BoundedCache[str, tuple[ScopeOwner, int]] = BoundedCache(2 * series_max)
        self._chosen: dict[Spender, None] = {}
        self._shown: set[Series] = set()

    @property
    def org_ids(self) -> set[OrgId]:
        """Who has spent something this month, as of the last refresh."""
        return {ids_of(spender.scope_key)[0] for spender in self._chosen}

    async def refresh(self) -> None:
        """Read the totals and show them. If the store does not answer, what was shown stays."""
        try:
            months = await self._months.read()
            chosen = self._choose(months)
            owners = {spender.scope_key: await self._find_owner(spender) for spender in chosen}
        except StoreError as error:
            _log.warning("spend_not_read", error=str(error))
            return
        self._show(sum_by_series(months, owners, chosen, self._services.clock.now_ms()))

    def _choose(self, months: Mapping[str, PicosBySpender]) -> dict[Spender, None]:
        """Who has a line: who had one, and of the others those who spent the most.

        Nobody who has one loses it to a newcomer: lines would jump.
        """
        spent: dict[Spender, int] = defaultdict(int)
        for sums in months.values():
            for spender, picos in sums.items():
                spent[spender] += picos
        spent.pop(OTHERS, None)
        chosen = {spender: None for spender in self._chosen if spender in spent}
        for spender in sorted(spent, key=lambda one: (-spent[one], one)):
            if len(chosen) >= self._series_max:
                break
            chosen.setdefault(spender)
        self._chosen = chosen
        return chosen

    async def _find_owner(self, spender: Spender) -> ScopeOwner:
        """The names of a scope, at most ten minutes old; its ids, if it has been deleted."""
        now_ms = self._services.clock.monotonic_ms()
        known = self._owners.get(spender.scope_key)
        if known is not None and now_ms - known[1] < NAME_MS_MAX:
            return known[0]
        org_id, app_id = ids_of(spender.scope_key)
        try:
            found = await self._services.tenants.get(Client(org_id, app_id))
            owner = ScopeOwner(found.org_name, found.app_name, found.timezone)
        except (NotFoundError, InvalidValueError, UnreadableItemError):
            owner = ScopeOwner(org_id, app_id, "UTC")
        self._owners.put(spender.scope_key, (owner, now_ms))
        return owner

    def _show(self, dollars: Mapping[Series, int]) -> None:
        for series in self._shown - dollars.keys():
            self._gauge.labels(*series).set(0)  # a new month, or another name
        for series, picos in dollars.items():
            self._gauge.labels(*series).set(picos / _PICOS_PER_USD)
        self._shown.update(dollars)


def ids_of(scope_key: str) -> tuple[OrgId, AppId | None]:
    """The organisation and the app of a scope."""
    org_id, _, app_id = scope_key.removeprefix(_ORG).partition(_APP)
    return OrgId(org_id), AppId(app_id) if app_id else None


def sum_by_series(
    months: Mapping[str, PicosBySpender],
    owners: Mapping[str, ScopeOwner],
    chosen: Iterable[Spender],
    now_ms: int,
) -> dict[Series, int]:
    """The pico-dollars of each line, in the present month of whoever it is about."""
    lines = name_series(owners, chosen)
    current = {
        scope_key: month_of(org_day(owner.timezone, now_ms)) for scope_key, owner in owners.items()
    }
    utc_month = month_of(org_day("UTC", now_ms))
    found: dict[Series, int] = dict.fromkeys(lines.values(), 0)
    rest = Series(OTHER, OTHER, OTHER)
    for month, sums in months.items():
        for spender, picos in sums.items():
            if month == current.get(spender.scope_key, utc_month):
                line = lines.get(spender, rest)
                found[line] = found.get(line, 0) + picos
    return found


def name_series(
    owners: Mapping[str, ScopeOwner], chosen: Iterable[Spender]
) -> dict[Spender, Series]:
    """The labels of each spender's line: names, with ids where a name is not one's alone."""
    org_ids: dict[str, set[str]] = defaultdict(set)
    app_ids: dict[tuple[str, str], set[str]] = defaultdict(set)
    for scope_key, owner in owners.items():
        org_id, app_id = ids_of(scope_key)
        org_ids[printable(owner.org_name)].add(org_id)
        app_ids[org_id, printable(owner.app_name or app_id or "")].add(app_id or "")
    lines = {}
    for spender in chosen:
        owner = owners[spender.scope_key]
        org_id, app_id = ids_of(spender.scope_key)
        org = printable(owner.org_name)
        app = printable(owner.app_name or app_id or "")
        if len(org_ids[org]) > 1 or org == OTHER or org.endswith(")"):
            org = f"{org} ({org_id})"
        if app_id and (len(app_ids[org_id, app]) > 1 or app.endswith(")")):
            app = f"{app} ({app_id})"
        lines[spender] = Series(org, app, spender.label)
    return lines


def whose(
    org_name: str, app_name: str | None, org_id: OrgId, app_id: AppId | None
) -> tuple[str, str, str, str]:
    """The labels that say whose a line is; an organisation's own has no app."""
    return printable(org_name), printable(app_name or app_id or ""), org_id, app_id or ""


def printable(name: str) -> str:
    """The name without what could be an order to whoever shows it."""
    return "".join(one if one.isprintable() else _UNPRINTABLE for one in name)
