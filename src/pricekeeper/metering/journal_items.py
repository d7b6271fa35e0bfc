"""Keys and items of the journal, and writes on them.

All of them are in UsageAggSharded:

- ``ORG#{org}#J#{region}#{lane}`` / digits of an id: a page, with its weight ``n``
- lane 0 / ``s{digits}``: a sheet of authorizations, with the records of captured ones
- lane 0 / ``v{request_id}``: a void note: the correction of a record of that region
- ``TICKS`` / tick: something was posted in this tick
- ``TICK#{tick}`` / ``{org}#{region}#{lanes}``: into that region
- ``REPAIR`` / ``{org}#{day}``: rebuild this day of that organisation

A marker is written before the page. So the markers of an ended tick name every region into which a
record was posted in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.days import is_day
from pricekeeper.metering.journal import (
    FULL_WEIGHT,
    StoredTerms,
    void_note_sort_key,
    weight_of,
)
from pricekeeper.storage import (
    ITEM_ABSENT,
    Action,
    Add,
    Condition,
    Delete,
    Item,
    Key,
    Put,
    Query,
    Set,
    Table,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.expressions import And, Exists, Not
from pricekeeper.storage.tables import REQUEST_DEDUP, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY
from pricekeeper.ticks import TICK_MS, partition_of

REPAIR: Final = "REPAIR"
TICKS: Final = "TICKS"
_WEIGHT: Final = "n"
_CORRECTION, _AT = "correction_id", "at_ms"
"""Of a void note. Names of records are longer, so sums find no record on it."""
_SECS_PER_DAY: Final = 86_400
_MARGIN_DAYS: Final = 2
"""Records of a day may be sent two days later."""
_MARKER: Final = re.compile(r"([^#]{1,100})#([0-9a-f]{8})#([0-9]{1,4})")
_TICK: Final = re.compile(r"[0-9a-f]{8}")
_REPAIR: Final = re.compile(r"([^#]{1,100})#([0-9]{8})")


class Written(msgspec.Struct, frozen=True, gc=False):
    """A record ready to be written to a page."""

    name: str
    data: bytes
    terms: StoredTerms


class PostedRegion(NamedTuple):
    """A region into which an organisation posted, and its number of lanes."""

    org_id: str
    region: str
    lanes: int


class Repair(NamedTuple):
    """A day of an organisation to rebuild."""

    org_id: str
    day: str


class VoidNote(NamedTuple):
    """The correction of a voided record, and its moment."""

    request_id: str
    correction_id: str
    at_ms: int


def page_expires_at_epoch(region: str, retention_days: int) -> int:
    """Return when the pages of a region expire."""
    began_secs = int(region, 16) * TICK_MS // 1000
    return began_secs + (_MARGIN_DAYS + retention_days) * _SECS_PER_DAY


def page_key(org_id: str, region: str, lane: int, digits: str) -> Key:
    """The key of a page."""
    return Key(partition_of(org_id, region, lane), digits)


def page_update(key: Key, records: Sequence[Written], expires_at_epoch: int) -> Update:
    """Write records to a page, if none of them is there and the page is not full.

    The condition can only turn from true to false. So a refusal is final, also for copies of this
    write that are still under way.
    """
    written: list[Action] = []
    conditions: list[Condition] = []
    terms: dict[str, bytes] = {}
    weight = 0
    for record in records:
        written.append(Set(record.name, record.data))
        conditions.append(Not(Exists(record.name)))
        terms[record.terms.name] = record.terms.data
        weight += weight_of(record.terms)
    shared = [Set(name, data) for name, data in terms.items()]
    actions = (*written, *shared, Add(_WEIGHT, weight), Set(EXPIRY, expires_at_epoch))
    return Update(USAGE_AGG_SHARDED, key, actions, And((*conditions, _weighs_less(FULL_WEIGHT))))


@cache
def _weighs_less(full_weight: int) -> Condition:
    return attr(_WEIGHT).absent() | attr(_WEIGHT).lt(full_weight)


def take_places_update(
    key: Key, claims: Mapping[str, tuple[str | None, str]], expires_at_epoch: int
) -> Update:
    """Claim the places of records on a page, all or none.

    For each name: the expected content, ``None`` for nothing, and the new content.
    """
    conditions: list[Condition] = []
    for name, (before, _) in claims.items():
        conditions.append(Not(Exists(name)) if before is None else attr(name).eq(before))
    fresh = sum(before is None for before, _ in claims.values())
    actions: list[Action] = [Set(name, after) for name, (_, after) in claims.items()]
    if fresh:
        actions.append(Add(_WEIGHT, fresh))
        conditions.append(_weighs_less(FULL_WEIGHT))
    actions.append(Set(EXPIRY, expires_at_epoch))
    return Update(USAGE_AGG_SHARDED, key, tuple(actions), And(tuple(conditions)))


def void_note_put(org_id: str, region: str, note: VoidNote, expires_at_epoch: int) -> Put:
    """Note beside a region's records that one is voided, for readers of the region."""
    key = page_key(org_id, region, 0, void_note_sort_key(note.request_id))
    return Put(USAGE_AGG_SHARDED, _void_item(key, note, expires_at_epoch))


def void_marker_key(org_id: str, request_id: str) -> tuple[Table, Key]:
    """The key of the marker by which a record is voided once."""
    return REQUEST_DEDUP, Key(f"ORG#{org_id}#VOID#{request_id}")


def void_marker_put(org_id: str, note: VoidNote, expires_at_epoch: int) -> Put:
    """Mark a record as voided, if it is not."""
    table, key = void_marker_key(org_id, note.request_id)
    return Put(table, _void_item(key, note, expires_at_epoch), ITEM_ABSENT)


def void_note_from(table: Table, item: Item, request_id: str) -> VoidNote:
    """Decode a void note or marker; raise `UnreadableItemError` if that fails."""
    typed = TypedItem(table, item)
    return VoidNote(request_id, typed.text(_CORRECTION), typed.whole(_AT))


def _void_item(key: Key, note: VoidNote, expires_at_epoch: int) -> Item:
    said = {_CORRECTION: note.correction_id, _AT: note.at_ms}
    return {**key.attributes, **said, EXPIRY: expires_at_epoch}


def pages_query(posting: PostedRegion, lane: int, after: str = "") -> Query:
    """Query the pages of one lane of a region."""
    pk = partition_of(posting.org_id, posting.region, lane)
    return Query(USAGE_AGG_SHARDED, pk, after=after)


def marker_put(tick: int, posting: PostedRegion, expires_at_epoch: int) -> Put:
    """Mark that something is posted into that region in this tick. Repeatable."""
    key = Key(_tick_partition(tick), f"{posting.org_id}#{posting.region}#{posting.lanes}")
    return Put(USAGE_AGG_SHARDED, {**key.attributes, EXPIRY: expires_at_epoch})


def tick_put(tick: int, expires_at_epoch: int) -> Put:
    """Mark that something is posted in this tick. Repeatable."""
    key = Key(TICKS, f"{tick:08x}")
    return Put(USAGE_AGG_SHARDED, {**key.attributes, EXPIRY: expires_at_epoch})


def ticks_query(first: int, last: int) -> Query:
    """Query the marked ticks in this range."""
    return Query(USAGE_AGG_SHARDED, TICKS, first=f"{first:08x}", last=f"{last:08x}")


def newest_ticks_query(first: int, last: int, limit: int) -> Query:
    """Query the same in descending order, so many at a time."""
    return msgspec.structs.replace(ticks_query(first, last), limit=limit, descending=True)


def ticks_from(items: Iterable[Item]) -> Iterator[int]:
    """The ticks that the items name; report other items."""
    for item in items:
        if _TICK.fullmatch(str(item["SK"])) is None:
            TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no tick")
            continue
        yield int(item["SK"], 16)


def tick_markers_query(tick: int, org_id: str = "") -> Query:
    """Query the regions posted into in a tick, of all organisations or one."""
    prefix = f"{org_id}#" if org_id else ""
    return Query(USAGE_AGG_SHARDED, _tick_partition(tick), prefix=prefix)


def postings_from(markers: Iterable[Item]) -> Iterator[PostedRegion]:
    """The regions that the markers name; report other items."""
    for marker in markers:
        named = _MARKER.fullmatch(str(marker["SK"]))
        if named is None:
            TypedItem(USAGE_AGG_SHARDED, marker).report_unreadable("its sort key names no region")
            continue
        yield PostedRegion(named[1], named[2], int(named[3]))


def repair_put(repair: Repair, nonce: str, expires_at_epoch: int) -> Put:
    """Request that a day is rebuilt by a run that begins later."""
    key = Key(REPAIR, f"{repair.org_id}#{repair.day}")
    return Put(USAGE_AGG_SHARDED, {**key.attributes, "nonce": nonce, EXPIRY: expires_at_epoch})


def repairs_query() -> Query:
    """Query the requested repairs."""
    return Query(USAGE_AGG_SHARDED, REPAIR)


def repair_from(item: Item) -> Repair | None:
    """The requested repair; ``None`` for an unreadable item, which is reported."""
    named = _REPAIR.fullmatch(str(item["SK"]))
    if named is None or not is_day(named[2]):
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no day")
        return None
    return Repair(named[1], named[2])


def repair_delete(item: Item) -> Delete:
    """Delete a finished repair, unless it was requested again meanwhile."""
    key = Key(str(item["PK"]), str(item["SK"]))
    nonce: Any = item.get("nonce")
    same = attr("nonce").absent() if nonce is None else attr("nonce").eq(nonce)
    return Delete(USAGE_AGG_SHARDED, key, same)


def _tick_partition(tick: int) -> str:
    return f"TICK#{tick:08x}"
