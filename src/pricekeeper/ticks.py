"""Ticks and regions of the journal.

A **tick** is 65.5 s. A **region** is as long; an organisation's entries of it share partitions.
"""

from __future__ import annotations

from typing import Final

TICK_BITS: Final = 16
TICK_MS: Final = 1 << TICK_BITS
REGION_DIGITS: Final = 8


def tick_of(epoch_ms: int) -> int:
    """The tick of a time."""
    return epoch_ms >> TICK_BITS


def region_at(epoch_ms: int) -> str:
    """The region of an entry of that time."""
    return f"{epoch_ms:012x}"[:REGION_DIGITS]


def partition_of(org_id: str, region: str, lane: int) -> str:
    """The partition of a lane of a region."""
    return f"ORG#{org_id}#J#{region}#{lane}"
