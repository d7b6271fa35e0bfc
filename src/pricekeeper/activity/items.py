"""Items of the Activity table: what happened, for those who watch and for those who look back.

- ``FEED#{audience}`` / number: a moment of what happened, as the events of `activity.event`. The
  audience is an organisation's id, or ``ALL``. The numbers of a feed have no gap for as long as it
  is watched, so whoever misses one knows it. Items live for minutes.
- ``WATCHED`` / audience: somebody watches that feed; only then is it written. ``epoch`` is the
  number with which it began, and is another one each time that somebody begins after nobody did.
- ``DENIALS#{org}`` / minute, group and process: denials of a minute that are one
- ``DENIED#{hour}`` / minute, organisation, group and process: where these are, for whoever looks at
  all organisations
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.activity.denial import Group, decode_group, encode_group
from pricekeeper.activity.event import Event, decode_events, encode_events
from pricekeeper.storage import ITEM_ABSENT, Item, Key, Put, Query, TypedItem
from pricekeeper.storage.tables import ACTIVITY

ALL: Final = "ALL"
"""The audience of whoever sees more than one organisation."""
WATCHED: Final = "WATCHED"
FEED_SECS: Final = 600
"""How long an item of a feed lives: as far back a listener can resume."""
WATCH_SECS: Final = 90
"""How long a feed is written after the last time that somebody said to watch it."""
PAGE_MAX: Final = 200
"""Items of a feed that are read at once."""
KEPT_DAYS: Final = 35
"""How long denials are kept."""
SECS_PER_DAY: Final = 86_400
_NUMBER_DIGITS: Final = 16
_MINUTE_DIGITS: Final = 9
_MINUTES_PER_HOUR: Final = 60
_BEHIND: Final = "$"
"""Sorts right behind ``#``, which follows a minute in a sort key."""
_DENIED: Final = re.compile(r"([0-9]{9})#([^#]{1,100})#([0-9a-f]{12})#([0-9a-f]+)")


class FeedItem(NamedTuple):
    """A moment of a feed."""

    number: int
    events: tuple[Event, ...]
    is_complete: bool
    """Whether everything that happened in it is told."""
    written_at_ms: int
    nonce: bytes = b""


def feed_put(audience: str, item: FeedItem) -> Put:
    """Put the item at its number, unless there is one."""
    return Put(
        ACTIVITY,
        {
            "PK": f"FEED#{audience}",
            "SK": _number(item.number),
            "events": encode_events(item.events),
            "is_complete": item.is_complete,
            "written_at_ms": item.written_at_ms,
            "nonce": item.nonce,
            "expires_at_epoch": item.written_at_ms // 1000 + FEED_SECS,
        },
        ITEM_ABSENT,
    )


def newest_query(audience: str) -> Query:
    """The last item of a feed."""
    return Query(ACTIVITY, f"FEED#{audience}", descending=True, limit=1)


def feed_query(audience: str, behind: int) -> Query:
    """The items of a feed behind that number, in order."""
    return Query(ACTIVITY, f"FEED#{audience}", after=_number(behind), limit=PAGE_MAX)


def feed_item_from(item: Mapping[str, Any]) -> FeedItem:
    """The moment that the item tells. Raises `UnreadableItemError` for what is none."""
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
    """Say that somebody watches the feed."""
    return Put(
        ACTIVITY,
        {
            "PK": WATCHED,
            "SK": audience,
            "epoch": epoch,
            "expires_at_epoch": now_ms // 1000 + WATCH_SECS,
        },
    )


def watch_key(audience: str) -> Key:
    """Where it is said that somebody watches the feed."""
    return Key(WATCHED, audience)


def watched_query() -> Query:
    """Which feeds are watched."""
    return Query(ACTIVITY, WATCHED)


def epoch_from(item: Mapping[str, Any]) -> int:
    """The number with which a watched feed began."""
    epoch: int = TypedItem(ACTIVITY, item).whole("epoch", least=0)
    return epoch


class DenialKey(NamedTuple):
    """Where a group of denials of one process is."""

    org_id: str
    minute: int
    digest: str
    """Of what the denials have in common."""
    process: str


def denials_key(key: DenialKey) -> Key:
    """The key of a group: by minute, then by what its denials have in common."""
    return Key(f"DENIALS#{key.org_id}", f"{_minute(key.minute)}#{key.digest}#{key.process}")


def denials_query(
    org_id: str, first: int, last: int, behind: tuple[int, str | None] | None
) -> Query:
    """The groups of an organisation in these minutes, both included, the newest first.

    Those ``behind`` a group follow it, whichever process counted it; without one, the minute.
    """
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
    """Who was denied something in an hour, the newest first."""
    return Query(ACTIVITY, f"DENIED#{hour}", descending=True)


def denial_key_from(org_id: str, item: Mapping[str, Any]) -> DenialKey:
    """Which group an item of an organisation is."""
    minute, digest, process = str(item["SK"]).split("#")
    return DenialKey(org_id, int(minute), digest, process)


def denied_key_from(item: Mapping[str, Any]) -> DenialKey | None:
    """Where a group is; ``None`` if that can't be made out, which is reported."""
    named = _DENIED.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(ACTIVITY, item).report_unreadable("its sort key names no group of denials")
        return None
    return DenialKey(named[2], int(named[1]), named[3], named[4])


def denials_put(key: DenialKey, group: Group, expires_at_epoch: int) -> Put:
    """Write a group as it is now, in place of what it was."""
    pk, sk = msgspec.structs.astuple(denials_key(key))
    item: Item = {
        "PK": pk,
        "SK": sk,
        "denials": encode_group(group),
        "expires_at_epoch": expires_at_epoch,
    }
    return Put(ACTIVITY, item)


def denied_put(key: DenialKey, expires_at_epoch: int) -> Put:
    """Note where a group is."""
    return Put(
        ACTIVITY,
        {
            "PK": f"DENIED#{key.minute // _MINUTES_PER_HOUR}",
            "SK": f"{_minute(key.minute)}#{key.org_id}#{key.digest}#{key.process}",
            "expires_at_epoch": expires_at_epoch,
        },
    )


def group_from(item: Mapping[str, Any]) -> Group:
    """The group in an item. Raises `UnreadableItemError` for what is none."""
    try:
        return decode_group(item["denials"])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        typed = TypedItem(ACTIVITY, item)
        raise typed.report_unreadable(f"it has no denials: {error}") from error


def _minute(minute: int) -> str:
    return f"{max(0, minute):0{_MINUTE_DIGITS}d}"


def _number(number: int) -> str:
    return f"{number:0{_NUMBER_DIGITS}d}"
