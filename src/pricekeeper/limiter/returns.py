"""Adjusts buckets: gives tokens back, and charges tokens that were used without asking.

Returned tokens are *owed* until they are written: with the next debit of their bucket, by `flush`,
or after `GIVE_BACK_MS`. An amount is dropped once it may have been written, so it is never given
back twice. If the store was unavailable it stays owed, with pauses up to `GIVE_BACK_MS` <<
`DOUBLINGS_MAX`.

A charge is written before it returns, and again if its reply is lost: tokens taken twice refill.
Each bucket has at most one such write in flight; callers that come meanwhile share the next. A
crash loses owed tokens and blocks; they refill.

Bounds: `OWED_MAX` buckets are owed tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pricekeeper.concurrency import NextFlight, error_copy, gather_in_groups
from pricekeeper.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.limiter.adjustment import Adjustment, adjust
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.bucket_cache import ATTEMPTS_MAX, REPLIES_LOST_MAX, BucketCache
from pricekeeper.limiter.bucket_lines import Block
from pricekeeper.storage import Key, Put

GIVE_BACK_MS: Final = 100
DOUBLINGS_MAX: Final = 6
"""How often that is doubled while the store refuses writes."""
OWED_MAX: Final = 20_000
WRITES_AT_ONCE_MAX: Final = 16


class _Charge:
    __slots__ = ("debit", "error", "taken")

    def __init__(self, debit: Debit) -> None:
        self.debit = debit
        self.taken: Mapping[str, int] = {}
        self.error: StoreError | None = None


class Returns:
    """The tokens that this process owes to buckets, and the blocks that it holds."""

    def __init__(self, cache: BucketCache) -> None:
        self._cache = cache
        self.blocks: dict[Key, Block] = {}
        self.owed: dict[Key, Debit] = {}
        """As numbers below zero."""
        self._charges: dict[Key, list[_Charge]] = {}
        self._flights: NextFlight[Key, None] = NextFlight("pricekeeper-adjustments")
        self._writing: set[Key] = set()
        self._returning: asyncio.Task[None] | None = None
        self._refusals = 0

    def give_back(self, debits: Iterable[Debit]) -> None:
        """Give tokens back soon; tokens above zero are charged as far as the bucket bears them."""
        for debit in debits:
            if any(debit.tokens.values()):
                self._owe(debit)
        self._return_soon()

    def take_along(self, key: Key, given_back: Iterable[str]) -> None:
        owed = self.owed[key]
        for name in given_back:
            del owed.tokens[name]
        if not owed.tokens:
            del self.owed[key]

    def hold(self, block: Block) -> None:
        before = self.blocks.get(block.key)
        self.blocks[block.key] = block
        self.give_back([] if before is None else [before.rest])

    async def flush(self, keys: Iterable[Key], *, blocks: bool = False) -> set[Key]:
        """Write the tokens owed, and with ``blocks`` those in blocks; returns the buckets owed."""
        owing = []
        for key in keys:
            block = self.blocks.pop(key, None) if blocks else None
            if block is not None and any(block.rest.tokens.values()):
                self._owe(block.rest)
            if key in self.owed:
                owing.append(key)
        await gather_in_groups(self._write_next, owing, WRITES_AT_ONCE_MAX)
        return set(owing)

    async def charge(self, debits: Collection[Debit]) -> dict[str, int]:
        """Charge tokens that were used already, the same from each of these buckets.

        Returns the tokens taken: as many as every bucket can bear. If a write fails, the tokens
        taken from the others are given back.
        """
        charges = [_Charge(debit) for debit in debits]
        for one in charges:
            self._charges.setdefault(one.debit.key, []).append(one)
        await gather_in_groups(
            self._write_next, [one.debit.key for one in charges], WRITES_AT_ONCE_MAX
        )
        error = next((one.error for one in charges if one.error is not None), None)
        taken: dict[str, int] = {}
        for one in charges:
            for name, count in one.taken.items():
                taken[name] = 0 if error else min(count, taken.get(name, count))
        self.give_back(
            one.debit.with_tokens({name: taken[name] - n for name, n in one.taken.items()})
            for one in charges
        )
        if error is not None:
            raise error
        return taken

    async def close(self) -> None:
        """As far as the store takes them."""
        await self._stop_returning()
        await self.flush({**self.blocks, **self.owed}, blocks=True)
        for key in tuple(self._writing):
            await self._write_next(key)
        await self._stop_returning()

    def _owe(self, debit: Debit) -> None:
        key = debit.key
        owed = self.owed.get(key)
        if owed is None:
            if len(self.owed) >= OWED_MAX:
                self._cache.meter.refunds_lost += 1
                return
            owed = self.owed[key] = Debit(key, dict(debit.limits), {})
        for name, count in debit.tokens.items():
            owed.limits[name] = debit.limits[name]
            owed.tokens[name] = owed.tokens.get(name, 0) + count

    async def _write_next(self, key: Key) -> None:
        await self._flights.run(key, lambda: self._write(key))

    async def _write(self, key: Key) -> None:
        self._writing.add(key)
        try:
            charges = self._charges.pop(key, None)
            if charges:
                await self._write_charges(charges)
            owed = self.owed.pop(key, None)
            if owed is not None and any(owed.tokens.values()):
                await self._write_owed(owed)
        finally:
            self._writing.discard(key)

    async def _write_charges(self, charges: list[_Charge]) -> None:
        total = Debit(charges[0].debit.key, {}, {})
        for one in charges:
            total.limits.update(one.debit.limits)
            for name, count in one.debit.tokens.items():
                total.tokens[name] = total.tokens.get(name, 0) + count
        try:
            left = await self._adjust(total, again=True)
        except StoreError as error:
            for one in charges:
                one.error = error_copy(error)
            return
        for one in charges:  # the first ones first, if the bucket can't bear all
            one.taken = {name: min(count, left[name]) for name, count in one.debit.tokens.items()}
            for name, count in one.taken.items():
                left[name] -= count

    async def _write_owed(self, owed: Debit) -> None:
        try:
            await self._adjust(owed, again=False)
        except StoreUnavailableError:
            self._refusals += 1
            self._owe(owed)
            self._return_soon()
        except StoreError:
            self._cache.meter.refunds_lost += 1
            self._cache.remember(owed.key, None)
        else:
            self._refusals = 0

    async def _adjust(self, debit: Debit, *, again: bool) -> dict[str, int]:
        """Write an adjustment, ``again`` if its reply is lost; returns the tokens taken."""
        cache, key, is_fresh, lost = self._cache, debit.key, False, 0
        for attempt in range(ATTEMPTS_MAX):
            await cache.pause(attempt)
            bucket, reading_ms = cache.read_now(key, cache.clock.now_ms())
            planned = adjust(bucket, debit, reading_ms, is_fresh=is_fresh)
            try:
                await self._apply(key, planned)
            except ConditionFailedError as refused:
                cache.note(key, refused.item)
                cache.meter.lost_races += is_fresh
                is_fresh = True
            except OutcomeUnknownError:
                cache.remember(key, None)
                is_fresh, lost = False, lost + 1
                if not again or lost == REPLIES_LOST_MAX:
                    raise
                cache.meter.debits_lost += 1
            else:
                cache.meter.debts_cut += planned.taken != debit.tokens
                return planned.taken
        raise cache.contended(key)

    async def _apply(self, key: Key, planned: Adjustment) -> None:
        operation = planned.operation
        if isinstance(operation, Put):
            await self._cache.store.put(operation)
            self._cache.remember(key, planned.after)
        elif operation is not None:
            self._cache.note(key, await self._cache.store.update(operation))

    def _return_soon(self) -> None:
        if self._returning is None and (self.owed or self.blocks):
            self._returning = asyncio.create_task(self._return_later(), name="pricekeeper-refunds")

    async def _return_later(self) -> None:
        clock = self._cache.clock
        try:
            while self.owed or self.blocks:
                await clock.sleep_ms(GIVE_BACK_MS << min(self._refusals, DOUBLINGS_MAX))
                now_ms = clock.monotonic_ms()
                expired = [key for key, one in self.blocks.items() if now_ms >= one.expires_ms]
                await self.flush(expired, blocks=True)
                await self.flush([key for key in self.owed if key not in self.blocks])
        finally:
            self._returning = None

    async def _stop_returning(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])


def negated(debits: Iterable[Debit]) -> list[Debit]:
    """The debits that give these back."""
    return [one.with_tokens({name: -count for name, count in one.tokens.items()}) for one in debits]
