"""Items of the Activity table: keys and codec.

- ``FEED#{audience}`` / number: the events of a moment. The audience is an organisation's id, or
  ``ALL``. While a feed is watched, its numbers have no gap. Items live for minutes.
- ``WATCHED`` / audience: that feed is watched, so it is written. ``epoch`` is its first number, a
  new one each time that watching begins.
- ``DENIALS#{org}`` / minute, group and process: a group of denials
- ``DENIED#{hour}`` / minute, organisation, group and process: index of these for all organisations
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.activity.event import Event, Group, decode_events, decode_group, encode
from pricekeeper.storage import ITEM_ABSENT, Item, Key, Put, Query, TypedItem
from pricekeeper.storage.tables import ACTIVITY
from pricekeeper.storage.values import EXPIRY

ALL: Final = "ALL"
"""The audience of callers who see more than one organisation."""
WATCHED: Final = "WATCHED"
FEED_SECS: Final = 600
"""The life of an item: how far back a listener can resume."""
WATCH_SECS: Final = 90
"""How long a feed is written after it was last marked as watched."""
PAGE_MAX: Final = 200
KEPT_DAYS: Final = 35
"""For denials."""
SECS_PER_DAY: Final = 86_400
_NUMBER_DIGITS: Final = 16
_MINUTE_DIGITS: Final = 9
_MINUTES_PER_HOUR: Final = 60
_BEHIND: Final = "$"
"""Sorts directly after ``#``, which follows the minute in a sort key."""
_DENIED: Final = re.compile(r"([0-9]{9})#([^#]{1,100})#([0-9a-f]{12})#([0-9a-f]+)")


class FeedItem(NamedTuple):
    """The events of a moment."""

    number: int
    events: tuple[Event, ...]
    is_complete: bool
    written_at_ms: int
    nonce: bytes = b""


def feed_put(audience: str, item: FeedItem) -> Put:
    """Put the item, if its number is free."""
    made: Item = {
        **Key(f"FEED#{audience}", _number(item.number)).attributes,
        "events": encode(item.events),
        "is_complete": item.is_complete,
        "written_at_ms": item.written_at_ms,
        "nonce": item.nonce,
        EXPIRY: item.written_at_ms // 1000 + FEED_SECS,
    }
    return Put(ACTIVITY, made, ITEM_ABSENT)


def newest_query(audience: str) -> Query:
    """Query the last item of a feed."""
    return Query(ACTIVITY, f"FEED#{audience}", descending=True, limit=1)


def feed_query(audience: str, behind: int) -> Query:
    """Query the items after that number, in order."""
    return Query(ACTIVITY, f"FEED#{audience}", after=_number(behind), limit=PAGE_MAX)


def feed_item_from(item: Mapping[str, Any]) -> FeedItem:
    """Raises `UnreadableItemError`."""
    typed = TypedItem(ACTIVITY, item)
    try:
        return FeedItem(
            int(item["SK"]),
            decode_events(item["events"]),
            item["is_complete"] is True,
            typed.whole("written_at_ms"),
            item["nonce"],
        )
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise typed.report_unreadable(f"it is no moment of a feed: {error}") from error


def watch_put(audience: str, epoch: int, now_ms: int) -> Put:
    """Mark the feed as watched."""
    key, expires = Key(WATCHED, audience), now_ms // 1000 + WATCH_SECS
    return Put(ACTIVITY, {**key.attributes, "epoch": epoch, EXPIRY: expires})


def epoch_from(item: Mapping[str, Any]) -> int:
    """The first number of a watched feed."""
    epoch: int = TypedItem(ACTIVITY, item).whole("epoch", least=0)
    return epoch


class DenialKey(NamedTuple):
    """The key of a group of one process."""

    org_id: str
    minute: int
    digest: str
    process: str


def denials_key(key: DenialKey) -> Key:
    """The key of a group: minute, then digest."""
    return Key(f"DENIALS#{key.org_id}", f"{_minute(key.minute)}#{key.digest}#{key.process}")


def denials_query(
    org_id: str, first: int, last: int, behind: tuple[int, str | None] | None
) -> Query:
    """Query an organisation's groups, newest first, after the group or minute ``behind``."""
    after = ""
    if behind is not None:
        minute, digest = behind
        after = f"{_minute(minute)}#" if digest is None else f"{_minute(minute)}#{digest}#"
    return Query(
        ACTIVITY,
        f"DENIALS#{org_id}",
        first=_minute(first),
        last=f"{_minute(last)}{_BEHIND}",
        after=after,
        limit=PAGE_MAX,
        descending=True,
    )


def denied_query(hour: int) -> Query:
    """Query the index of an hour, newest first."""
    return Query(ACTIVITY, f"DENIED#{hour}", descending=True)


def denial_key_from(org_id: str, item: Mapping[str, Any]) -> DenialKey:
    """Parse the key of an organisation's group."""
    minute, digest, process = str(item["SK"]).split("#")
    return DenialKey(org_id, int(minute), digest, process)


def denied_key_from(item: Mapping[str, Any]) -> DenialKey | None:
    """Parse a line of the index; ``None`` if it is unreadable, which is reported."""
    named = _DENIED.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(ACTIVITY, item).report_unreadable("its sort key names no group of denials")
        return None
    return DenialKey(named[2], int(named[1]), named[3], named[4])


def denials_put(key: DenialKey, group: Group, expires_at_epoch: int) -> Put:
    """Write a group, in place of its last version."""
    place = denials_key(key).attributes
    return Put(ACTIVITY, {**place, "denials": encode(group), EXPIRY: expires_at_epoch})


def denied_put(key: DenialKey, expires_at_epoch: int) -> Put:
    """Add a group to the index."""
    sort_key = f"{_minute(key.minute)}#{key.org_id}#{key.digest}#{key.process}"
    place = Key(f"DENIED#{key.minute // _MINUTES_PER_HOUR}", sort_key)
    return Put(ACTIVITY, {**place.attributes, EXPIRY: expires_at_epoch})


def group_from(item: Mapping[str, Any]) -> Group:
    """Read a group; raises `UnreadableItemError`."""
    try:
        return decode_group(item["denials"])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        typed = TypedItem(ACTIVITY, item)
        raise typed.report_unreadable(f"it has no denials: {error}") from error


def _minute(minute: int) -> str:
    return f"{max(0, minute):0{_MINUTE_DIGITS}d}"


def _number(number: int) -> str:
    return f"{number:0{_NUMBER_DIGITS}d}"
