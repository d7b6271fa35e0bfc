"""Metering done wrong, in the ways it has been done wrong elsewhere or nearly was here.

Each of these is a plausible implementation. The checks that hold the real one must catch every
one of them; one that gets through would show that the checks can't see that mistake.
`docs/proof.md` lists them, with the seed that catches each.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import CATALOGUE
from pricekeeper.clock import Clock
from pricekeeper.errors import ConditionFailedError
from pricekeeper.metering import (
    Aggregator,
    Metering,
    Recorded,
    Usage,
    aggregator,
    folding,
    marking,
    posting,
    preparing,
)
from pricekeeper.metering.aggregation_report import Tally
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.fold import Fold, add_up
from pricekeeper.metering.journal import Address, is_full
from pricekeeper.metering.journal_items import TICKS, Written, page_update
from pricekeeper.metering.marking import Marks
from pricekeeper.metering.posting import Poster, Settle
from pricekeeper.metering.submission import Submission
from pricekeeper.pricing import PICOS_PER_MICRO, Model, PriceBook, Prices, TokenUsage, charge
from pricekeeper.pricing.cost import Charge
from pricekeeper.pricing.prices import Component
from pricekeeper.storage import Item, Key, Put, Store, Update, Write
from pricekeeper.storage.tables import DAILY_TOTAL, REQUEST_DEDUP
from pricekeeper.tenants import Policy
from pricekeeper.ticks import tick_of

MeteringKind: TypeAlias = Callable[[Store, Clock], Metering]
AggregatorKind: TypeAlias = Callable[[Store, Clock], Aggregator]


SEEDING = Random()
"""Where the randomness of instances comes from; a simulation seeds it, so that it decides all."""


def a_book(store: Store, clock: Clock) -> PriceBook:
    return PriceBook(store, clock, CATALOGUE)


def sound_metering(store: Store, clock: Clock) -> Metering:
    randomness = Random(SEEDING.getrandbits(64))
    return Metering(store, clock, a_book(store, clock), randomness=randomness)


@dataclass(frozen=True, slots=True)
class Variant:
    """An implementation to be checked: the sound one, with a part or two exchanged."""

    metering: MeteringKind = sound_metering
    aggregator: AggregatorKind = Aggregator


Broken: TypeAlias = Callable[[pytest.MonkeyPatch], Variant]


class _Passing(FaultyStore):
    """Hands every call on; the variants below change one of them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())


class _MomentReplaced(_Passing):
    """Every use of an id gives it another moment."""

    async def put(self, operation: Put) -> None:
        if _is_moment(operation):
            operation = Put(operation.table, operation.item)
        await self._store.put(operation)


class _MomentUnread(_Passing):
    """A moment that is there is not read: each writer believes in its own."""

    async def put(self, operation: Put) -> None:
        with contextlib.suppress(*([ConditionFailedError] if _is_moment(operation) else [])):
            await self._store.put(operation)


class _NoMarker(_Passing):
    """No marker names the region of a page."""

    async def put(self, operation: Put) -> None:
        if not operation.key.pk.startswith("TICK#"):
            await self._store.put(operation)


class _NoTick(_Passing):
    """No marker names the tick of a page."""

    async def put(self, operation: Put) -> None:
        if operation.key.pk != TICKS:
            await self._store.put(operation)


class _MarkedAfterwards(_Passing):
    """The region is marked when the page has been written."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._held_back: list[Put] = []

    async def put(self, operation: Put) -> None:
        if operation.key.pk.startswith("TICK"):
            self._held_back.append(operation)
        else:
            await self._store.put(operation)

    async def update(self, operation: Update) -> Item:
        found = await self._store.update(operation)
        while self._held_back:
            await self._store.put(self._held_back.pop())
        return found


class _Unguarded(_Passing):
    """Overwrites totals, as the schema document does."""

    async def put(self, operation: Put) -> None:
        if operation.table is DAILY_TOTAL:
            operation = Put(operation.table, operation.item)
        await self._store.put(operation)


class _DayOfArrival(Metering):
    """Counts on the day on which the record arrives."""

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        return await super().record(policy, msgspec.structs.replace(usage, timestamp_ms=None))


def _is_moment(operation: Write) -> bool:
    return operation.table is REQUEST_DEDUP


def _floored(model: Model, prices: Prices, tokens: TokenUsage) -> Charge:
    """The cost in whole micro-dollars, kind by kind."""
    exact = charge(model, prices, tokens)
    micros = sum(
        tokens.tokens(component) * (exact.rates.of(component) or 0) // PICOS_PER_MICRO
        for component in Component
    )
    return msgspec.structs.replace(exact, cost_usd_picos=micros * PICOS_PER_MICRO)


def per_component_floor(patch: pytest.MonkeyPatch) -> Variant:
    patch.setattr(preparing, "charge", _floored)
    return SOUND


def overwritten_entries(patch: pytest.MonkeyPatch) -> Variant:
    """A record is written to its page whether it is there or not."""
    sound = page_update

    def broken(key: Key, records: Sequence[Written], expires: int) -> Update:
        update = sound(key, records, expires)
        return Update(update.table, update.key, update.actions)

    patch.setattr(posting, "page_update", broken)
    return SOUND


def endless_pages(patch: pytest.MonkeyPatch) -> Variant:
    """A writer that has not noticed that a page is full writes to it."""
    sound = page_update

    def broken(key: Key, records: Sequence[Written], expires: int) -> Update:
        update = sound(key, records, expires)
        parts = update.condition.parts[:-1]  # type: ignore[union-attr]
        condition = type(update.condition)(parts)  # type: ignore[misc]
        return Update(update.table, update.key, update.actions, condition)

    patch.setattr(posting, "page_update", broken)
    return SOUND


def children_unseen(patch: pytest.MonkeyPatch) -> Variant:
    """What is on a full page is not looked at before its children are written."""
    sound = Poster._settle_counted

    async def settle_counted(
        self: Poster,
        looked_at: Iterable[tuple[Submission, Mapping[str, Any] | None]],
        nonce: bytes,
        settle: Settle,
    ) -> list[Submission]:
        seen = list(looked_at)
        if all(one.address is not None and page and is_full(page) for one, page in seen):
            return [one for one, _ in seen]
        return await sound(self, seen, nonce, settle)

    patch.setattr(Poster, "_settle_counted", settle_counted)
    return SOUND


def one_nonce_for_all(patch: pytest.MonkeyPatch) -> Variant:
    """Everybody takes a record that is there for its own."""
    patch.setattr(Marks, "new_nonce", lambda _: b"\1" * marking.NONCE_BYTES)
    return SOUND


def lanes_by_chance(patch: pytest.MonkeyPatch) -> Variant:
    """Which lane a record is in depends on who writes it."""
    calls = iter(range(1 << 30))
    patch.setattr(Address, "lane", lambda _, lanes: next(calls) % lanes)
    return SOUND


def closed_at_its_end(patch: pytest.MonkeyPatch) -> Variant:
    """A tick is closed when it ends."""
    patch.setattr(aggregator, "closable_tick", lambda now_ms: tick_of(now_ms) - 1)
    return SOUND


def never_repaired(patch: pytest.MonkeyPatch) -> Variant:
    """A record that is answered late is not summed again."""
    patch.setattr(marking, "is_late", lambda *_: False)
    return SOUND


def parts_added(patch: pytest.MonkeyPatch) -> Variant:
    """Records of an open tick are added to the earlier reading."""

    def forward(
        self: Fold, found: Mapping[int, Counters], through: int, closable: int, _: int = 0
    ) -> Fold:
        closed = max(self.closed, min(closable, through))
        fresh = add_up(sums for tick, sums in found.items() if tick > self.closed)
        return Fold(self.total + fresh, self.adopted, closed, {}, self.rev + 1)

    patch.setattr(Fold, "forward", forward)
    return SOUND


def closed_ticks_again(patch: pytest.MonkeyPatch) -> Variant:
    """A total forgets which ticks it has."""
    sound = Fold.forward

    def forward(self: Fold, found: Mapping[int, Counters], *more: int) -> Fold | None:
        return sound(msgspec.structs.replace(self, closed=-1), found, *more)

    patch.setattr(Fold, "forward", forward)
    return SOUND


def going_back(patch: pytest.MonkeyPatch) -> Variant:
    """An older reading replaces a newer one."""

    def forward(
        self: Fold, found: Mapping[int, Counters], through: int, closable: int, _: int = 0
    ) -> Fold | None:
        base = self.total - add_up(self.parts.values())
        closed = max(self.closed, min(closable, through))
        fresh = {tick: sums for tick, sums in found.items() if tick > self.closed}
        parts = {tick: sums for tick, sums in fresh.items() if tick > closed}
        total = base + add_up(fresh.values())
        return Fold(total, self.adopted, closed, parts, self.rev + 1)

    patch.setattr(Fold, "forward", forward)
    return SOUND


def checkpoint_past_failures(patch: pytest.MonkeyPatch) -> Variant:
    """The checkpoint moves although some totals could not be written."""

    def fail(self: Tally, accounts: int, error: Exception) -> None:
        self.unreadable += accounts
        self.errors[str(error)] = None

    sound = folding.FoldRunner.fold

    async def fold_and_forget(self: folding.FoldRunner, *rest: Any) -> set[str]:
        await sound(self, *rest)
        return set()

    patch.setattr(Tally, "fail", fail)
    patch.setattr(folding.FoldRunner, "fold", fold_and_forget)
    return SOUND


def adopted_twice(patch: pytest.MonkeyPatch) -> Variant:
    """Each adoption is added to the one before."""

    def with_adopted(self: Fold, adopted: Counters) -> Fold:
        more = self.adopted + adopted
        return Fold(self.total + adopted, more, self.closed, self.parts, self.rev + 1)

    patch.setattr(Fold, "with_adopted", with_adopted)
    return SOUND


def through(wire: Callable[[Store], Store]) -> Broken:
    """The sound one, which sees its store through something else."""
    return lambda _: Variant(lambda store, clock: sound_metering(wire(store), clock))


def day_of_arrival(_: pytest.MonkeyPatch) -> Variant:
    return Variant(lambda store, clock: _DayOfArrival(store, clock, a_book(store, clock)))


def unguarded(_: pytest.MonkeyPatch) -> Variant:
    return Variant(aggregator=lambda store, clock: Aggregator(_Unguarded(store), clock))


SOUND = Variant()
BROKEN: dict[str, tuple[Broken, int]] = {
    "moment replaced": (through(_MomentReplaced), 0),
    "moment unread": (through(_MomentUnread), 0),
    "no marker of the region": (through(_NoMarker), 0),
    "no marker of the tick": (through(_NoTick), 0),
    "marked after the page": (through(_MarkedAfterwards), 0),
    "day taken from arrival": (day_of_arrival, 0),
    "unguarded aggregator": (unguarded, 1),
    "per-component floor": (per_component_floor, 0),
    "entries overwritten": (overwritten_entries, 0),
    "pages never full": (endless_pages, 165),
    "children written unseen": (children_unseen, 1),
    "one nonce for all": (one_nonce_for_all, 3),
    "lanes by chance": (lanes_by_chance, 0),
    "closed at its end": (closed_at_its_end, 146),
    "never repaired": (never_repaired, 11),
    "parts added": (parts_added, 0),
    "closed ticks again": (closed_ticks_again, 1),
    "going back": (going_back, 8),
    "checkpoint past failures": (checkpoint_past_failures, 14),
    "adopted twice": (adopted_twice, 3),
}
"""Each with the first seed that catches it."""
