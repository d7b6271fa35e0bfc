"""Accounts and their counters.

Counters are only added, never rounded. The cost is exact, in pico-dollars, and becomes
micro-dollars only where it is shown.

A correction subtracts a record from the amounts and adds it to ``voided``. So ``voided``, and the
amounts plus ``voided``, only grow. `dominates` can tell whether one sum contains another, so totals
move forward only.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, ge, sub
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from pricekeeper.pricing import PICOS_PER_MICRO


class Account(NamedTuple):
    """A scope (``ORG#...``), a model label, and one of the scope's days."""

    scope_key: str
    label: str
    day: str

    @property
    def org_id(self) -> str:
        return self.scope_key.split("#", 2)[1]

    @property
    def partition(self) -> str:
        return f"{self.scope_key}#LABEL#{self.label}"


class Counters(msgspec.Struct, frozen=True):
    """How much was used, without voided records."""

    cost_usd_picos: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    errors: int = 0
    voided: Counters | UnsetType = UNSET

    @classmethod
    def of_amounts(cls, amounts: Iterable[int]) -> Counters:
        cost, tokens_in, tokens_out, cache_reads, cache_writes, requests, errors = amounts
        return Counters(cost, tokens_in, tokens_out, cache_reads, cache_writes, requests, errors)

    @property
    def amounts(self) -> list[int]:
        return list(_amounts(self))

    @property
    def cost_usd_micros(self) -> int:
        return self.cost_usd_picos // PICOS_PER_MICRO

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
        left = Counters(*map(sub, _amounts(self), _amounts(other)))
        if self.voided is UNSET and other.voided is UNSET:
            return left
        voided = _unless_nothing(self.known_voided - other.known_voided)
        return msgspec.structs.replace(left, voided=voided)

    @property
    def known_voided(self) -> Counters:
        return NOTHING if self.voided is UNSET else self.voided

    @property
    def with_voided(self) -> Counters:
        return self.alone if self.voided is UNSET else self.alone + self.voided

    @property
    def alone(self) -> Counters:
        return Counters(*_amounts(self))

    def dominates(self, other: Counters) -> bool:
        if self.voided is UNSET and other.voided is UNSET:
            return all(map(ge, _amounts(self), _amounts(other)))
        counted = self.with_voided.dominates(other.with_voided)
        return counted and self.known_voided.dominates(other.known_voided)

    def joined(self, other: Counters) -> Counters:
        """The larger amount of each field, so neither sum loses anything."""
        if self.voided is UNSET and other.voided is UNSET:
            return Counters.of_amounts(map(max, _amounts(self), _amounts(other)))
        voided = self.known_voided.joined(other.known_voided)
        return self.with_voided.joined(other.with_voided).less_voided(voided)

    def less_voided(self, voided: Counters) -> Counters:
        return msgspec.structs.replace(self - voided, voided=_unless_nothing(voided))


class Total(Counters, frozen=True):
    """A sum, and up to when it has all that was acknowledged, by the summing process's clock."""

    as_of_ms: int = 0

    @classmethod
    def of(cls, counters: Counters, as_of_ms: int) -> Total:
        fields = (*_amounts(counters), UNSET, as_of_ms)
        return cls(*fields)

    @property
    def counters(self) -> Counters:
        return self.alone


def _unless_nothing(voided: Counters) -> Counters | UnsetType:
    return UNSET if voided == NOTHING else voided


COUNTER_NAMES: Final = tuple(name for name in Counters.__struct_fields__ if name != "voided")
NOTHING: Final = Counters()
_amounts: Final = attrgetter(*COUNTER_NAMES)
