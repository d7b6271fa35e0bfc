"""The counters of an earlier version, and of other programs: summed into the totals, forward only.

They stand in shards, which a marker of their day and account tells of. Shards are read consistently
but one after another, so two runs at the same time can each see something the other does not. A
total is written only if no number in it goes back; whoever fails at that reads the shards again.
A read that begins after both have ended contains both, so this settles.

An account that can't be read is reported and left aside; the others go on. If one of its shards
can't be read, its total says so from then on. If its total can't be read, it is left as it is:
readers sum the shards, and once somebody has removed the item, the next run writes another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

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
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.items import (
    accounts_from,
    counter_keys,
    counters_from,
    day_expires_at_epoch,
    fold_from,
    fold_put,
    has_fold,
    is_own_total,
    lacks_shards,
    report_excess,
    shard_markers_query,
    shards_unreadable_update,
    total_key,
    total_put,
    total_so_far,
)
from pricekeeper.storage import Item, Put, Store, query_pages

ATTEMPTS_MAX: Final = 5
CONCURRENCY: Final = 8
READ_KEYS_MAX: Final = 100


class ShardSums:
    """Brings the totals of accounts with shards up to date."""

    def __init__(self, store: Store, clock: Clock, retention_days: int) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._accounts = AccountList(store, retention_days)

    async def visit_day(self, day: str, tally: Tally) -> None:
        """Bring the totals of that day up to date."""
        async for page in query_pages(self._store, shard_markers_query(day)):
            accounts = accounts_from(day, page.items)
            tally.accounts += len(accounts)
            visit = partial(self._visit, tally)
            await gather_in_groups(visit, list(_chunks(accounts)), CONCURRENCY)

    async def _visit(self, tally: Tally, accounts: dict[Account, int]) -> None:
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
        """Write the total if the shards hold more; whether that was so.

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
            report_excess(stored)
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


async def sum_shards(store: Store, account: Account) -> Counters | None:
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
