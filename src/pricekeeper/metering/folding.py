"""Folding: from the records of some ticks to the totals that they count in.

Per organisation, the records are read and added up by total and tick. Then each total is read and
moved forward, and put in place of the one that was read. If another run has been faster, or what
was read is older than what is stored, the records are read again.

Another program wrote a total that does not say what it is made of, perhaps in place of one of ours.
The fold sums such a total again, from every tick of its day and from its shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, gather_in_groups, in_groups
from pricekeeper.days import MS_PER_DAY, date_of, org_day
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.metering.account_list import AccountList
from pricekeeper.metering.aggregation_report import Tally, TotalChange
from pricekeeper.metering.counters import NOTHING, Account, Counters
from pricekeeper.metering.facets import Facet, Facets, SumsByFacet
from pricekeeper.metering.fold import Behind, Fold
from pricekeeper.metering.items import (
    Holds,
    day_expires_at_epoch,
    fold_from,
    fold_put,
    has_fold,
    is_own_total,
    lacks_shards,
    shards_unreadable_update,
    spent_put,
    total_so_far,
)
from pricekeeper.metering.journal import Record, shards_at_most
from pricekeeper.metering.journal_items import (
    PostedRegion,
    Repair,
    repair_delete,
    repair_from,
    repair_put,
    repairs_query,
)
from pricekeeper.metering.journal_reading import JournalReader
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.metering.shards import counter_keys, read_shard_sum, shards_marker_put
from pricekeeper.metering.tag_values import TagValues
from pricekeeper.storage import Item, Store, query_items
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.ticks import TICK_MS, tick_of

ATTEMPTS_MAX: Final = 5
ORGS_AT_ONCE: Final = 8
TOTALS_AT_ONCE: Final = 100
REPAIR_PAUSE_MS: Final = 600_000
REPAIR_PAUSE_TIMES: Final = 20
"""A day is repaired every ten minutes at most, and takes a twentieth of the time at most: whoever
repeats old records asks for it again and again."""
ACCOUNTS_MAX: Final = 50_000
"""Accounts whose shards this process has looked for; a forgotten one is looked at again."""
_ONE_DAY_TICKS: Final = tick_of(MS_PER_DAY)
Look: TypeAlias = Callable[[str, Mapping[Facet, Counters]], Awaitable[None]]
"""Looks at totals of an organisation after they were brought up to date, moved or not. If it
raises, they are looked at again by a later run."""


async def look_at_nothing(org_id: str, totals: Mapping[Facet, Counters]) -> None:
    """Nobody wants to know."""
    del org_id, totals


class FoldRunner:
    """Runs folds, which move totals forward."""

    def __init__(
        self, store: Store, clock: Clock, retention_days: int, look: Look = look_at_nothing
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._look = look
        self._reader = JournalReader(store)
        self._shards_sought: BoundedCache[Account, bool] = BoundedCache(ACCOUNTS_MAX)
        self._pauses: BoundedCache[Repair, int] = BoundedCache(ACCOUNTS_MAX)
        """Until when, on the monotonic clock, a day is not repaired again."""
        self._accounts = AccountList(store, retention_days)
        self.meter = FoldMeter()
        self._tag_values = TagValues(store, retention_days, self.meter)

    async def read_ticks(self, first: int, last: int) -> list[int]:
        """The ticks in which something was posted."""
        return await self._reader.read_ticks(first, last)

    async def fold(
        self, ticks: Sequence[int], closable: int, tally: Tally, without: Collection[str] = ()
    ) -> set[str]:
        """Bring the totals of everybody who posted in these ticks up to date.

        ``closable`` is the last tick that could be closed before this began. Returns the
        organisations whose fold failed. The caller must exclude them (``without``) from later ticks
        until their fold succeeds, because a total can't go back to an earlier tick.
        """
        postings: dict[str, list[PostedRegion]] = defaultdict(list)
        for posting in await self._reader.read_postings(ticks):
            if posting.org_id not in without:
                postings[posting.org_id].append(posting)
        fold_org = partial(self._fold_org, ticks, closable, tally)
        done = await gather_in_groups(fold_org, list(postings.values()), ORGS_AT_ONCE)
        return {org_id for org_id, is_done in zip(postings, done, strict=True) if not is_done}

    async def repair(self, closable: int, tally: Tally) -> None:
        """Sum every day anew that was put down for it."""
        async for item in query_items(self._store, repairs_query()):
            repair = repair_from(item)
            if repair is None or self._clock.monotonic_ms() < (self._pauses.peek(repair) or 0):
                continue
            began_ms = self._clock.monotonic_ms()
            try:
                await self.rebuild(repair, closable, tally)
                with contextlib.suppress(ConditionFailedError, OutcomeUnknownError):
                    await self._store.delete(repair_delete(item))
            except StoreError as error:
                tally.fail(1, error)
            ended_ms = self._clock.monotonic_ms()
            pause_ms = max(REPAIR_PAUSE_MS, (ended_ms - began_ms) * REPAIR_PAUSE_TIMES)
            self._pauses.put(repair, ended_ms + pause_ms)

    async def rebuild_day(self, day: str, org_id: str, closable: int, tally: Tally) -> int:
        """Make the totals of that day anew, of one organisation or, without an id, of everybody.

        Returns how many organisations posted something while records of that day could be.
        """
        postings = await self._read_postings(day, org_id)
        return await self._rebuild_all(postings, [day], closable, tally)

    async def rebuild_all(
        self, ticks: Sequence[int], days: Iterable[str], closable: int, tally: Tally
    ) -> None:
        """Make the totals of these days anew, of everybody who posted in these ticks."""
        postings = await self._reader.read_postings(ticks)
        await self._rebuild_all(postings, days, closable, tally)

    async def _rebuild_all(
        self, postings: Iterable[PostedRegion], days: Iterable[str], closable: int, tally: Tally
    ) -> int:
        """Make the totals of these days anew; returns how many organisations have posted there."""
        orgs = sorted({posting.org_id for posting in postings})
        for repair in [Repair(org_id, day) for org_id in orgs for day in days]:
            try:
                await self.rebuild(repair, closable, tally)
            except StoreError as error:
                tally.fail(1, error)
        return len(orgs)

    async def rebuild(self, repair: Repair, closable: int, tally: Tally) -> None:
        """Make every total of that day of an organisation anew, from all of its records.

        The totals are read first: whatever is in them is then among the records, too.
        """
        as_of_ms = self._clock.now_ms()
        facets: Collection[Facet] = await self._read_day(repair, tally)
        totals: dict[Facet, Counters] = {}
        for _ in range(ATTEMPTS_MAX):
            stored = await self._read_totals(facets)
            found = await self._read_day(repair, tally)
            left = [facet for facet in found if facet not in stored]
            for facet, item in stored.items():
                sums = found.get(facet, {})
                total = await self._put_rebuilt(facet, item, sums, closable, as_of_ms, tally)
                if total is None:
                    left.append(facet)
                else:
                    totals[facet] = total
            if not left:
                await self._look(repair.org_id, totals)
                return
            facets = list(found)
        raise ContendedError(f"the totals of {repair.org_id} on {repair.day} kept changing")

    async def _read_totals(self, facets: Collection[Facet]) -> dict[Facet, Item | None]:
        stored = await self._store.batch_get([(DAILY_TOTAL, facet.key) for facet in facets])
        return dict(zip(facets, stored, strict=True))

    async def _fold_org(
        self, ticks: Sequence[int], closable: int, tally: Tally, postings: Sequence[PostedRegion]
    ) -> bool:
        """Bring the totals of one organisation up to date.

        Returns ``True`` if no later run has to repeat these ticks.
        """
        org_id, wanted_ticks = postings[0].org_id, set(ticks)
        left: Collection[Facet] | None = None
        totals: dict[Facet, Counters] = {}

        def is_wanted(record: Record) -> bool:
            return record.entry.tick in wanted_ticks

        try:
            for _ in range(ATTEMPTS_MAX):
                as_of_ms = self._clock.now_ms()
                skipped: list[UnreadableItemError] = []
                found = await self._sum(org_id, postings, is_wanted, tally, skipped)
                wanted = found if left is None else {facet: found.get(facet, {}) for facet in left}
                if left is None:
                    tally.accounts += len(_accounts(found))
                    await self._mark_shards(found, max(posting.lanes for posting in postings))
                left = await self._bring_forward(wanted, ticks, closable, as_of_ms, tally, totals)
                if not left:
                    await self._look(org_id, totals)
                    if skipped:
                        await self._note_lacking(org_id, ticks, found)
                        tally.fail(1, skipped[0])
                    return True
            raise ContendedError(f"the totals of {org_id} kept changing")
        except StoreError as error:
            tally.fail(1, error)
            return isinstance(error, UnreadableItemError)

    async def _mark_shards(self, found: SumsByFacet, lanes: int) -> None:
        """Mark the shards that another program has written by the schema document alone.

        That is looked for when an account is first met by this process; its next total has them.
        """
        for account in _accounts(found):
            if account in self._shards_sought:
                continue
            count = shards_at_most(lanes)
            shards = await self._store.batch_get(counter_keys(account, count))
            if any(shard is not None for shard in shards):
                expires = day_expires_at_epoch(account.day, self._retention_days)
                await self._store.put(shards_marker_put(account, count, expires))
            self._shards_sought.put(account, True)  # noqa: FBT003

    async def _ask_for_repair(self, repair: Repair) -> None:
        """Have the day summed anew by a later run, when what is unreadable now is mended."""
        expires = day_expires_at_epoch(repair.day, self._retention_days)
        await self._store.put(repair_put(repair, secrets.token_hex(8), expires))

    async def _note_lacking(self, org_id: str, ticks: Sequence[int], found: SumsByFacet) -> None:
        """Say on an organisation's totals that they lack a page, and try every run to mend that.

        The page may be of any day that its ticks can be of, and of any account.
        """
        now_ms = self._clock.now_ms()
        first_ms, last_ms = ticks[0] * TICK_MS - 2 * MS_PER_DAY, ticks[-1] * TICK_MS + MS_PER_DAY
        for at_ms in (*range(first_ms, last_ms, MS_PER_DAY), last_ms):
            day = org_day("UTC", at_ms)
            await self._ask_for_repair(Repair(org_id, day))
        for account in _accounts(found):
            expires = day_expires_at_epoch(account.day, self._retention_days)
            with contextlib.suppress(ConditionFailedError):  # it says so
                await self._store.update(shards_unreadable_update(account, now_ms, expires))

    async def _sum(
        self,
        org_id: str,
        postings: Iterable[PostedRegion],
        is_wanted: Callable[[Record], bool],
        tally: Tally,
        skipped: list[UnreadableItemError] | None = None,
    ) -> SumsByFacet:
        """What the wanted records of these regions add up to, by total and tick."""
        facets, found = Facets(org_id), SumsByFacet()
        async for record in self._reader.read_records(postings, skipped):
            if is_wanted(record):
                _count(found, facets.of(record), record.entry.tick, record.entry.counters)
        return await self._tag_values.register_values(found, tally)

    async def _read_postings(self, day: str, org_id: str) -> list[PostedRegion]:
        """Where records of that day can be, of one organisation or of everybody."""
        return await self._reader.read_postings(
            await self._reader.read_ticks(*ticks_of_day(day)), org_id
        )

    async def _read_day(self, repair: Repair, tally: Tally) -> SumsByFacet:
        """Everything that was ever posted for that day, by total and tick."""
        org_id, day = repair
        postings = await self._read_postings(day, org_id)
        return await self._sum(org_id, postings, lambda one: one.terms.day == day, tally)

    async def _bring_forward(
        self,
        found: SumsByFacet,
        ticks: Sequence[int],
        closable: int,
        as_of_ms: int,
        tally: Tally,
        totals: dict[Facet, Counters],
    ) -> list[Facet]:
        """Move these totals forward; returns those for which more has to be read.

        What the others come to is put into ``totals``.
        """
        facets, left = list(found), list[Facet]()
        unmade: dict[Repair, None] = {}
        for some in in_groups(facets, TOTALS_AT_ONCE):
            puts = []
            for facet, item in (await self._read_totals(some)).items():
                if item is not None and not has_fold(item):
                    unmade[Repair(facet.org_id, facet.day)] = None
                    continue
                sums = found[facet]
                puts.append(self._move(facet, item, sums, ticks, closable, as_of_ms, tally, totals))
            left += filter(None, await asyncio.gather(*puts))
        for repair in unmade:
            try:
                await self.rebuild(repair, closable, tally)
            except UnreadableItemError as error:
                tally.fail(1, error)
                await self._ask_for_repair(repair)
        return left

    async def _move(
        self,
        facet: Facet,
        stored: Item | None,
        sums: Mapping[int, Counters],
        ticks: Sequence[int],
        closable: int,
        as_of_ms: int,
        tally: Tally,
        totals: dict[Facet, Counters],
    ) -> Facet | None:
        """Move one total forward; returns it if more has to be read for that."""
        try:
            before = fold_from(stored)
            fold = before.forward(sums, ticks[-1], closable, ticks[0])
            if fold is not None:
                await self._put(facet, fold, stored, as_of_ms, tally)
            totals[facet] = (fold or before).total
        except (Behind, ConditionFailedError, OutcomeUnknownError):
            return facet
        except UnreadableItemError as error:
            tally.fail(1, error)
            await self._ask_for_repair(Repair(facet.org_id, facet.day))
        return None

    async def _put_rebuilt(
        self,
        facet: Facet,
        stored: Item | None,
        sums: Mapping[int, Counters],
        closable: int,
        as_of_ms: int,
        tally: Tally,
    ) -> Counters | None:
        """Put a total that was made anew, and return it; ``None`` if somebody was faster."""
        if not has_fold(stored):
            await self._put_in_list(facet)
        shards = await self._read_shards(facet, stored)
        before = fold_from(stored)
        fold = before.rebuilt(sums, shards, closable)
        if fold is None and lacks_shards(stored):  # now it has everything, and is to say so
            fold = msgspec.structs.replace(before, rev=before.rev + 1)
        if fold is None:
            return before.total
        try:
            await self._put(facet, fold, stored, as_of_ms, tally, is_whole=True)
        except (ConditionFailedError, OutcomeUnknownError):
            return None
        if fold.total != before.total:
            change = TotalChange(facet.org_id, facet.pk, facet.sk, before.total, fold.total)
            tally.changes.append(change)
        return fold.total

    async def _read_shards(self, facet: Facet, stored: Item | None) -> Counters:
        """Read what another program has counted there."""
        account = facet.account
        if account is None:
            return NOTHING
        summed = await read_shard_sum(self._store, account) or NOTHING
        if stored is not None and not has_fold(stored) and not is_own_total(stored):
            return summed.joined(total_so_far(stored))
        return summed

    async def _put(
        self,
        facet: Facet,
        fold: Fold,
        stored: Item | None,
        as_of_ms: int,
        tally: Tally,
        *,
        is_whole: bool = False,
    ) -> None:
        expires = day_expires_at_epoch(facet.day, self._retention_days)
        if stored is None:
            await self._put_in_list(facet)
        else:
            as_of_ms = max(as_of_ms, total_so_far(stored).as_of_ms)
        put = fold_put(facet.key, fold, stored, as_of_ms, expires, with_shards=is_whole)
        await self._store.put(put)
        tally.written += facet.account is not None
        tally.written_at_ms = self._clock.now_ms()

    async def _put_in_list(self, facet: Facet) -> None:
        """List a total before it is written, so that nobody has to guess which there are."""
        account = facet.account
        if account is not None:
            expires = day_expires_at_epoch(facet.day, self._retention_days)
            await self._store.put(spent_put(account, expires))
        holds: Holds = "has_hours" if account is None else "has_days"
        await self._accounts.add(facet.org_id, facet.pk, facet.day, holds)


def _count(found: SumsByFacet, facets: Iterable[Facet], tick: int, counters: Counters) -> None:
    for facet in facets:
        sums = found.setdefault(facet, {})
        have = sums.get(tick)
        sums[tick] = counters if have is None else have + counters


def _accounts(found: SumsByFacet) -> list[Account]:
    return [account for facet in found if (account := facet.account) is not None]


def ticks_of_day(day: str) -> tuple[int, int]:
    """The ticks in which a record of that day can have been posted, in any zone."""
    start = tick_of((date_of(day) - date_of("19700101")).days * MS_PER_DAY)
    return start - _ONE_DAY_TICKS, start + 4 * _ONE_DAY_TICKS
