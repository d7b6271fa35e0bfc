"""Refreshes PricingCache from a source, and compares the deployment file with one.

Yesterday, today and tomorrow in UTC are filled, because organisations have days of their own. A
past day is only filled if it is empty, so charged prices stay.

A price that became zero, or changed by `CHANGE_FACTOR_MAX` or more, may be a slipped decimal point.
The whole model is skipped and reported until an operator accepts it by label. A source without
regions only fills gaps of models whose other prices match the deployment file; `RegionalQuote`s are
never written (`pricing.regions`).

Any number of instances may refresh at once, and again after any failure: an item is written only if
it changes the statement, and never over one that was asked for later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeAlias, TypeVar

import structlog

from pricekeeper.clock import Clock
from pricekeeper.errors import ConditionFailedError, OutcomeUnknownError, UnpricedUsageError
from pricekeeper.pricing.catalogue import Catalogue, Model
from pricekeeper.pricing.items import FILE, StatedPrices, price_item, price_key, stated_prices
from pricekeeper.pricing.prices import PriceTable, flattened
from pricekeeper.pricing.quotes import PriceList, PriceSource, Quote, RegionalQuote, Unmatched
from pricekeeper.pricing.regions import combined_prices, knows_regions, overridden
from pricekeeper.pricing.reports import (
    CheckReport,
    DayUpdate,
    LeftAlone,
    PriceChange,
    PriceDifference,
    RefreshReport,
    RefusedPrices,
    UnmatchedModel,
    changes_between,
)
from pricekeeper.storage import ITEM_ABSENT, Condition, Put, Store, attr
from pricekeeper.storage.tables import PRICING_CACHE
from pricekeeper.values import ModelLabel

CHANGE_FACTOR_MAX: Final = 5
DAYS_AHEAD: Final = 1
DAYS_BACK: Final = 1
_IS_EMPTY: Final = ITEM_ABSENT | attr("source").eq(FILE)
"""No source has stated a price for that day."""

_Held: TypeAlias = dict[tuple[str, date], StatedPrices]
_Outcome: TypeAlias = tuple[DayUpdate, ...] | RefusedPrices | UnmatchedModel | LeftAlone

_Kind = TypeVar("_Kind")

_log = structlog.get_logger(__name__)


async def refresh(
    store: Store,
    clock: Clock,
    catalogue: Catalogue,
    source: PriceSource,
    *,
    accept_suspicious: Collection[ModelLabel] = (),
) -> RefreshReport:
    """Write the source's prices: one batch read, and one put per changed item.

    After an error of the store, refreshing again is safe.
    """
    prices = await source.load()
    asked_at_epoch, models = clock.now_ms() // 1000, tuple(catalogue)
    days = _days(asked_at_epoch)
    held = await _read_held(store, models, days)
    stated = {key: one for key, one in held.items() if one.source != FILE}
    job = _Job(store, prices, asked_at_epoch, days, stated)
    outcomes: dict[ModelLabel, _Outcome] = {
        model.label: await job.run(model, believe=model.label in accept_suspicious)
        for model in models
    }
    found = list(outcomes.values())
    return RefreshReport(
        source=prices.source,
        updated=tuple(update for updates in _of(tuple, found) for update in updates),
        unchanged=tuple(label for label, outcome in outcomes.items() if outcome == ()),
        unmatched=_of(UnmatchedModel, found),
        left_alone=_of(LeftAlone, found),
        refused=_of(RefusedPrices, found),
        unused_names=prices.unused_names(models),
    )


async def publish_file(store: Store, clock: Clock, catalogue: Catalogue) -> int:
    """Write the file's prices for days without a source's, and return how many items changed.

    They are there to be read; calls are priced by the file itself. One batch read, and one put per
    changed item.
    """
    now_epoch, models = clock.now_ms() // 1000, tuple(catalogue)
    days = [day for day in _days(now_epoch) if day >= _utc_day(now_epoch)]
    held, written = await _read_held(store, models, days), 0
    for model in models:
        stated = StatedPrices(table=model.table(), source=FILE, fetched_at_epoch=now_epoch)
        for day in days:
            there = held.get((model.bedrock_model_id, day))
            if there is not None and (there.source != FILE or there.version == stated.version):
                continue
            with contextlib.suppress(ConditionFailedError):  # a source was faster
                await store.put(Put(PRICING_CACHE, price_item(model, day, stated), _IS_EMPTY))
                written += 1
    return written


async def check(clock: Clock, catalogue: Catalogue, source: PriceSource) -> CheckReport:
    """Compare the deployment file with the source's prices of today."""
    prices = await source.load()
    today, models = _utc_day(clock.now_ms() // 1000), tuple(catalogue)
    found = [_compare(model, prices, today) for model in models]
    return CheckReport(
        source=prices.source,
        agreeing=tuple(one for one in found if isinstance(one, str)),
        differing=_of(PriceDifference, found),
        unmatched=_of(UnmatchedModel, found),
        left_alone=_of(LeftAlone, found),
        unused_names=prices.unused_names(models),
    )


def _of(kind: type[_Kind], found: Sequence[object]) -> tuple[_Kind, ...]:
    return tuple(one for one in found if isinstance(one, kind))


def _compare(
    model: Model, prices: PriceList, day: date
) -> ModelLabel | PriceDifference | UnmatchedModel | LeftAlone:
    """How the file and the list differ on a model; its label if they agree."""
    quote = _usable(model, prices.source, prices.quote(model, day))
    if not isinstance(quote, PriceTable):
        return quote
    stated, file = flattened(quote), flattened(model.table())
    changes = changes_between({one: file[one] for one in stated if one in file}, stated)
    if not changes:
        return model.label
    return PriceDifference(model.label, model.bedrock_model_id, changes)


@dataclass(frozen=True, slots=True)
class _Job:
    """One refresh: the source's list, and what sources stated in PricingCache before it."""

    store: Store
    prices: PriceList
    asked_at_epoch: int
    days: tuple[date, ...]
    held: _Held

    @property
    def today(self) -> date:
        return _utc_day(self.asked_at_epoch)

    async def run(self, model: Model, *, believe: bool) -> _Outcome:
        quotes: dict[date, PriceTable] = {}
        for day in self.days:
            quote = _usable(model, self.prices.source, self.prices.quote(model, day))
            if isinstance(quote, UnmatchedModel):
                _log.warning("price_unmatched", label=model.label, reason=quote.reason)
                return quote
            if isinstance(quote, LeftAlone):
                _log.info("price_left_alone", label=model.label, reason=quote.reason)
                return quote
            quotes[day] = quote
        if all(self._says_nothing_new(model, quote) for quote in quotes.values()):
            return ()
        if not believe and (suspicious := self._suspicious(model, quotes)):
            _log.warning("price_refused", label=model.label, **_old_and_new(suspicious))
            return RefusedPrices(model.label, model.bedrock_model_id, suspicious)
        updates = [
            DayUpdate(
                model.label,
                model.bedrock_model_id,
                day,
                changes_between(
                    flattened(self._in_force(model, day)),
                    flattened(combined_prices(model, self.prices.source, quote)),
                ),
            )
            for day, quote in quotes.items()
            if await self._write(model, day, quote)
        ]
        self._log_changes(updates)
        return tuple(updates)

    def _in_force(self, model: Model, day: date) -> PriceTable:
        """The prices in force before: stated for that day or the last one before it."""
        for earlier in reversed(self.days[: self.days.index(day) + 1]):
            if stated := self.held.get((model.bedrock_model_id, earlier)):
                return combined_prices(model, stated.source, stated.table)
        return model.table()

    def _says_nothing_new(self, model: Model, quote: PriceTable) -> bool:
        """Whether a source that only fills gaps finds none, so that no item is needed."""
        source = self.prices.source
        return not knows_regions(source) and combined_prices(model, source, quote) == model.table()

    def _suspicious(
        self, model: Model, quotes: Mapping[date, PriceTable]
    ) -> tuple[PriceChange, ...]:
        old = flattened(self._in_force(model, self.today))
        for quote in quotes.values():
            changes = changes_between(old, {**old, **flattened(quote)})
            if suspicious := tuple(change for change in changes if _is_suspicious(change)):
                return suspicious
        return ()

    async def _write(self, model: Model, day: date, quote: PriceTable) -> bool:
        """Write the prices unless these or later ones exist; returns whether it wrote."""
        held = self.held.get((model.bedrock_model_id, day))
        stated = StatedPrices(
            table=quote, source=self.prices.source, fetched_at_epoch=self.asked_at_epoch
        )
        if held is not None and (held.version == stated.version or day < self.today):
            return False
        item = price_item(model, day, stated)
        condition = _IS_EMPTY if day < self.today else _may_replace(stated)
        try:
            await self.store.put(Put(PRICING_CACHE, item, condition))
        except ConditionFailedError:
            return False
        except OutcomeUnknownError:
            there = await self.store.get(PRICING_CACHE, price_key(model, day))
            if there is None or there.get("version") != stated.version:
                raise
        return True

    def _log_changes(self, updates: Sequence[DayUpdate]) -> None:
        logged: set[tuple[PriceChange, ...]] = {()}
        for update in updates:
            if update.changes not in logged:
                logged.add(update.changes)
                _log.info(
                    "price_changed",
                    label=update.label,
                    since=update.day.isoformat(),
                    source=self.prices.source,
                    **_old_and_new(update.changes),
                )


async def _read_held(store: Store, models: Sequence[Model], days: Sequence[date]) -> _Held:
    pairs = [(model, day) for model in models for day in days]
    items = await store.batch_get([(PRICING_CACHE, price_key(*pair)) for pair in pairs])
    held: _Held = {}
    for (model, day), item in zip(pairs, items, strict=True):
        if item is not None:
            try:
                held[model.bedrock_model_id, day] = stated_prices(model, item)
            except UnpricedUsageError as error:
                _log.warning("price_item_unreadable", label=model.label, reason=error.message)
    return held


def _may_replace(stated: StatedPrices) -> Condition:
    """The condition that there is no item, an unreadable or the file's one, or an earlier one."""
    fetched_at = attr("fetched_at_epoch")
    at_the_same_time = fetched_at.eq(stated.fetched_at_epoch)
    is_earlier = ~fetched_at.ge(stated.fetched_at_epoch) | (
        at_the_same_time & attr("version").ne(stated.version)
    )
    return is_earlier | attr("source").eq(FILE)


def _is_suspicious(change: PriceChange) -> bool:
    old, new = change.old, change.new
    if new == 0:
        return True
    if not old or not new:
        return False
    return max(old, new) >= CHANGE_FACTOR_MAX * min(old, new)


def _usable(model: Model, source: str, quote: Quote) -> PriceTable | UnmatchedModel | LeftAlone:
    if isinstance(quote, Unmatched):
        return UnmatchedModel(model.label, model.bedrock_model_id, quote.reason)
    if isinstance(quote, RegionalQuote):
        differing = overridden(model, quote.table)
        return LeftAlone(model.label, model.bedrock_model_id, quote.reason, differing)
    if not knows_regions(source) and (differing := overridden(model, quote)):
        reason = f"the file has other prices, and {source} does not know regions"
        return LeftAlone(model.label, model.bedrock_model_id, reason, differing)
    return quote


def _old_and_new(changes: Sequence[PriceChange]) -> dict[str, dict[str, int | None]]:
    return {
        "old": {change.price: change.old for change in changes},
        "new": {change.price: change.new for change in changes},
    }


def _days(epoch: int) -> tuple[date, ...]:
    today = _utc_day(epoch)
    return tuple(today + timedelta(days=offset) for offset in range(-DAYS_BACK, DAYS_AHEAD + 1))


def _utc_day(epoch: int) -> date:
    return datetime.fromtimestamp(epoch, UTC).date()
