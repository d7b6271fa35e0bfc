"""Counts calls of a store, in DynamoDB's half units of capacity."""

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
    """Counters of one store."""

    calls: Counter[str] = counted(_CALLS, factory=Counter)
    """Of the port, by name."""
    attempts: Counter[str] = counted(_ATTEMPTS, factory=Counter)
    """Network requests by action; none on SQLite."""
    faults: Counter[str] = counted(_FAULTS, shown=_KINDS, factory=Counter)
    read_half_units: Counter[str] = counted(_CAPACITY, "read", per_unit=2, factory=Counter)
    """By table."""
    write_half_units: Counter[str] = counted(_CAPACITY, "write", per_unit=2, factory=Counter)
    """By table."""
    commit_sizes: Sizes = counted(_COMMITS, factory=Sizes)
    """Operations per durable commit, which SQLite shares."""
    swept: int = counted(_SWEPT)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]
