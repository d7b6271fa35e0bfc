"""The spend of all accounts since the first of their month, from daily totals.

The result depends on the store and the time alone, so it is the same in every process. Only recent
days can change; the month's other days are read once and kept as one sum.

Bounds: `SPENDERS_MAX` scopes and labels for each of two months; the rest share `OTHERS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.days import date_of, day_of, org_day
from pricekeeper.metering.aggregator import days_open
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import account_from, spent_query, total_key
from pricekeeper.storage import Store, query_pages

SPENDERS_MAX: Final = 20_000
READ_KEYS_MAX: Final = 100

_ZONE_WESTERNMOST: Final = "Etc/GMT+12"
_MONTH_LENGTH: Final = len("202601")
_ONE_DAY: Final = timedelta(days=1)

_log = structlog.get_logger(__name__)


class Spender(NamedTuple):
    """A scope (``ORG#...``) and a model label."""

    scope_key: str
    label: str


OTHERS: Final = Spender("", "")

PicosBySpender = dict[Spender, int]


def month_of(day: str) -> str:
    """The month of a day, as ``yyyymm``."""
    return day[:_MONTH_LENGTH]


class MonthSpend:
    """Reads the pico-dollars of every spender by month."""

    def __init__(self, store: Store, clock: Clock, *, spenders_max: int = SPENDERS_MAX) -> None:
        self._store = store
        self._clock = clock
        self._spenders_max = spenders_max
        self._closed: dict[str, PicosBySpender] = {}
        self._closed_days: set[str] = set()

    async def read(self) -> Mapping[str, PicosBySpender]:
        """The sums of each month that is the present one in some zone."""
        now_ms = self._clock.now_ms()
        open_days = set(days_open(now_ms, now_ms))
        first_month = month_of(org_day(_ZONE_WESTERNMOST, now_ms))
        self._forget_before(first_month)
        found: dict[str, PicosBySpender] = {
            month: dict(sums) for month, sums in self._closed.items()
        }
        for day in _days_between(f"{first_month}01", max(open_days)):
            if day in self._closed_days:
                continue
            sums = await self._read_day(day)
            if not sums and day in open_days:
                continue
            self._add(found.setdefault(month_of(day), {}), sums)
            if day not in open_days:
                self._add(self._closed.setdefault(month_of(day), {}), sums)
                self._closed_days.add(day)
        return found

    def _forget_before(self, month: str) -> None:
        self._closed = {one: sums for one, sums in self._closed.items() if one >= month}
        self._closed_days = {day for day in self._closed_days if month_of(day) >= month}

    async def _read_day(self, day: str) -> PicosBySpender:
        sums: PicosBySpender = {}
        async for page in query_pages(self._store, spent_query(day)):
            accounts = (account_from(day, item) for item in page.items)
            await self._add_totals(list(filter(None, accounts)), sums)
        return sums

    async def _add_totals(self, accounts: list[Account], sums: PicosBySpender) -> None:
        for some in in_groups(accounts, READ_KEYS_MAX):
            items = await self._store.batch_get([total_key(account) for account in some])
            for account, item in zip(some, items, strict=True):
                spender, picos = Spender(account.scope_key, account.label), _cost_picos(item)
                if picos is None:
                    _log.warning("total_unreadable", scope=account.scope_key, label=account.label)
                elif spender in sums or len(sums) < self._spenders_max:
                    sums[spender] = picos  # a later page may name it again, with the same total
                else:
                    sums[OTHERS] = sums.get(OTHERS, 0) + picos
            await asyncio.sleep(0)  # SQLite answers at once; let requests have their turn

    def _add(self, sums: PicosBySpender, more: PicosBySpender) -> None:
        for spender, picos in more.items():
            known = spender in sums or len(sums) < self._spenders_max
            under = spender if known else OTHERS
            sums[under] = sums.get(under, 0) + picos


def _cost_picos(item: Mapping[str, Any] | None) -> int | None:
    if item is None:
        return 0
    picos = item.get("cost_usd_picos")
    return picos if isinstance(picos, int) else None


def _days_between(first: str, last: str) -> Iterator[str]:
    shown, end = date_of(first), date_of(last)
    while shown <= end:  # at most two months
        yield day_of(shown)
        shown += _ONE_DAY
