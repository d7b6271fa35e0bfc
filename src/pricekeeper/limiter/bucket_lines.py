"""One bucket in one batch: what several requests take from it together, and blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
from pricekeeper.storage import Key


class BucketStep(NamedTuple):
    """The write that takes from a bucket all that was decided."""

    step: Create | TakeOnly | Refill
    debit: Debit
    given_back: Mapping[str, int]
    """As numbers below zero."""


class BucketLine:
    """One bucket under some limits, and the tokens that a batch takes from it."""

    __slots__ = ("_available", "_bucket", "_due", "_reading_ms", "_statuses", "limits", "taken")

    def __init__(
        self,
        bucket: Bucket | None,
        limits: dict[str, Limit],
        reading_ms: int,
        owed: Debit | None = None,
    ) -> None:
        """``reading_ms`` is the time that counts for this bucket (`BucketCache.read_now`)."""
        self._bucket = bucket
        self._reading_ms = reading_ms
        self.limits = limits
        self._available = {
            name: available_units(bucket, limit, reading_ms) for name, limit in limits.items()
        }
        self._due = _due(bucket, limits, owed)
        self.taken: dict[str, int] = {}
        self._statuses: Mapping[str, LimitStatus] = {}

    def is_under(self, limits: dict[str, Limit]) -> bool:
        """Whether these are its limits."""
        return self.limits is limits or self.limits == limits

    def take(self, tokens: Mapping[str, int]) -> None:
        taken = self.taken
        for name, count in tokens.items():
            taken[name] = taken.get(name, 0) + count
        if self._statuses:
            self._statuses = {}

    def has_room(self, tokens: Mapping[str, int]) -> bool:
        limits, taken, due = self.limits, self.taken, self._due
        for name, count in tokens.items():
            beside = self.beside(name, count) if due else taken.get(name, 0)
            if (beside + count) * limits[name].units_per_token > self._available[name]:
                return False
        return True

    def beside(self, name: str, wanted: int) -> int:
        """The tokens that others take, less those given back as far as the bucket has room.

        Given-back tokens do not help a debit that is larger than the bucket.
        """
        beside, due = self.taken.get(name, 0), self._due.get(name, 0)
        limit = self.limits[name]
        if due and wanted <= limit.capacity:
            room = max(0, limit.capacity_units - self._available[name]) // limit.units_per_token
            beside -= min(-due, room)
        return beside

    def deny(self, debit: Debit) -> Denial:
        tokens = {name: self.beside(name, debit.tokens.get(name, 0)) for name in self.taken}
        for name, count in debit.tokens.items():
            tokens[name] = self.beside(name, count) + count
        beside = Debit(debit.key, self.limits, tokens)
        step = plan(self._bucket, beside, self._reading_ms)
        if not isinstance(step, Denial):
            raise LookupError("a bucket has room for a debit that was denied")  # noqa: TRY004
        return step

    def ahead(self, times: int) -> dict[str, int]:
        """So many times the tokens taken, at most half of those left."""
        ahead: dict[str, int] = {}
        for name, count in self.taken.items():
            limit = self.limits[name]
            left = self._available[name] // limit.units_per_token - count
            ahead[name] = max(0, min(count * times, left // 2))
        return ahead

    def statuses(self, now_ms: int) -> Mapping[str, LimitStatus]:
        """The state of each limit after that; ``now_ms`` is the same at each call."""
        if not self._statuses:
            self._statuses = {name: self._status(name, now_ms) for name in self.limits}
        return self._statuses

    def _status(self, name: str, now_ms: int) -> LimitStatus:
        limit, net = self.limits[name], self._net.get(name, 0)
        units = min(self._available[name] - net * limit.units_per_token, limit.capacity_units)
        holding = None if self._bucket is None else self._bucket.holdings.get(name)
        full_at_ms = now_ms + limit.filling_ms(limit.capacity_units - units)
        consumed = net + (0 if holding is None else holding.consumed)
        return LimitStatus(limit, units // limit.units_per_token, full_at_ms, consumed)

    def plan(self, key: Key) -> BucketStep:
        debit = Debit(key, self.limits, self._net)
        step = plan(self._bucket, debit, self._reading_ms)
        if isinstance(step, Denial):
            raise LookupError("more was taken than the bucket has room for")  # noqa: TRY004
        due = {name: count for name, count in self._due.items() if name in self.taken}
        return BucketStep(step, debit, due)

    @property
    def _net(self) -> dict[str, int]:
        """Only limits that tokens are taken from: another may be in debt, and deny the write."""
        return {name: count + self._due.get(name, 0) for name, count in self.taken.items()}


class Block:
    """Tokens taken ahead, to be spent from memory within a moment."""

    __slots__ = ("_left", "expires_ms", "key", "limits")

    def __init__(
        self, key: Key, limits: dict[str, Limit], tokens: dict[str, int], expires_ms: int
    ) -> None:
        self.key = key
        self.limits = limits
        self.expires_ms = expires_ms
        """On the monotonic clock of this process."""
        self._left = tokens

    def has(self, debit: Debit, now_ms: int) -> bool:
        limits = self.limits
        if now_ms >= self.expires_ms or (limits is not debit.limits and limits != debit.limits):
            return False
        left = self._left
        return all(name in left and left[name] >= count for name, count in debit.tokens.items())

    def spend(self, debit: Debit) -> None:
        for name, count in debit.tokens.items():
            self._left[name] -= count

    @property
    def rest(self) -> Debit:
        back = {name: -count for name, count in self._left.items()}
        return Debit(self.key, self.limits, back)


def scarcest(lines: Iterable[BucketLine], now_ms: int) -> dict[str, LimitStatus]:
    """The state of each limit; if several buckets have it, of the one where least is left."""
    statuses: dict[str, LimitStatus] = {}
    for line in lines:
        for name, one in line.statuses(now_ms).items():
            if name not in statuses or one.remaining < statuses[name].remaining:
                statuses[name] = one
    return statuses


def _due(bucket: Bucket | None, limits: Mapping[str, Limit], owed: Debit | None) -> dict[str, int]:
    """The tokens owed that a debit can give back: those that still count in the same unit."""
    if owed is None or bucket is None:
        return {}
    due: dict[str, int] = {}
    for name, count in owed.tokens.items():
        limit, holding = limits.get(name), bucket.holdings.get(name)
        if count < 0 and holding is not None and holding.limit == limit == owed.limits[name]:
            due[name] = count
    return due
