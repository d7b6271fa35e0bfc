"""Keys and items of metering, and their codec.

- DailyTotal ``{scope}#LABEL#{label}`` / ``DAY#{day}``: an account's spend, with its parts
  (`metering.fold`) under ``adopted``, ``closed``, ``parts`` and ``rev``, and corrections under
  ``voided``
- DailyTotal, the same and ``HOUR#...``, ``TAG#...``: by hour and tag (`metering.facets`)
- UsageAggSharded ``AGGREGATOR`` / ``CHECKPOINT``: when the last complete aggregation began, and the
  last tick that it closed
- UsageAggSharded ``SPENT#{day}`` / ``{scope}#LABEL#{label}``: the account has a total of that day
- UsageAggSharded ``ACCOUNTS#{org}`` / ``{scope}#LABEL#{label}``: the partition has totals of days
  (``has_days``), of hours and tags (``has_hours``), or adopted usage (``has_adopted``)

All items of a day expire `RETENTION_DAYS` after it has ended in every zone. ``cost_usd_micros`` of
a total is a rounded copy of ``cost_usd_picos``.

An unreadable item raises `UnreadableItemError`; it never counts as nothing. If a page of the
journal is unreadable, the totals that may lack it get ``lacking_since_ms`` and can't be read
either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import UNSET

from pricekeeper.days import date_of
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering.counters import COUNTER_NAMES, NOTHING, Account, Counters, Total
from pricekeeper.metering.fold import Fold
from pricekeeper.settings import RETENTION_DAYS_DEFAULT
from pricekeeper.storage import (
    ITEM_ABSENT,
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
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

RETENTION_DAYS: Final = RETENTION_DAYS_DEFAULT
CHECKPOINT: Final = (USAGE_AGG_SHARDED, Key("AGGREGATOR", "CHECKPOINT"))

Holds: TypeAlias = Literal["has_days", "has_hours", "has_adopted"]
_SECS_PER_DAY: Final = 86_400
_ENDED_EVERYWHERE_DAYS: Final = 2
"""From a day's start in UTC until it has ended in every zone."""
_DAYS_REMEMBERED_MAX: Final = 4_096
_REV: Final = "rev"
_CLOSED: Final = "closed"
_PARTS: Final = "parts"
_ADOPTED: Final = "adopted"
_NO_PARTS: Final = msgspec.json.encode({})
_VOIDED: Final = "voided"
_Amounts = tuple[int, int, int, int, int, int, int]
_Part = Annotated[list[int], msgspec.Meta(min_length=7, max_length=14)]
_decode_parts: Final = msgspec.json.Decoder(dict[str, _Part]).decode
_decode_amounts: Final = msgspec.json.Decoder(_Amounts).decode
_CLOSED_TICK: Final = "closed_tick"
_BEGAN: Final = "began_at_ms"
_AWAITED: Final = "awaited_since_ms"
_COST_MICROS: Final = "cost_usd_micros"
_AS_OF: Final = "as_of_ms"
_LACKING: Final = "lacking_since_ms"
_REQUIRED: Final = (*COUNTER_NAMES, _REV)
_ACCOUNT: Final = re.compile(r"(ORG#.{1,200})#LABEL#([^#]{1,200})")


def spent_put(account: Account, expires_at_epoch: int) -> Put:
    """List the account among those with a total of its day. Repeatable."""
    key = Key(f"SPENT#{account.day}", account.partition)
    return Put(USAGE_AGG_SHARDED, {**key.attributes, EXPIRY: expires_at_epoch})


def account_update(org_id: str, partition: str, holds: Holds, expires_at_epoch: int) -> Update:
    """List the partition, unless it is listed for longer already."""
    return Update(
        USAGE_AGG_SHARDED,
        Key(f"ACCOUNTS#{org_id}", partition),
        (Set(holds, True), Set(EXPIRY, expires_at_epoch)),  # noqa: FBT003
        attr(holds).absent() | attr(EXPIRY).absent() | attr(EXPIRY).lt(expires_at_epoch),
    )


def spent_query(day: str, prefix: str = "") -> Query:
    """Query the accounts with a total of that day, by prefix of their key."""
    return Query(USAGE_AGG_SHARDED, f"SPENT#{day}", prefix=prefix)


def account_from(day: str, item: Item) -> Account | None:
    """The account of an item of `spent_query`; report any other item."""
    named = _named_in(item)
    return None if named is None else Account(*named, day)


def _named_in(item: Item) -> tuple[str, str] | None:
    named = _ACCOUNT.fullmatch(str(item["SK"]))
    if named is None:
        TypedItem(USAGE_AGG_SHARDED, item).report_unreadable("its sort key names no account")
        return None
    return named[1], named[2]


def partitions_query(org_id: str, prefix: str = "") -> Query:
    """Query the organisation's partitions of totals."""
    return Query(USAGE_AGG_SHARDED, f"ACCOUNTS#{org_id}", prefix=prefix)


class Partition(NamedTuple):
    """A partition of DailyTotal: the totals of a scope or app on one label."""

    scope_key: str
    label: str
    has_days: bool = True
    has_hours: bool = True
    has_adopted: bool = False

    @property
    def pk(self) -> str:
        return f"{self.scope_key}#LABEL#{self.label}"


def partition_from(item: Item) -> Partition | None:
    """The partition of an item of `partitions_query`; report any other item."""
    named = _named_in(item)
    if named is None:
        return None
    return Partition(*named, *(item.get(name) is True for name in get_args(Holds)))


def total_key(account: Account) -> tuple[Table, Key]:
    """The key of the account's total."""
    return DAILY_TOTAL, Key(account.partition, f"DAY#{account.day}")


def fold_put(
    key: Key,
    fold: Fold,
    stored: Item | None,
    as_of_ms: int,
    expires_at_epoch: int,
    *,
    is_whole: bool = False,
) -> Put:
    """Write a total, if the stored one is the one read. ``is_whole``: it lacks no records."""
    item: Item = {
        **key.attributes,
        **dict(zip(COUNTER_NAMES, fold.total.amounts, strict=True)),
        _AS_OF: as_of_ms,
        _COST_MICROS: fold.total.cost_usd_micros,
        "updated_at_epoch": as_of_ms // 1000,
        EXPIRY: expires_at_epoch,
        _REV: fold.rev,
        _CLOSED: fold.closed,
    }
    if fold.parts:
        item[_PARTS] = msgspec.json.encode(
            {str(tick): _part_of(part) for tick, part in fold.parts.items()}
        )
    if fold.adopted != NOTHING:
        item[_ADOPTED] = msgspec.json.encode(fold.adopted.amounts)
    if fold.total.voided is not UNSET:
        item[_VOIDED] = msgspec.json.encode(fold.total.voided.amounts)
    if stored is None:
        return Put(DAILY_TOTAL, item, ITEM_ABSENT)
    if _LACKING in stored and not is_whole:
        item[_LACKING] = stored[_LACKING]
    return Put(DAILY_TOTAL, item, attr(_REV).eq(stored[_REV]))


def _part_of(part: Counters) -> list[int]:
    return part.amounts + ([] if part.voided is UNSET else part.voided.amounts)


def _part_from(amounts: list[int]) -> Counters:
    size = len(COUNTER_NAMES)
    part = Counters.of_amounts(amounts[:size])
    if len(amounts) == size:
        return part
    return msgspec.structs.replace(part, voided=Counters.of_amounts(amounts[size:]))


def fold_from(item: Mapping[str, Any] | None) -> Fold:
    """Decode a total and its parts; raise `UnreadableItemError` if that fails."""
    if item is None:
        return Fold()
    total = total_so_far(item).counters
    typed = TypedItem(DAILY_TOTAL, item)
    try:
        parts = _decode_parts(item.get(_PARTS, _NO_PARTS))
        adopted = _decode_amounts(item[_ADOPTED]) if _ADOPTED in item else ()
        if _VOIDED in item:
            total = msgspec.structs.replace(total, voided=Counters(*_decode_amounts(item[_VOIDED])))
    except (msgspec.MsgspecError, TypeError) as error:
        raise typed.report_unreadable(f"what it is made of can't be read: {error}") from error
    return Fold(
        total,
        Counters(*adopted),
        typed.whole(_CLOSED),
        {int(tick): _part_from(part) for tick, part in parts.items()},
        typed.whole(_REV, least=0),
    )


def total_from(item: Mapping[str, Any] | None) -> Total:
    """Decode a total. Raises `UnreadableItemError`, also if it lacks records."""
    if item is None:
        return Total()
    if lacks_records(item):
        raise TypedItem(DAILY_TOTAL, item).report_unreadable("records of it can't be read")
    return total_so_far(item)


def total_so_far(item: Mapping[str, Any] | None) -> Total:
    """Decode a total, even if it lacks records: a lower bound."""
    if item is None:
        return Total()
    typed = TypedItem(DAILY_TOTAL, item)
    counts = typed.wholes(COUNTER_NAMES)
    for name in _REQUIRED:
        if name not in item:
            typed.whole(name)  # which reports that it is missing
    return Total.of(Counters.of_amounts(counts), typed.whole(_AS_OF, least=0))


def lacks_records(item: Mapping[str, Any] | None) -> bool:
    """Whether the total is marked as lacking records."""
    return item is not None and _LACKING in item


def lacking_update(account: Account, now_ms: int) -> Update:
    """Mark an account's total as lacking records, until it is rebuilt."""
    is_unmarked = attr(_REV).exists() & attr(_LACKING).absent()
    return Update(*total_key(account), (Set(_LACKING, now_ms),), is_unmarked)


def checkpoint_update(began_ms: int, closed_tick: int) -> Update:
    """Move the checkpoint forward: all records acknowledged before are in the totals."""
    table, key = CHECKPOINT
    return Update(
        table,
        key,
        (Set(_BEGAN, began_ms), Set(_CLOSED_TICK, closed_tick)),
        attr(_BEGAN).absent() | attr(_BEGAN).lt(began_ms),
    )


def checkpoint_put(began_ms: int, closed_tick: int) -> Put:
    """Replace an unreadable checkpoint."""
    table, key = CHECKPOINT
    return Put(table, {**key.attributes, _BEGAN: began_ms, _CLOSED_TICK: closed_tick})


def closed_tick_from(item: Mapping[str, Any] | None) -> int | None:
    """The last closed tick; ``None`` if it is unknown."""
    if item is None:
        return None
    try:
        return TypedItem(USAGE_AGG_SHARDED, item).whole(_CLOSED_TICK, None)
    except UnreadableItemError:
        return None


def checkpoint_from(item: Mapping[str, Any] | None) -> int | None:
    """Return when the last complete aggregation began; ``None`` if there was none.

    An unreadable checkpoint is reported and counts as none: the next complete aggregation starts
    with the oldest day and writes a new one.
    """
    if item is None or (_BEGAN not in item and _AWAITED in item):
        return None
    try:
        return TypedItem(USAGE_AGG_SHARDED, item).whole(_BEGAN)
    except UnreadableItemError:
        return None


def awaited_update(now_ms: int) -> Update:
    """Note since when a first complete aggregation is awaited; the first moment stays."""
    table, key = CHECKPOINT
    return Update(table, key, (Set(_AWAITED, now_ms),), attr(_AWAITED).absent())


def awaited_from(item: Mapping[str, Any]) -> int:
    """Return since when a first complete aggregation is awaited."""
    return TypedItem(USAGE_AGG_SHARDED, item).whole(_AWAITED)


@lru_cache(maxsize=_DAYS_REMEMBERED_MAX)
def day_expires_at_epoch(day: str, retention_days: int = RETENTION_DAYS) -> int:
    """Return when all items of that day expire."""
    date = date_of(day)
    start = int(datetime(date.year, date.month, date.day, tzinfo=UTC).timestamp())
    return start + (_ENDED_EVERYWHERE_DAYS + retention_days) * _SECS_PER_DAY
