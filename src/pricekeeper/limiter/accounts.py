"""What a lease holds, and how often that may change: once per id, whatever goes wrong.

A lease that its caller did not name exists in this process only, and so does its account. Its
writes are plain ones that nobody may repeat: if the reply to one is lost, it may or may not
have been applied. Then what was being given back counts as given back, what was being taken
counts as not held, and that id is never sent again. Tokens may be lost until they refill, but
they are never taken twice and never made. A caller that needs more names the lease; see `records`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pricekeeper.errors import ConflictError, InvalidValueError, OutcomeUnknownError, StoreError
from pricekeeper.limiter.adjusting import RecordConflict, adjust_buckets
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.limits import AMOUNT_MAX, HELD_CAPACITIES_MAX

ADJUSTMENTS_MAX: Final = 100
"""Adjustments with an id of the caller's that one lease may have."""


class LeaseAccount(Protocol):
    """What one lease holds."""

    @property
    def held(self) -> Mapping[str, int]:
        """Tokens by limit."""
        ...

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, as far as the buckets can bear, or give some back; once for the same id."""
        ...

    async def release(self) -> None:
        """Give everything back, once."""
        ...


class UnnamedAccount:
    """The account of a lease without a name."""

    def __init__(
        self, cache: BucketCache, debits: Sequence[Debit], tokens: Mapping[str, int]
    ) -> None:
        self._cache = cache
        self._debits = tuple(debits)
        self._held = dict(tokens)
        self._outcomes: dict[str, tuple[dict[str, int], bool]] = {}
        """By the id that was sent: what was asked for, and whether we know that it was applied."""
        self._released = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def held(self) -> Mapping[str, int]:
        return dict(self._held)

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Take more, or give some back; sent once for the same id."""
        async with self._one_at_a_time:
            if adjustment_id is not None and adjustment_id in self._outcomes:
                asked, applied = self._outcomes[adjustment_id]
                if asked != delta:
                    raise another_adjustment()
                if applied:
                    return
                raise OutcomeUnknownError("this adjustment may or may not have been applied")
            if self._released:
                raise released_already()
            capacities = capacities_of(self._debits)
            check_delta(delta, capacities)
            check_held(delta, self._held, capacities)
            if adjustment_id is not None and len(self._outcomes) >= ADJUSTMENTS_MAX:
                raise too_many_adjustments()
            try:
                taken = await self._move(delta)
            except OutcomeUnknownError:
                self._note({name: min(0, n) for name, n in delta.items()})
                if adjustment_id is not None:
                    self._outcomes[adjustment_id] = (dict(delta), False)
                raise
            self._note(taken)
            if adjustment_id is not None:
                self._outcomes[adjustment_id] = (dict(delta), True)

    async def release(self) -> None:
        """Give everything back; sent once."""
        async with self._one_at_a_time:
            if self._released:
                return
            self._released = True
            try:
                await self._move({name: -tokens for name, tokens in self._held.items() if tokens})
            except OutcomeUnknownError:
                self._held.clear()
                raise
            except StoreError:
                self._released = False  # surely not applied: it can be tried again
                raise
            self._held.clear()

    async def _move(self, delta: Mapping[str, int]) -> Mapping[str, int]:
        """Take these tokens from the buckets of the lease; those below zero are given back.

        Returns how much was really taken.
        """
        taken = await adjust_buckets(self._cache, debits_of(self._debits, delta))
        if isinstance(taken, RecordConflict):
            raise TypeError("a lease without a name has no record that could be refused")
        return taken

    def _note(self, taken: Mapping[str, int]) -> None:
        for name, tokens in taken.items():
            self._held[name] = self._held.get(name, 0) + tokens


class EmptyAccount:
    """The account of a lease that was granted because the store did not answer. It is empty."""

    @property
    def held(self) -> Mapping[str, int]:
        return {}

    async def change(self, delta: Mapping[str, int], adjustment_id: str | None) -> None:
        """Change nothing, since no bucket was debited."""
        del delta, adjustment_id

    async def release(self) -> None:
        """Give nothing back, for that would make tokens."""


def debits_of(debits: Sequence[Debit], tokens: Mapping[str, int]) -> list[Debit]:
    """The same buckets, debited by these tokens as far as each has such a limit."""
    return [
        Debit(
            debit.entity,
            debit.resource,
            debit.limits,
            {name: count for name, count in tokens.items() if count and name in debit.limits},
        )
        for debit in debits
    ]


def capacities_of(debits: Sequence[Debit]) -> dict[str, int]:
    """By limit, the capacity of the largest bucket among these."""
    capacities: dict[str, int] = {}
    for debit in debits:
        for name, limit in debit.limits.items():
            capacities[name] = max(capacities.get(name, 0), limit.capacity)
    return capacities


def check_delta(delta: Mapping[str, int], capacities: Mapping[str, int]) -> None:
    """Raise if no lease of buckets with these limits can be adjusted by this."""
    if not delta:
        raise InvalidValueError("delta", "must name at least one limit")
    for name, tokens in delta.items():
        if name not in capacities:
            raise InvalidValueError(f"delta.{name}", "is not a limit of this lease's buckets")
        if type(tokens) is not int or not -AMOUNT_MAX <= tokens <= AMOUNT_MAX:
            raise InvalidValueError(
                f"delta.{name}", f"must be a whole number from {-AMOUNT_MAX} to {AMOUNT_MAX}"
            )


def check_held(
    delta: Mapping[str, int], held: Mapping[str, int], capacities: Mapping[str, int]
) -> None:
    """Raise if a lease that holds these tokens can't be adjusted by this."""
    for name, tokens in delta.items():
        after, most = held.get(name, 0) + tokens, HELD_CAPACITIES_MAX * capacities[name]
        if after < 0:
            raise InvalidValueError(f"delta.{name}", "gives back more than the lease holds")
        if tokens > 0 and after > most:
            raise InvalidValueError(
                f"delta.{name}",
                f"a lease can hold at most {most}, {HELD_CAPACITIES_MAX} times the capacity",
            )


def released_already() -> ConflictError:
    """The error if the lease was released, and nothing is left to adjust."""
    return ConflictError("lease_id", "the lease has been released")


def another_adjustment() -> ConflictError:
    """The error if the id was used before, with another delta."""
    return ConflictError("adjustment_id", "was used for another delta")


def too_many_adjustments() -> ConflictError:
    """The error if a lease has as many adjustments as it may have."""
    return ConflictError("lease_id", f"a lease has at most {ADJUSTMENTS_MAX} adjustments")
