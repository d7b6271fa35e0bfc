"""Ticks and regions: the minutes that the journal is divided into, by time and by place.

Time passes in **ticks** of 65.5 s. A **region** is as long: what is made in it is in the partitions
of one organisation and region.
"""

from __future__ import annotations

from typing import Final

TICK_BITS: Final = 16
TICK_MS: Final = 1 << TICK_BITS
REGION_DIGITS: Final = 8


def tick_of(epoch_ms: int) -> int:
    """The tick that a moment belongs to."""
    return epoch_ms >> TICK_BITS


def region_at(epoch_ms: int) -> str:
    """The region of what is made at that moment."""
    return f"{epoch_ms:012x}"[:REGION_DIGITS]


def partition_of(org_id: str, region: str, lane: int) -> str:
    """The partition in which a lane of a region is."""
    return f"ORG#{org_id}#J#{region}#{lane}"
