"""The counters of other programs: summed into the totals, forward only.

In UsageAggSharded, by the schema document:

- ``{scope}#LABEL#{label}#SH#{n}`` / ``DAY#{day}``: counters, one of n shards. Another program has
  the cost in ``cost_usd_micros``, which counts beside our own ``cost_usd_picos``
- ``ACTIVE#{day}`` / ``{scope}#LABEL#{label}#SH#{shard count}``: a marker, saying that the account
  exists and over how many shards to sum it

Shards are read consistently but one after another, so two runs at the same time can each see
something the other does not. A total is written only if no number in it goes back; whoever fails
at that reads the shards again. A read that begins after both have ended contains both, so this
settles.

An account that can't be read is reported and left aside; the others go on. If one of its shards
can't be read, its total says so from then on. If its total can't be read, it is left as it is:
readers sum the shards, and once somebody has removed the item, the next run writes another.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import gather_in_groups
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.metering.account_list import AccountList
from pricekeeper.metering.aggregation_report import Tally
from pricekeeper.metering.counters import COUNTER_NAMES, NOTHING, Account, Counters, Total
from pricekeeper.metering.items import (
    day_expires_at_epoch,
    fold_from,
    fold_put,
    has_fold,
    is_own_total,
    lacks_shards,
    shards_unreadable_update,
    total_key,
    total_put,
    total_so_far,
)
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.storage import Item, Key, Put, Query, Store, Table, TypedItem, query_pages
from pricekeeper.storage.tables import DAILY_TOTAL, USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

ATTEMPTS_MAX: Final = 5
CONCURRENCY: Final = 8
READ_KEYS_MAX: Final = 100
SHARDS_MAX: Final = 1_024
"""A marker that names more shards is strange: reading it must not read without end."""
_MARKER: Final = re.compile(r"(ORG#.{1,200})#LABEL#([^#]{1,200})#SH#([0-9]{1,9})")


def counter_key(account: Account, shard: int) -> Key:
    """Where one shard of the account is."""
    return Key(f"{account.partition}#SH#{shard}", f"DAY#{account.day}")


def counter_keys(account: Account, shard_count: int) -> list[tuple[Table, Key]]:
    """Where all shards of the account are."""
    return [(USAGE_AGG_SHARDED, counter_key(account, shard)) for shard in range(shard_count)]


def counters_from(items: Iterable[Mapping[str, Any] | None]) -> Counters:
    """The sum of what these shards hold; a missing item or attribute holds nothing.

    Raises `UnreadableItemError` if an attribute is there and is no count.
    """
    found = [_shard_counts(item) for item in items if item is not None]
    return Counters.of_amounts(map(sum, zip(*found, strict=True))) if found else NOTHING


def _shard_counts(item: Mapping[str, Any]) -> list[int]:
    """What a shard holds, in the order of `COUNTER_NAMES`, which begins with the cost."""
    typed = TypedItem(USAGE_AGG_SHARDED, item)
    counts = typed.wholes(COUNTER_NAMES)
    counts[0] += typed.whole("cost_usd_micros", 0, least=0) * PICOS_PER_MICRO
    return counts


def shard_markers_query(day: str, prefix: str = "") -> Query:
    """The accounts of a day, or those whose marker's sort key starts with the prefix."""
    return Query(USAGE_AGG_SHARDED, f"ACTIVE#{day}", prefix=prefix)


def shards_marker_put(account: Account, shard_count: int, expires_at_epoch: int) -> Put:
    """Say that the account has shards, and how many to look at: another program did not."""
    key = Key(f"ACTIVE#{account.day}", f"{account.partition}#SH#{shard_count}")
    return Put(USAGE_AGG_SHARDED, {**key.attributes, EXPIRY: expires_at_epoch})


def accounts_from(day: str, markers: Iterable[Item]) -> dict[Account, int]:
    """The accounts that the markers tell of, each with its shard count.

    All of that is in a marker's key, so its attributes need not be trusted. A marker whose key says
    something else belongs to no account: it is reported and left out.
    """
    accounts: dict[Account, int] = {}
    for marker in markers:
        named = _MARKER.fullmatch(str(marker["SK"]))
        shard_count = 0 if named is None else int(named[3])
        if named is None or not 1 <= shard_count <= SHARDS_MAX:
            typed = TypedItem(USAGE_AGG_SHARDED, marker)
            typed.report_unreadable("its sort key names no account and its shards")
            continue
        account = Account(named[1], named[2], day)
        accounts[account] = max(accounts.get(account, 0), shard_count)
    return accounts


class ShardSums:
    """Brings the totals of accounts with shards up to date."""

    def __init__(self, store: Store, clock: Clock, retention_days: int) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._accounts = AccountList(store, retention_days)

    async def write_totals_of(self, day: str, tally: Tally) -> None:
        """Bring the totals of that day up to date."""
        async for page in query_pages(self._store, shard_markers_query(day)):
            accounts = accounts_from(day, page.items)
            tally.accounts += len(accounts)
            write = partial(self._write_totals, tally)
            await gather_in_groups(write, list(_chunks(accounts)), CONCURRENCY)

    async def _write_totals(self, tally: Tally, accounts: dict[Account, int]) -> None:
        """Bring some totals up to date, from one read of all their shards."""
        as_of_ms = self._clock.now_ms()
        try:
            for account in accounts:
                org_id = account.scope_key.split("#")[1]
                await self._accounts.add(org_id, account.partition, account.day, "has_days")
            found = await read_with_shards(self._store, accounts)
        except StoreError as error:
            tally.fail(len(accounts), error)
            return
        for account, (stored, shards) in found.items():
            try:
                if await self._bring_forward(account, stored, shards, as_of_ms):
                    tally.written += 1
                    tally.written_at_ms = self._clock.now_ms()
            except StoreError as error:
                tally.fail(1, error)

    async def _bring_forward(
        self, account: Account, stored: Item | None, shards: list[Item | None], as_of_ms: int
    ) -> bool:
        """Write the total if the shards hold more; returns whether that was so.

        Both are as they were read.
        """
        for _ in range(ATTEMPTS_MAX):
            summed = await self._sum_or_mark_unreadable(account, stored, shards)
            put = self._put_of(account, stored, summed, as_of_ms)
            if put is None:
                return False
            try:
                await self._store.put(put)
            except (ConditionFailedError, OutcomeUnknownError):
                as_of_ms = self._clock.now_ms()
                found = await read_with_shards(self._store, {account: len(shards)})
                stored, shards = found[account]
            else:
                return True
        raise ContendedError(f"the total of {account.scope_key} {account.label} kept changing")

    def _put_of(
        self, account: Account, stored: Item | None, summed: Counters, as_of_ms: int
    ) -> Put | None:
        """How the total is written with that sum; ``None`` if it has it."""
        expires = day_expires_at_epoch(account.day, self._retention_days)
        current = total_so_far(stored)
        as_of_ms = max(as_of_ms, current.as_of_ms)
        if stored is not None and has_fold(stored):
            fold = fold_from(stored)
            forward = fold.with_shards(summed)
            if forward is None and not lacks_shards(stored):
                return None
            key = total_key(account)[1]
            return fold_put(key, forward or fold, stored, as_of_ms, expires, with_shards=True)
        if stored is not None and not is_own_total(stored) and not summed.dominates(current):
            excess = "it is more than the sum of its shards, which is kept"
            TypedItem(DAILY_TOTAL, stored).report_unreadable(excess)
        up_to_date = current.dominates(summed) and not lacks_shards(stored)
        if up_to_date and (stored is None or is_own_total(stored)):
            return None
        return total_put(account, Total.of(current.joined(summed), as_of_ms), expires)

    async def _sum_or_mark_unreadable(
        self, account: Account, stored: Item | None, shards: list[Item | None]
    ) -> Counters:
        """What the shards hold; if one can't be read, its total says so before that is raised."""
        try:
            return counters_from(shards)
        except UnreadableItemError:
            if not lacks_shards(stored):
                expires = day_expires_at_epoch(account.day, self._retention_days)
                update = shards_unreadable_update(account, self._clock.now_ms(), expires)
                with contextlib.suppress(ConditionFailedError):  # another run has said it
                    await self._store.update(update)
            raise


async def read_with_shards(
    store: Store, accounts: Mapping[Account, int]
) -> dict[Account, tuple[Item | None, list[Item | None]]]:
    """The total of each account, and so many of its shards: one read."""
    keys = [
        key
        for account, count in accounts.items()
        for key in (total_key(account), *counter_keys(account, count))
    ]
    items = iter(await store.batch_get(keys) if keys else ())
    return {
        account: (next(items), [next(items) for _ in range(count)])
        for account, count in accounts.items()
    }


async def read_shard_sum(store: Store, account: Account) -> Counters | None:
    """What the shards of an account hold; ``None`` if it has none."""
    page = await store.query(shard_markers_query(account.day, f"{account.partition}#SH#"))
    count = max(accounts_from(account.day, page.items).values(), default=0)
    if not count:
        return None
    return counters_from(await store.batch_get(counter_keys(account, count)))


def _chunks(accounts: dict[Account, int]) -> Iterator[dict[Account, int]]:
    """The accounts in groups that one request can read, or one account alone."""
    chunk: dict[Account, int] = {}
    keys = 0
    for account, count in accounts.items():
        if chunk and keys + count + 1 > READ_KEYS_MAX:
            yield chunk
            chunk, keys = {}, 0
        chunk[account] = count
        keys += count + 1
    if chunk:
        yield chunk
