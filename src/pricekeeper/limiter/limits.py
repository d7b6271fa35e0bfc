"""A limit, and the unit its balance is counted in.

A balance is counted in *units*, so that nothing is rounded. One token is ``refill_period_ms``
units; each millisecond adds ``refill_amount`` units; both are divided by their common factor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self, TypeAlias

from pricekeeper.errors import InvalidValueError

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

AMOUNT_MAX: Final = 10**12
PERIOD_MS_MAX: Final = 366 * DAY_MS
FILLING_MS_MAX: Final = 10 * 366 * DAY_MS
"""A bucket that takes longer than ten years from empty to full is a mistake."""
DEBT_CAPACITIES_MAX: Final = 4
"""How far below zero a balance may go: it bounds every wait."""
HELD_CAPACITIES_MAX: Final = 1_000
"""What a lease may be adjusted to; more than that is a mistake or an attack."""
LIMITS_MAX: Final = 32
"""In one bucket: each is part of a condition, and DynamoDB bounds those."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``capacity`` at once, and ``refill_amount`` more every ``refill_period_ms``.

    The refill is continuous: half of the period brings half of the amount.
    """

    name: str
    capacity: int
    refill_amount: int
    refill_period_ms: int

    units_per_token: int = field(init=False, repr=False, compare=False)
    units_per_ms: int = field(init=False, repr=False, compare=False)
    capacity_units: int = field(init=False, repr=False, compare=False)
    debt_units_max: int = field(init=False, repr=False, compare=False)
    terms: str = field(init=False, repr=False, compare=False)
    """The three numbers as kept in an item, to see whether it was made with these."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidValueError(
                "name", "must be 1 to 32 of A-Z a-z 0-9 _ - and start with a letter"
            )
        check_whole(f"{self.name}.capacity", self.capacity, 1, AMOUNT_MAX)
        check_whole(f"{self.name}.refill_amount", self.refill_amount, 1, AMOUNT_MAX)
        check_whole(f"{self.name}.refill_period_ms", self.refill_period_ms, 1, PERIOD_MS_MAX)
        common = math.gcd(self.refill_amount, self.refill_period_ms)
        derive = object.__setattr__
        derive(self, "units_per_token", self.refill_period_ms // common)
        derive(self, "units_per_ms", self.refill_amount // common)
        derive(self, "capacity_units", self.capacity * self.units_per_token)
        derive(self, "debt_units_max", DEBT_CAPACITIES_MAX * self.capacity_units)
        derive(self, "terms", f"{self.capacity}/{self.refill_amount}/{self.refill_period_ms}")
        if self.filling_ms(self.capacity_units) > FILLING_MS_MAX:
            raise InvalidValueError(
                f"{self.name}.refill_amount", "too slow: it would take more than ten years to fill"
            )

    @classmethod
    def per_second(cls, name: str, amount: int, *, burst: int | None = None) -> Self:
        """``burst`` is the capacity, if it is not the amount."""
        return cls._per(name, amount, SECOND_MS, burst)

    @classmethod
    def per_minute(cls, name: str, amount: int, *, burst: int | None = None) -> Self:
        return cls._per(name, amount, MINUTE_MS, burst)

    @classmethod
    def per_hour(cls, name: str, amount: int, *, burst: int | None = None) -> Self:
        return cls._per(name, amount, HOUR_MS, burst)

    @classmethod
    def per_day(cls, name: str, amount: int, *, burst: int | None = None) -> Self:
        return cls._per(name, amount, DAY_MS, burst)

    @classmethod
    def _per(cls, name: str, amount: int, period_ms: int, burst: int | None) -> Self:
        return cls(name, amount if burst is None else burst, amount, period_ms)

    def filling_ms(self, units: int) -> int:
        return -(-units // self.units_per_ms)


LimitsSource: TypeAlias = Callable[[str, str], Sequence[Limit]]
"""The limits of an entity's bucket for a resource. It is asked at every acquire."""


@lru_cache(maxsize=4096)
def limit_of(name: str, terms: str) -> Limit:
    """The limit that an item was made with; the inverse of `Limit.terms`."""
    capacity, amount, period_ms = map(int, terms.split("/"))
    return Limit(name, capacity, amount, period_ms)


def by_name(limits: Iterable[Limit]) -> dict[str, Limit]:
    """The limits of one bucket; raises if two share a name, or if they are too many."""
    listed = tuple(limits)
    named = {limit.name: limit for limit in listed}
    if len(named) < len(listed):
        raise InvalidValueError("limits", "two limits of a bucket can't share a name")
    if len(named) > LIMITS_MAX:
        raise InvalidValueError("limits", f"a bucket has at most {LIMITS_MAX} limits")
    return named


def check_whole(field_name: str, value: int, least: int, most: int) -> None:
    """Raise unless it is a whole number in this range."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidValueError(field_name, f"must be a whole number from {least} to {most}")
