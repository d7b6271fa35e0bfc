"""Counts what the feed and its listeners do, for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_FEED: Final = Family(
    "pricekeeper_feed_items", "Moments that were written for those who watch.", ("outcome",)
)
_STREAMS: Final = Family(
    "pricekeeper_event_streams", "Streams of events that were opened, refused or ended.", ("what",)
)
_GROUPS: Final = Family(
    "pricekeeper_denial_writes", "Groups of denials that were written, by outcome.", ("outcome",)
)


@dataclass(slots=True)
class FeedMeter:
    """What one process wrote into feeds, and who listened."""

    written: int = counted(_FEED, "written")
    contended: int = counted(_FEED, "contended")
    """Attempts that another process was faster with."""
    failed: int = counted(_FEED, "failed")
    """Moments that the store did not take: those who watch are told to look for themselves."""
    streams: Counter[str] = counted(
        _STREAMS,
        shown=("opened", "refused", "left", "slow", "credentials", "closing"),
        factory=Counter,
    )
    """Those opened, those refused for want of room, and why the others ended."""


@dataclass(slots=True)
class DenialMeter:
    """What became of the denials that one process noted."""

    written: int = counted(_GROUPS, "written")
    failed: int = counted(_GROUPS, "failed")
    """Writes that the store did not take; they are tried again."""
    combined: int = counted(_GROUPS, "combined")
    """Denials that had no group of their own any more, and count as others."""
    lost: int = counted(_GROUPS, "lost")
    """Groups that were given up, because the store did not take them for minutes."""
