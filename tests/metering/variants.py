"""Metering done wrong, in the ways it has been done wrong elsewhere.

Each of these is a plausible implementation. The checks that hold the real one must catch every
one of them; one that gets through would show that the checks can't see that mistake.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from metering.conftest import CATALOGUE
from pricekeeper.clock import Clock
from pricekeeper.metering import Aggregator, Metering, Recorded, Usage, service
from pricekeeper.pricing import (
    PICOS_PER_MICRO,
    Charge,
    Component,
    Model,
    PriceBook,
    Prices,
    TokenUsage,
    charge,
)
from pricekeeper.storage import Put, Store, Write
from pricekeeper.storage.tables import DAILY_TOTAL, REQUEST_DEDUP
from pricekeeper.tenants import Policy

MeteringKind: TypeAlias = Callable[[Store, Clock], Metering]
AggregatorKind: TypeAlias = Callable[[Store, Clock], Aggregator]


def sound_metering(store: Store, clock: Clock) -> Metering:
    return Metering(store, clock, PriceBook(store, clock, CATALOGUE))


@dataclass(frozen=True, slots=True)
class Variant:
    """An implementation to be checked: the sound one, with a part or two exchanged."""

    metering: MeteringKind = sound_metering
    aggregator: AggregatorKind = Aggregator


class _Passing(FaultyStore):
    """Hands every call on; the variants below change one of them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())


class _NoReceipt(_Passing):
    """Counts whatever comes: the receipt is written, but nobody minds one that is there."""

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._store.transact(
            [
                Put(one.table, one.item) if _is_receipt(one) and isinstance(one, Put) else one
                for one in operations
            ],
        )


class _Apart(_Passing):
    """First the receipts, then the counters."""

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._store.transact([one for one in operations if _is_receipt(one)])
        await self._store.transact([one for one in operations if not _is_receipt(one)])


class _NoMarker(_Passing):
    """Which scopes are active is remembered by the process that counted, and nowhere else."""

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._store.transact(
            [one for one in operations if not one.key.pk.startswith("ACTIVE#")]
        )


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


def _is_receipt(operation: Write) -> bool:
    return operation.table is REQUEST_DEDUP


def _floored(model: Model, prices: Prices, tokens: TokenUsage) -> Charge:
    """The cost in whole micro-dollars, kind by kind."""
    exact = charge(model, prices, tokens)
    micros = sum(
        tokens.tokens(component) * (exact.rates.of(component) or 0) // PICOS_PER_MICRO
        for component in Component
    )
    return msgspec.structs.replace(exact, cost_usd_picos=micros * PICOS_PER_MICRO)


def per_component_floor(monkeypatch: pytest.MonkeyPatch) -> Variant:
    monkeypatch.setattr(service, "charge", _floored)
    return Variant()


SOUND = Variant()
NO_RECEIPT = Variant(metering=lambda store, clock: sound_metering(_NoReceipt(store), clock))
APART = Variant(metering=lambda store, clock: sound_metering(_Apart(store), clock))
NO_MARKER = Variant(metering=lambda store, clock: sound_metering(_NoMarker(store), clock))
DAY_OF_ARRIVAL = Variant(
    metering=lambda store, clock: _DayOfArrival(store, clock, PriceBook(store, clock, CATALOGUE))
)
UNGUARDED = Variant(aggregator=lambda store, clock: Aggregator(_Unguarded(store), clock))

BROKEN: dict[str, Callable[[pytest.MonkeyPatch], Variant]] = {
    "no receipt": lambda _: NO_RECEIPT,
    "receipt and counter apart": lambda _: APART,
    "no durable marker": lambda _: NO_MARKER,
    "day taken from arrival": lambda _: DAY_OF_ARRIVAL,
    "unguarded aggregator": lambda _: UNGUARDED,
    "per-component floor": per_component_floor,
}
