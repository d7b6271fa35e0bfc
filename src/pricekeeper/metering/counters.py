"""What is counted, and under which heading: values that only ever grow.

An `Account` is what one scope spent on one label on one day. `Counters` are added, never
averaged or rounded; the cost is in pico-dollars, exact, and becomes micro-dollars only where
it is shown. Because nothing is ever subtracted, one sum can be said to contain another
(`dominates`), which is what lets totals move forward only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from pricekeeper.pricing import split_micros


class Account(NamedTuple):
    """Whose spend (``ORG#...``), on which model, on which of its days."""

    scope_key: str
    label: str
    day: str


class Counters(msgspec.Struct, frozen=True):
    """How much was used. Every field is a sum of amounts that are never negative."""

    cost_usd_picos: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    errors: int = 0

    @property
    def cost_usd_micros(self) -> int:
        """The whole micro-dollars, for showing; the rest is never lost, only not shown."""
        return split_micros(self.cost_usd_picos)[0]

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.cost_usd_picos + other.cost_usd_picos,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.requests + other.requests,
            self.errors + other.errors,
        )

    def __sub__(self, other: Counters) -> Counters:
        """What is left of a sum without one of its parts."""
        return Counters(
            self.cost_usd_picos - other.cost_usd_picos,
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cache_read_tokens - other.cache_read_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.requests - other.requests,
            self.errors - other.errors,
        )

    def dominates(self, other: Counters) -> bool:
        """Whether no field is smaller than the other's."""
        return all(getattr(self, name) >= getattr(other, name) for name in COUNTER_NAMES)

    def joined(self, other: Counters) -> Counters:
        """The larger of the two in each field: of two sums of one account, neither loses."""
        larger = (max(getattr(self, name), getattr(other, name)) for name in COUNTER_NAMES)
        return Counters(*larger)


class Total(Counters, frozen=True):
    """A sum, and the moment up to which everything that was acknowledged is in it.

    What was acknowledged later may be in it as well. The moment is by the clock of whoever
    summed; 0 if nobody has yet.
    """

    as_of_ms: int = 0

    @classmethod
    def of(cls, counters: Counters, as_of_ms: int) -> Total:
        """These counters, known as of then."""
        return cls(
            counters.cost_usd_picos,
            counters.input_tokens,
            counters.output_tokens,
            counters.cache_read_tokens,
            counters.cache_write_tokens,
            counters.requests,
            counters.errors,
            as_of_ms,
        )

    @property
    def counters(self) -> Counters:
        """The sum alone."""
        return Counters(*(getattr(self, name) for name in COUNTER_NAMES))


COUNTER_NAMES: Final = Counters.__struct_fields__
NOTHING: Final = Counters()
