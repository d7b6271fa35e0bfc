"""Counting what the stores do, cheaply enough to do it on every call.

A `StoreMeter` is handed to a store when it is opened. Tests assert documented costs on it,
and the metrics endpoint exports it. Capacity is in half units, the smallest that DynamoDB
bills, so that it stays an integer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pricekeeper.telemetry.sizes import Sizes


@dataclass(slots=True)
class StoreMeter:
    """What a store was asked, and what that took."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls of the port by name: ``get``, ``update``, ``transact``..."""

    attempts: Counter[str] = field(default_factory=Counter)
    """Requests sent over the network, by action. None on SQLite."""

    faults: Counter[str] = field(default_factory=Counter)
    """Failed attempts by kind: ``throttled``, ``conflict``, ``ambiguous``, ``unreachable``."""

    read_half_units: Counter[str] = field(default_factory=Counter)
    """Consumed read capacity by table, in half units."""

    write_half_units: Counter[str] = field(default_factory=Counter)
    """Consumed write capacity by table, in half units."""

    commits: int = 0
    """Durable commits. On SQLite one commit carries many operations."""

    committed_operations: int = 0
    """Operations that those commits carried."""

    commit_sizes: Sizes = field(default_factory=Sizes)
    """How many operations each of those commits carried."""

    swept: int = 0
    """Expired items removed in the background."""

    def committed(self, operations: int) -> None:
        """Count a durable commit of that many operations."""
        self.commits += 1
        self.committed_operations += operations
        self.commit_sizes.note(operations)

    def clear(self) -> None:
        """Start counting anew."""
        self.__init__()  # type: ignore[misc]
