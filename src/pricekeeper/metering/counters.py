"""What is counted, and under which heading.

An `Account` is what one scope spent on one label on one day. `Counters` are added, never
averaged or rounded; the cost is in pico-dollars, exact, and becomes micro-dollars only where
it is shown.

A correction takes a record out of the amounts and adds it to what was ``voided``. So two things
only ever grow: what was voided, and the amounts together with that. One sum can therefore be said
to contain another (`dominates`), which is what lets totals move forward only.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, ge
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from pricekeeper.pricing import split_micros


class Account(NamedTuple):
    """Whose spend (``ORG#...``), on which model, on which of its days."""

    scope_key: str
    label: str
    day: str

    @property
    def org_id(self) -> str:
        """The organisation that the scope belongs to."""
        return self.scope_key.split("#", 2)[1]

    @property
    def partition(self) -> str:
        """Where the totals of its scope and label are, whatever the day."""
        return f"{self.scope_key}#LABEL#{self.label}"


class Counters(msgspec.Struct, frozen=True):
    """How much was used, without what was voided."""

    cost_usd_picos: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    errors: int = 0
    voided: Counters | UnsetType = UNSET
    """What corrections have taken out, if there were any."""

    @classmethod
    def of_amounts(cls, amounts: Iterable[int]) -> Counters:
        """The amounts in the order of `COUNTER_NAMES`, of which nothing was voided."""
        cost, tokens_in, tokens_out, cache_reads, cache_writes, requests, errors = amounts
        return Counters(cost, tokens_in, tokens_out, cache_reads, cache_writes, requests, errors)

    @property
    def amounts(self) -> list[int]:
        """The amounts in the order of `COUNTER_NAMES`."""
        return list(_amounts(self))

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
            other.voided if self.voided is UNSET else self.voided + other.known_voided,
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
            self.voided
            if other.voided is UNSET
            else _unless_nothing(self.known_voided - other.voided),
        )

    @property
    def known_voided(self) -> Counters:
        """What corrections have taken out, which may be nothing."""
        return NOTHING if self.voided is UNSET else self.voided

    @property
    def with_voided(self) -> Counters:
        """What was used together with what was voided of it."""
        return self.alone if self.voided is UNSET else self.alone + self.voided

    @property
    def alone(self) -> Counters:
        """The amounts, without saying what was voided."""
        return Counters(
            self.cost_usd_picos,
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.requests,
            self.errors,
        )

    def dominates(self, other: Counters) -> bool:
        """Whether everything that the other has counted or voided is counted or voided here."""
        if self.voided is UNSET and other.voided is UNSET:
            return all(map(ge, _amounts(self), _amounts(other)))
        counted = self.with_voided.dominates(other.with_voided)
        return counted and self.known_voided.dominates(other.known_voided)

    def joined(self, other: Counters) -> Counters:
        """The larger of the two in each field: of two sums of one account, neither loses."""
        if self.voided is UNSET and other.voided is UNSET:
            return Counters.of_amounts(map(max, _amounts(self), _amounts(other)))
        voided = self.known_voided.joined(other.known_voided)
        return self.with_voided.joined(other.with_voided).less_voided(voided)

    def less_voided(self, voided: Counters) -> Counters:
        """What is left of it, if that much of it was voided."""
        return msgspec.structs.replace(self - voided, voided=_unless_nothing(voided))


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
            as_of_ms=as_of_ms,
        )

    @property
    def counters(self) -> Counters:
        """The sum alone."""
        return self.alone


def _unless_nothing(voided: Counters) -> Counters | UnsetType:
    return UNSET if voided == NOTHING else voided


COUNTER_NAMES: Final = tuple(name for name in Counters.__struct_fields__ if name != "voided")
NOTHING: Final = Counters()
_amounts: Final = attrgetter(*COUNTER_NAMES)
