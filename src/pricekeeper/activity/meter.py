"""Counts the work of feeds, listeners and denials for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_FEED: Final = Family(
    "pricekeeper_feed_items", "Feed items, by outcome of their write.", ("outcome",)
)
_STREAMS: Final = Family(
    "pricekeeper_event_streams", "Event streams opened, refused and ended.", ("what",)
)
_GROUPS: Final = Family(
    "pricekeeper_denial_writes", "Writes of denial groups, by outcome.", ("outcome",)
)


@dataclass(slots=True)
class FeedMeter:
    """The feeds and listeners of one process."""

    written: int = counted(_FEED, "written")
    contended: int = counted(_FEED, "contended")
    """Attempts at a number that another process took."""
    failed: int = counted(_FEED, "failed")
    """Failed writes; readers then get an item that is marked as incomplete."""
    streams: Counter[str] = counted(
        _STREAMS,
        shown=("opened", "refused", "left", "slow", "credentials", "closing"),
        factory=Counter,
    )
    """Opened, refused for lack of room, and the reasons why the others ended."""


@dataclass(slots=True)
class DenialMeter:
    """The denials of one process."""

    written: int = counted(_GROUPS, "written")
    failed: int = counted(_GROUPS, "failed")
    combined: int = counted(_GROUPS, "combined")
    """Denials without a group of their own, counted as others."""
    lost: int = counted(_GROUPS, "lost")
    """Given up after minutes of failed writes."""
