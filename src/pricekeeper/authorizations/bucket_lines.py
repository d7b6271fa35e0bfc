"""One bucket under some limits, and what several calls take from it together. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    LimitStatus,
    Refill,
    TakeOnly,
    available_units,
    plan,
)
from pricekeeper.limiter.limits import Limit

BucketKey: TypeAlias = tuple[str, str]


class BucketStep(NamedTuple):
    """The write that takes from a bucket all that was decided."""

    step: Create | TakeOnly | Refill
    debit: Debit
    """What is taken, less what is given back with it."""
    given_back: Mapping[str, int]
    """What of it the step gives back: tokens below zero."""


class BucketLine:
    """One bucket under some limits, and what is taken from it."""

    __slots__ = ("_available", "_bucket", "_due", "_reading_ms", "_statuses", "limits", "taken")

    def __init__(
        self, bucket: Bucket | None, limits: dict[str, Limit], now_ms: int, owed: Debit | None
    ) -> None:
        self._bucket = bucket
        # The time that counts for a bucket is never before it was last refilled.
        self._reading_ms = now_ms if bucket is None else max(now_ms, bucket.refilled_at_ms)
        self.limits = limits
        self._available = {
            name: available_units(bucket, limit, self._reading_ms) for name, limit in limits.items()
        }
        self._due = _due(bucket, limits, owed)
        self.taken: dict[str, int] = {}
        self._statuses: dict[str, LimitStatus] = {}
        """Made once for all calls that are answered together."""

    def take(self, tokens: Mapping[str, int]) -> None:
        """Take tokens, for which there is room."""
        taken = self.taken
        for name, count in tokens.items():
            taken[name] = taken.get(name, 0) + count
        if self._statuses:
            self._statuses = {}

    def has_room(self, tokens: Mapping[str, int]) -> bool:
        """Whether so many are there, beside all that was decided."""
        limits, taken, due = self.limits, self.taken, self._due
        for name, count in tokens.items():
            beside = self.beside(name, count) if due else taken.get(name, 0)
            if (beside + count) * limits[name].units_per_token > self._available[name]:
                return False
        return True

    def beside(self, name: str, wanted: int) -> int:
        """What is taken by others, less what is given back.

        That comes first, and counts as far as the bucket has room for it. It is of no use for a
        debit that is larger than the bucket.
        """
        beside, due = self.taken.get(name, 0), self._due.get(name, 0)
        limit = self.limits[name]
        if due and wanted <= limit.capacity:
            room = max(0, limit.capacity_units - self._available[name]) // limit.units_per_token
            beside -= min(-due, room)
        return beside

    def deny(self, debit: Debit) -> Denial:
        """What the bucket has too little of."""
        tokens = {name: self.beside(name, debit.tokens.get(name, 0)) for name in self.taken}
        for name, count in debit.tokens.items():
            tokens[name] = self.beside(name, count) + count
        beside = Debit(debit.entity, debit.resource, self.limits, tokens)
        step = plan(self._bucket, beside, self._reading_ms)
        if not isinstance(step, Denial):
            raise LookupError("a bucket has room for what it has no room for")  # noqa: TRY004
        return step

    def ahead(self, times: int) -> dict[str, int]:
        """What can be taken beyond what was decided, for as many calls again so many times.

        It is at most half of what the bucket has left.
        """
        ahead: dict[str, int] = {}
        for name, count in self.taken.items():
            limit = self.limits[name]
            left = self._available[name] // limit.units_per_token - count
            ahead[name] = max(0, min(count * times, left // 2))
        return ahead

    def status(self, name: str, now_ms: int) -> LimitStatus:
        """The state of a limit with all that was decided; ``now_ms`` is the same each time."""
        status = self._statuses.get(name)
        if status is None:
            status = self._statuses[name] = self._status(name, now_ms)
        return status

    def _status(self, name: str, now_ms: int) -> LimitStatus:
        limit, net = self.limits[name], self.taken.get(name, 0) + self._due.get(name, 0)
        units = min(self._available[name] - net * limit.units_per_token, limit.capacity_units)
        holding = None if self._bucket is None else self._bucket.holdings.get(name)
        full_at_ms = now_ms + limit.filling_ms(limit.capacity_units - units)
        consumed = net + (0 if holding is None else holding.consumed)
        return LimitStatus(limit, units // limit.units_per_token, full_at_ms, consumed)

    def plan(self, key: BucketKey) -> BucketStep:
        """The write that takes all of it, and gives back with it what is owed."""
        net = dict(self.taken)
        for name, count in self._due.items():
            net[name] = net.get(name, 0) + count
        debit = Debit(*key, self.limits, net)
        step = plan(self._bucket, debit, self._reading_ms)
        if isinstance(step, Denial):
            raise LookupError("nobody looked whether they are there")  # noqa: TRY004
        return BucketStep(step, debit, self._due)


class Block:
    """Tokens that were taken ahead, and are spent from memory for a moment."""

    __slots__ = ("_left", "expires_ms", "key", "limits")

    def __init__(
        self, key: BucketKey, limits: dict[str, Limit], tokens: dict[str, int], expires_ms: int
    ) -> None:
        self.key = key
        self.limits = limits
        self.expires_ms = expires_ms
        """By the monotonic clock."""
        self._left = tokens

    def has(self, debit: Debit, now_ms: int) -> bool:
        """Whether it has as many, under the same limits."""
        if now_ms >= self.expires_ms or self.limits != debit.limits:
            return False
        return all(self._left.get(name, 0) >= count for name, count in debit.tokens.items())

    def spend(self, debit: Debit) -> None:
        """Take tokens that it has."""
        for name, count in debit.tokens.items():
            self._left[name] -= count

    @property
    def rest(self) -> Debit:
        """What gives back what is left of it."""
        return Debit(*self.key, self.limits, {name: -count for name, count in self._left.items()})


def _due(bucket: Bucket | None, limits: Mapping[str, Limit], owed: Debit | None) -> dict[str, int]:
    """What is owed to the bucket and can be given back with a debit: tokens below zero.

    It must count in the same unit, then and now.
    """
    if owed is None or bucket is None:
        return {}
    due: dict[str, int] = {}
    for name, count in owed.tokens.items():
        limit, holding = limits.get(name), bucket.holdings.get(name)
        if count < 0 and holding is not None and holding.limit == limit == owed.limits[name]:
            due[name] = count
    return due
