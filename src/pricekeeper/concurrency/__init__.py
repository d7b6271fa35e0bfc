"""Bounded caches, backoff, shared executions, fair queues and deadlines, for all other packages."""

from pricekeeper.concurrency.backoff import Backoff
from pricekeeper.concurrency.cache import BoundedCache, ReadCache, Reading
from pricekeeper.concurrency.fairness import FairLine, FairSlots, Places, Shares, TurnQueue
from pricekeeper.concurrency.gathering import (
    gather_in_groups,
    gather_in_turn,
    in_groups,
    wait_or_wake,
)
from pricekeeper.concurrency.shared_readings import Read, SharedReadings
from pricekeeper.concurrency.single_flight import NextFlight, SingleFlight, error_copy

__all__ = [
    "Backoff",
    "BoundedCache",
    "FairLine",
    "FairSlots",
    "NextFlight",
    "Places",
    "Read",
    "ReadCache",
    "Reading",
    "SharedReadings",
    "Shares",
    "SingleFlight",
    "TurnQueue",
    "error_copy",
    "gather_in_groups",
    "gather_in_turn",
    "in_groups",
    "wait_or_wake",
]
