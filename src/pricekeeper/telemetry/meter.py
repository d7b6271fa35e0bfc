"""Counting what the stores do, cheaply enough to do it on every call.

A `StoreMeter` is handed to a store when it is opened. Tests assert documented costs on it,
and the metrics endpoint exports it. Capacity is in half units, the smallest that DynamoDB
bills, so that it stays an integer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry.families import Family, Kind, Sizes, counted

_CALLS: Final = Family("pricekeeper_store_calls", "Calls of the storage port.", ("call",))
_ATTEMPTS: Final = Family(
    "pricekeeper_store_attempts", "Requests to DynamoDB by action.", ("action",)
)
_FAULTS: Final = Family("pricekeeper_store_faults", "Failed attempts by kind.", ("kind",))
_CAPACITY: Final = Family(
    "pricekeeper_store_capacity_units", "DynamoDB capacity consumed, by table.", ("table", "kind")
)
_SWEPT: Final = Family("pricekeeper_store_swept", "Expired rows removed from SQLite.")
_COMMITS: Final = Family(
    "pricekeeper_store_commit_operations", "Operations in one SQLite commit.", kind=Kind.SIZES
)
_KINDS: Final = (
    "throttled", "conflict", "ambiguous", "unreachable", "sweep", "replaced", "damaged",
)  # fmt: skip


@dataclass(slots=True)
class StoreMeter:
    """What a store was asked, and what that took."""

    calls: Counter[str] = counted(_CALLS, factory=Counter)
    """Calls of the port by name: ``get``, ``update``, ``transact``..."""
    attempts: Counter[str] = counted(_ATTEMPTS, factory=Counter)
    """Requests sent over the network, by action. None on SQLite."""
    faults: Counter[str] = counted(_FAULTS, shown=_KINDS, factory=Counter)
    """Failed attempts by kind: ``throttled``, ``conflict``, ``ambiguous``, ``unreachable``."""
    read_half_units: Counter[str] = counted(_CAPACITY, "read", per_unit=2, factory=Counter)
    """Consumed read capacity by table, in half units."""
    write_half_units: Counter[str] = counted(_CAPACITY, "write", per_unit=2, factory=Counter)
    """Consumed write capacity by table, in half units."""
    commit_sizes: Sizes = counted(_COMMITS, factory=Sizes)
    """How many operations each durable commit carried: on SQLite one carries many."""
    swept: int = counted(_SWEPT)
    """Expired items removed in the background."""

    def clear(self) -> None:
        """Start counting anew."""
        self.__init__()  # type: ignore[misc]
