"""The aggregator: sums the shards of every active account and writes the totals, forward only.

A run visits every account that may have changed since the last complete run began, which the
checkpoint remembers. So it does not matter which process ran, how many do, or whether none did for
a week: nothing is stranded, and nothing is visited for ever.

Shards are read consistently but one after another, so two runs at the same time can each see
something the other does not. A total is written only if no number in it goes back
(`total_put`); whoever fails at that reads the shards again. A read that begins after both have
ended contains both, so this settles.

A lost reply to such a write needs no care: late or twice, it can take nothing back.

An account that can't be read is reported and left aside; the others go on, and the run is complete
without it. If one of its shards can't be read, its total says so from then on. If its total can't
be read, it is left as it is: readers sum the shards, and once somebody has removed the item, the
next run writes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.days import MS_PER_DAY, day_of
from pricekeeper.metering.items import (
    CHECKPOINT,
    RETENTION_DAYS,
    accounts_from,
    awaited_from,
    awaited_update,
    checkpoint_from,
    checkpoint_put,
    checkpoint_update,
    counter_places,
    counters_from,
    day_expires_at_epoch,
    is_own_total,
    lacks_shards,
    markers_query,
    report_excess,
    shards_unreadable_update,
    total_place,
    total_put,
    total_so_far,
)
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.storage import Item, Key, Store, Table

INTERVAL_MS: Final = 60_000
JITTER_PCT: Final = 10
ATTEMPTS_MAX: Final = 5
CONCURRENCY: Final = 8
READ_KEYS_MAX: Final = 100

_HOUR_MS: Final = 3_600_000
_ZONE_WESTERNMOST_MS: Final = 12 * _HOUR_MS
_ZONE_EASTERNMOST_MS: Final = 14 * _HOUR_MS
_MARGIN_MS: Final = _HOUR_MS
"""For clocks that disagree, and for a record that was accepted but takes its time to commit."""


@dataclass(frozen=True, slots=True)
class AggregationReport:
    """What a run did. It was complete if nothing ``failed``."""

    began_at_ms: int
    days: int = 0
    accounts: int = 0
    """Scope, label and day: what has a total of its own."""
    written: int = 0
    failed: int = 0
    unreadable: int = 0
    """Accounts that can't be read. They concern nobody else: the run is complete without them."""
    errors: tuple[str, ...] = ()
    """The first few different ones."""
    lag_ms: int | None = 0
    """No change was older than that when it got into its total; 0 if there was none to find.

    ``None`` if nobody knows, because there was no complete run before."""
    since_last_ms: int | None = None
    """From the beginning of the last complete run, by anybody, to that of this one."""
    skipped: bool = False
    """Another instance had run a moment ago."""


def days_open(since_ms: int, now_ms: int) -> Iterator[str]:
    """The days, in any zone, on which something may have been counted between these moments."""
    first_ms = since_ms - LATE_MS_MAX - _ZONE_WESTERNMOST_MS - _MARGIN_MS
    last_ms = now_ms + AHEAD_MS_MAX + _ZONE_EASTERNMOST_MS + _MARGIN_MS
    for number in range(first_ms // MS_PER_DAY, last_ms // MS_PER_DAY + 1):
        yield day_of((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=number)).date())


@dataclass(slots=True)
class _Tally:
    """What a run has done so far."""

    accounts: int = 0
    written: int = 0
    failed: int = 0
    unreadable: int = 0
    errors: dict[str, None] = field(default_factory=dict)
    written_at_ms: int = 0

    def fail(self, accounts: int, error: StoreError) -> None:
        if isinstance(error, UnreadableItemError):
            self.unreadable += accounts
        else:
            self.failed += accounts
        if len(self.errors) < ATTEMPTS_MAX:
            self.errors[f"{type(error).__name__}: {error}"] = None


class Aggregator:
    """Brings the totals up to date, once or for as long as it is let."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        retention_days: int = RETENTION_DAYS,
        randomness: random.Random | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_days = retention_days
        self._random = randomness or random.Random()  # noqa: S311  # spreads runs, no secret

    async def run_forever(
        self,
        interval_ms: int = INTERVAL_MS,
        observe: Callable[[AggregationReport], None] = lambda _: None,
    ) -> None:
        """Run at every interval, give or take a tenth, until cancelled.

        However many instances do this, one run in an interval is enough: whoever finds that
        another began less than half an interval ago leaves it at that.
        """
        while True:
            spread_ms = interval_ms * JITTER_PCT // 100
            await self._clock.sleep_ms(interval_ms + self._random.randint(-spread_ms, spread_ms))
            began_ms = self._clock.now_ms()
            try:
                report = await self.run_once(unless_run_within_ms=interval_ms // 2)
            except StoreError as error:  # told to whoever observes; the next interval tries again
                told = (f"{type(error).__name__}: {error}",)
                report = AggregationReport(began_ms, failed=1, errors=told)
            observe(report)

    async def run_once(self, *, unless_run_within_ms: int = 0) -> AggregationReport:
        """Bring every total up to date that may not be.

        An account that can't be read or written is reported and tried again by the next run;
        it keeps the others from nothing. Raises only if the accounts can't be found at all.
        """
        began_ms = self._clock.now_ms()
        last_ms = checkpoint_from(await self._store.get(*CHECKPOINT))
        since_last_ms = None if last_ms is None else began_ms - last_ms
        if since_last_ms is not None and 0 <= since_last_ms < unless_run_within_ms:
            return AggregationReport(began_ms, since_last_ms=since_last_ms, skipped=True)
        oldest_ms = began_ms - self._retention_days * MS_PER_DAY
        since_ms = max(oldest_ms, min(began_ms, oldest_ms if last_ms is None else last_ms))
        tally = _Tally()
        days = list(days_open(since_ms, began_ms))
        for day in days:
            await self._visit_day(day, tally)
        if not tally.failed:
            await self._advance_checkpoint(began_ms, is_lost=last_ms is None)
        lag_ms = None if last_ms is None else tally.written_at_ms - since_ms
        return AggregationReport(
            began_at_ms=began_ms,
            days=len(days),
            accounts=tally.accounts,
            written=tally.written,
            failed=tally.failed,
            unreadable=tally.unreadable,
            errors=tuple(tally.errors),
            lag_ms=lag_ms if tally.written else 0,
            since_last_ms=since_last_ms,
        )

    async def caught_up_at_ms(self) -> int:
        """The moment up to which everything that was counted is in the totals: at most two calls.

        If no run has ever been complete, it is the moment at which that was first asked on this
        store: nobody was told of a total before.
        """
        last_ms = checkpoint_from(await self._store.get(*CHECKPOINT))
        if last_ms is not None:
            return last_ms
        try:
            waiting = await self._store.update(awaited_update(self._clock.now_ms()))
        except ConditionFailedError as known:
            waiting = dict(known.item or {})
        return awaited_from(waiting)

    async def _visit_day(self, day: str, tally: _Tally) -> None:
        after = ""
        while True:  # ends with the partition: every page begins behind the one before
            page = await self._store.query(markers_query(day, after=after))
            accounts = accounts_from(day, page.items)
            tally.accounts += len(accounts)
            chunks = list(_chunks(accounts))
            for place in range(0, len(chunks), CONCURRENCY):
                at_once = chunks[place : place + CONCURRENCY]
                await asyncio.gather(*(self._visit(chunk, tally) for chunk in at_once))
            after = page.after
            if not after:
                return

    async def _visit(self, accounts: dict[Account, int], tally: _Tally) -> None:
        """Bring some totals up to date, from one read of all their shards."""
        as_of_ms = self._clock.now_ms()
        try:
            found = iter(await self._store.batch_get(_places(accounts)))
        except StoreError as error:
            tally.fail(len(accounts), error)
            return
        for account, count in accounts.items():
            items = [next(found) for _ in range(count + 1)]
            try:
                if await self._bring_forward(account, count, items, as_of_ms):
                    tally.written += 1
                    tally.written_at_ms = self._clock.now_ms()
            except StoreError as error:
                tally.fail(1, error)

    async def _bring_forward(
        self, account: Account, count: int, items: list[Item | None], as_of_ms: int
    ) -> bool:
        """Write the total if the shards hold more; whether that was so.

        ``items`` are the total and the shards as they were read.
        """
        expires = day_expires_at_epoch(account.day, self._retention_days)
        for _ in range(ATTEMPTS_MAX):
            stored, *shards = items
            summed = await self._sum(account, stored, shards)
            current = total_so_far(stored)
            if stored is not None and not is_own_total(stored) and not summed.dominates(current):
                report_excess(stored)
            up_to_date = current.dominates(summed) and not lacks_shards(stored)
            if up_to_date and (stored is None or is_own_total(stored)):
                return False
            total = Total.of(current.joined(summed), max(as_of_ms, current.as_of_ms))
            try:
                await self._store.put(total_put(account, total, expires))
            except (ConditionFailedError, OutcomeUnknownError):
                as_of_ms = self._clock.now_ms()
                items = await self._store.batch_get(_places({account: count}))
            else:
                return True
        raise ContendedError(f"the total of {account.scope_key} {account.label} kept changing")

    async def _sum(
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

    async def _advance_checkpoint(self, began_ms: int, *, is_lost: bool) -> None:
        """Remember the run. ``is_lost``: there was no checkpoint that could be read."""
        try:
            await self._store.update(checkpoint_update(began_ms))
        except ConditionFailedError as refusal:
            # A later run is remembered, unless nobody can tell which.
            if is_lost and checkpoint_from(refusal.item) is None:
                with contextlib.suppress(OutcomeUnknownError):
                    await self._store.put(checkpoint_put(began_ms))
        except OutcomeUnknownError:
            pass  # this run may not be remembered, and the next one does it over


def _places(accounts: dict[Account, int]) -> list[tuple[Table, Key]]:
    """For each account its total, then its shards."""
    return [
        place
        for account, count in accounts.items()
        for place in (total_place(account), *counter_places(account, count))
    ]


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
