"""Keys and items of metering, and the codec between them and values.

- RequestDedup ``ORG#{org}#REQ#{request id}``: the receipt of a record that was counted
- UsageAggSharded ``{scope}#LABEL#{label}#SH#{n}`` / ``DAY#{day}``: counters, one of n shards
- UsageAggSharded ``ACTIVE#{day}`` / ``{scope}#LABEL#{label}#SH#{shard count}``: a marker, saying
  that the account exists and over how many shards to sum it. Whoever counts has also marked.
- UsageAggSharded ``AGGREGATOR`` / ``CHECKPOINT``: when the last complete aggregation began
- DailyTotal ``{scope}#LABEL#{label}`` / ``DAY#{day}``: the sum of the shards

Everything of a day expires at one moment, `RETENTION_DAYS` after it has ended everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters, Total
from pricekeeper.metering.days import date_of
from pricekeeper.storage import (
    ITEM_ABSENT,
    Add,
    Condition,
    Item,
    Key,
    Put,
    Query,
    Set,
    Table,
    Update,
    attr,
)
from pricekeeper.storage.tables import DAILY_TOTAL, REQUEST_DEDUP, USAGE_AGG_SHARDED

RETENTION_DAYS: Final = 90
CHECKPOINT: Final = (USAGE_AGG_SHARDED, Key("AGGREGATOR", "CHECKPOINT"))

_SECS_PER_DAY: Final = 86_400
_ENDED_EVERYWHERE_DAYS: Final = 2
"""From a day's start in UTC: by then it has ended in every zone."""
_BEGAN: Final = "began_at_ms"


def receipt_pk(org_id: str, request_id: str) -> str:
    """The partition key under which a request id is remembered."""
    return f"ORG#{org_id}#REQ#{request_id}"


def receipt_place(org_id: str, request_id: str) -> tuple[Table, Key]:
    """Where the receipt of a request id is, if there is one."""
    return REQUEST_DEDUP, Key(receipt_pk(org_id, request_id))


def receipt_put(item: Item) -> Put:
    """Write a receipt where there is none."""
    return Put(REQUEST_DEDUP, item, ITEM_ABSENT)


def counter_key(account: Account, shard: int) -> Key:
    """Where one shard of the account is."""
    scope_key, label, day = account
    return Key(f"{scope_key}#LABEL#{label}#SH#{shard}", f"DAY#{day}")


def counter_places(account: Account, shard_count: int) -> list[tuple[Table, Key]]:
    """Where all shards of the account are."""
    return [(USAGE_AGG_SHARDED, counter_key(account, shard)) for shard in range(shard_count)]


def counter_update(
    account: Account, shard: int, counters: Counters, now_epoch: int, expires_at_epoch: int
) -> Update:
    """Add to one shard."""
    amounts = ((name, getattr(counters, name)) for name in COUNTER_NAMES)
    return Update(
        USAGE_AGG_SHARDED,
        counter_key(account, shard),
        (
            *(Add(name, amount) for name, amount in amounts if amount),
            Set("updated_at_epoch", now_epoch),
            Set("expires_at_epoch", expires_at_epoch),
        ),
    )


def counters_from(items: Iterable[Mapping[str, Any] | None]) -> Counters:
    """The sum of what these items hold; a missing item or attribute holds nothing."""
    found = [item for item in items if item is not None]
    return Counters(*(sum(item.get(name, 0) for item in found) for name in COUNTER_NAMES))


def marker_put(account: Account, shard_count: int, expires_at_epoch: int) -> Put:
    """Say that the account exists. Everybody says the same, so it may be said any number of times.

    The shard count is part of the key: should an organisation be created anew with another
    one, both markers stand, and the larger count covers the shards of either.
    """
    scope_key, label, day = account
    return Put(
        USAGE_AGG_SHARDED,
        {
            "PK": f"ACTIVE#{day}",
            "SK": f"{scope_key}#LABEL#{label}#SH#{shard_count}",
            "scope_key": scope_key,
            "label": label,
            "shard_count": shard_count,
            "expires_at_epoch": expires_at_epoch,
        },
    )


def markers_query(day: str, prefix: str = "", after: str = "") -> Query:
    """The accounts of a day, or those whose marker's sort key starts with the prefix."""
    return Query(USAGE_AGG_SHARDED, f"ACTIVE#{day}", prefix=prefix, after=after)


def accounts_from(day: str, markers: Iterable[Item]) -> dict[Account, int]:
    """The accounts that the markers tell of, each with its shard count."""
    accounts: dict[Account, int] = {}
    for marker in markers:
        account = Account(marker["scope_key"], marker["label"], day)
        accounts[account] = max(accounts.get(account, 0), marker["shard_count"])
    return accounts


def total_place(account: Account) -> tuple[Table, Key]:
    """Where the account's total is."""
    scope_key, label, day = account
    return DAILY_TOTAL, Key(f"{scope_key}#LABEL#{label}", f"DAY#{day}")


def total_put(account: Account, total: Total, expires_at_epoch: int) -> Put:
    """Write the total, unless that would take anything back.

    Shards are read one after another, so two sums need not contain each other even if one
    was begun later. Hence every number is compared, not the times alone.
    """
    _, key = total_place(account)
    grows: dict[str, int] = {
        **{name: getattr(total, name) for name in COUNTER_NAMES},
        "as_of_ms": total.as_of_ms,
    }
    forward: Condition = attr("as_of_ms").le(total.as_of_ms)
    for name in COUNTER_NAMES:
        forward &= attr(name).le(grows[name])
    item: Item = {
        "PK": key.pk,
        "SK": key.sk,
        **grows,
        "cost_usd_micros": total.cost_usd_micros,
        "updated_at_epoch": total.as_of_ms // 1000,
        "expires_at_epoch": expires_at_epoch,
    }
    return Put(DAILY_TOTAL, item, ITEM_ABSENT | forward)


def total_from(item: Mapping[str, Any] | None) -> Total:
    """The total of an item; nothing, as of never, if there is none."""
    if item is None:
        return Total()
    return Total(as_of_ms=item["as_of_ms"], **{name: item[name] for name in COUNTER_NAMES})


def checkpoint_update(began_ms: int) -> Update:
    """Say that everything acknowledged before then is in the totals; never an earlier moment."""
    table, key = CHECKPOINT
    return Update(
        table, key, (Set(_BEGAN, began_ms),), attr(_BEGAN).absent() | attr(_BEGAN).lt(began_ms)
    )


def checkpoint_from(item: Mapping[str, Any] | None) -> int | None:
    """When the last complete aggregation began, if there was one."""
    return None if item is None else int(item[_BEGAN])


def day_expires_at_epoch(day: str, retention_days: int = RETENTION_DAYS) -> int:
    """When everything of that day may be forgotten."""
    date = date_of(day)
    start = int(datetime(date.year, date.month, date.day, tzinfo=UTC).timestamp())
    return start + (_ENDED_EVERYWHERE_DAYS + retention_days) * _SECS_PER_DAY
