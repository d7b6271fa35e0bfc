"""The log in the store: keys and writes.

In UsageAggSharded, in the partitions of the journal (`position.partition_of`, lane 0):

- ``s{chapter}{number}{salt}``: a sheet (`sheet`), put if there is none, and never changed
- ``o{16 sheets}``: the filed outcomes of authorizations on these sheets: the last outcome of each,
  or the start of a long one (`sheet.filed_in_part`); ``f`` is the last filed chapter
- ``ORG#{org}#LOG`` / ``HEAD``: ``from``, the first unfiled chapter. A reader begins there and
  follows the seals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.position import (
    CHAPTER_DIGITS,
    Chapter,
    Position,
    number_in,
    region_of,
    sheet_sort_key,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    Action,
    Item,
    Key,
    Put,
    Query,
    Set,
    TypedItem,
    Update,
    Value,
    attr,
)
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY, PARTITION_KEY, SORT_KEY
from pricekeeper.ticks import REGION_DIGITS, partition_of

_FROM, _FILED = "from", "f"
_LANE: Final = 0
_CHAPTER: Final = re.compile("[0-9a-f]{9}")


def head_key(org_id: str) -> Key:
    """The key of the item with the log's beginning."""
    return Key(f"ORG#{org_id}#LOG", "HEAD")


def head_put(org_id: str, first: Chapter) -> Put:
    """Begin a log, if there is none."""
    item: Item = {**head_key(org_id).attributes, _FROM: first.text}
    return Put(USAGE_AGG_SHARDED, item, ITEM_ABSENT)


def head_update(org_id: str, filed: Chapter, following: Chapter) -> Update:
    """Move the log's beginning behind a filed chapter, if it begins with that one."""
    unmoved = attr(_FROM).eq(filed.text)
    return Update(USAGE_AGG_SHARDED, head_key(org_id), (Set(_FROM, following.text),), unmoved)


def first_chapter(item: Mapping[str, Any]) -> Chapter:
    """The log's beginning. Raises `UnreadableItemError`."""
    typed = TypedItem(USAGE_AGG_SHARDED, item)
    try:
        return Chapter.parse(typed.text(_FROM))
    except ValueError as error:
        raise typed.report_unreadable(str(error)) from error


def sheet_partition(org_id: str, region: str) -> str:
    """The partition of a region's sheets."""
    return partition_of(org_id, region, _LANE)


def sheet_put(org_id: str, position: Position, attributes: Item, expires_at_epoch: int) -> Put:
    """Write a sheet, if its place is free."""
    item: Item = {
        PARTITION_KEY: sheet_partition(org_id, position.chapter.region),
        SORT_KEY: position.sort_key,
        **attributes,
        EXPIRY: expires_at_epoch,
    }
    return Put(USAGE_AGG_SHARDED, item, ITEM_ABSENT)


def position_key(org_id: str, position: Position) -> Key:
    """The key of a position's sheet."""
    return Key(sheet_partition(org_id, position.chapter.region), position.sort_key)


def sheets_query(org_id: str, position: Position) -> Query:
    """Query the sheets of a chapter from that position on."""
    chapter = position.chapter
    after = Position(chapter, position.number - 1).sort_key if position.number else ""
    pk = sheet_partition(org_id, chapter.region)
    return Query(USAGE_AGG_SHARDED, pk, prefix=f"s{chapter.name}", after=after)


def prefix_query(org_id: str, prefix: str) -> Query:
    """Query the sheet with that prefix of its sort key (`Position.prefix`)."""
    pk = sheet_partition(org_id, prefix[1 : 1 + REGION_DIGITS])
    return Query(USAGE_AGG_SHARDED, pk, prefix=prefix, limit=1)


def number_of(item: Mapping[str, Any]) -> int:
    """The number of a sheet in its chapter."""
    sort_key = str(item["SK"])
    try:
        return number_in(sort_key)
    except ValueError as error:
        raise UnreadableItemError(f"{sort_key[:60]!r} is the key of no sheet") from error


def behind_query(org_id: str, authorization_id: str, sheets: int) -> Query:
    """Query the sheet of an id, and some behind it in the same chapter."""
    first = sheet_sort_key(authorization_id)
    pk = sheet_partition(org_id, region_of(authorization_id))
    last = f"{first[: 1 + CHAPTER_DIGITS]}~"
    return Query(USAGE_AGG_SHARDED, pk, first=first, last=last, limit=sheets)


def sheet_key(org_id: str, authorization_id: str) -> Key:
    """The key of an authorization's sheet."""
    partition = sheet_partition(org_id, region_of(authorization_id))
    return Key(partition, sheet_sort_key(authorization_id))


def outcomes_key(org_id: str, sort_key: str) -> Key:
    """The key of filed outcomes (`position.outcomes_sort_key`)."""
    return Key(sheet_partition(org_id, sort_key[1 : 1 + REGION_DIGITS]), sort_key)


def outcomes_update(
    key: Key,
    outcomes: Mapping[str, str],
    chapter: str,
    expires_at_epoch: int,
    *,
    in_place_of: Value | None = None,
) -> Update:
    """File outcomes, unless a later chapter was filed. ``in_place_of``: a damaged chapter."""
    actions: list[Action] = [Set(name, text) for name, text in outcomes.items()]
    actions += (Set(_FILED, chapter), Set(EXPIRY, expires_at_epoch))
    filed = attr(_FILED)
    unfiled = filed.absent() | filed.le(chapter)
    if in_place_of is not None:
        unfiled = filed.eq(in_place_of)
    return Update(USAGE_AGG_SHARDED, key, tuple(actions), unfiled)


def find_damage(item: Mapping[str, Any] | None) -> Value | None:
    """The value of the last filed chapter, if it is damaged."""
    filed: Value | None = None if item is None else item.get(_FILED)
    if item is None or filed is None or (isinstance(filed, str) and _CHAPTER.fullmatch(filed)):
        return None
    TypedItem(USAGE_AGG_SHARDED, item).report_unreadable(f"{_FILED} must name a chapter")
    return filed
