"""Tokens that settlements give back to buckets, or take beyond what was reserved.

A bucket that the next transaction takes from anyway gets them with it: both are one change of one
item, and what is given back is there for whoever is decided with it. The rest is written by itself
when nobody waits any more, at the latest after `HELD_BACK_MAX` transactions.

Giving back is worth a try, no more: what is lost refills by time. So an amount is forgotten as soon
as it may have been written. It is never given back twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from pricekeeper.authorizations.authorization import TOKENS
from pricekeeper.authorizations.books import BucketKey
from pricekeeper.authorizations.commands import Settle
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.settling import Capture, Void
from pricekeeper.errors import ConditionFailedError, StoreError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.limits import limit_of
from pricekeeper.limiter.writes import adjust

HELD_BACK_MAX: Final = 8
WRITES_AT_ONCE_MAX: Final = 16


class Refunds:
    """What is to be given back to the buckets of one organisation, and was not yet."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._owed: dict[BucketKey, Debit] = {}
        self._held_back: dict[BucketKey, int] = {}
        """How many transactions have not taken it along."""

    def with_those_of(self, settlements: Iterable[Settle]) -> dict[BucketKey, Debit]:
        """All that is owed to buckets once these settlements are written."""
        owed = dict(self._owed)
        for settlement in settlements:
            for debit in tokens_beyond(settlement):
                key = (debit.entity, debit.resource)
                have = owed.get(key)
                owed[key] = debit if have is None else _sum(have, debit)
        return owed

    def note_written(
        self, owed: Mapping[BucketKey, Debit], given_back: Mapping[BucketKey, Mapping[str, int]]
    ) -> None:
        """The settlements are written, and with them that part of what was owed."""
        self._owed = _without(owed, given_back)

    def note_lost(self, given_back: Iterable[BucketKey]) -> None:
        """That part may have been written."""
        for key in given_back:
            if self._owed.pop(key, None) is not None:
                self._desk.meter.refunds_lost += 1

    async def write(self, *, others_wait: bool) -> None:
        """Write what no transaction has taken along, unless more are to come at once."""
        held_back = {key: self._held_back.get(key, 0) + 1 for key in self._owed}
        due = [key for key, times in held_back.items() if times >= HELD_BACK_MAX or not others_wait]
        self._held_back = {key: times for key, times in held_back.items() if key not in set(due)}
        owed = [(key, self._owed.pop(key)) for key in due]
        for first in range(0, len(owed), WRITES_AT_ONCE_MAX):
            some = owed[first : first + WRITES_AT_ONCE_MAX]
            await asyncio.gather(*(self._write_one(key, debit) for key, debit in some))

    async def _write_one(self, key: BucketKey, debit: Debit) -> None:
        try:
            item = await self._desk.store.update(adjust(debit))
        except ConditionFailedError as refused:
            self._desk.meter.refunds_lost += 1
            self._desk.note_bucket(key, bucket_of(refused.item))
        except StoreError:
            self._desk.meter.refunds_lost += 1
            self._desk.forget([key])
        else:
            self._desk.note_bucket(key, bucket_of(item))


def tokens_beyond(command: Settle) -> list[Debit]:
    """What a settlement takes from buckets beyond what was reserved; less than zero is given back.

    A capture settles the tokens of the call by Bedrock's own arithmetic. A void gives all back.
    """
    debits: list[Debit] = []
    grant, action = command.seen.grant, command.action
    for held in grant.terms.buckets:
        tokens: dict[str, int] = {}
        if isinstance(action, Void):
            tokens = {name: -grant.tokens[name] for name in held.terms if grant.tokens[name]}
        elif isinstance(action, Capture) and TOKENS in held.terms:
            beyond = action.bucket_tokens - grant.tokens[TOKENS]
            tokens = {TOKENS: beyond} if beyond else {}
        if tokens:
            limits = {name: limit_of(name, held.terms[name]) for name in tokens}
            debits.append(Debit(held.entity, grant.label, limits, tokens))
    return debits


def _sum(first: Debit, second: Debit) -> Debit:
    tokens = dict(first.tokens)
    for name, count in second.tokens.items():
        tokens[name] = tokens.get(name, 0) + count
    limits = {**first.limits, **second.limits}
    return Debit(first.entity, first.resource, limits, tokens)


def _without(
    owed: Mapping[BucketKey, Debit], given_back: Mapping[BucketKey, Mapping[str, int]]
) -> dict[BucketKey, Debit]:
    """What is owed beyond what was given back; a limit that got some of it is done with."""
    left: dict[BucketKey, Debit] = {}
    for key, debit in owed.items():
        done = given_back.get(key, {})
        tokens = {name: n for name, n in debit.tokens.items() if n and name not in done}
        if tokens:
            left[key] = Debit(debit.entity, debit.resource, debit.limits, tokens)
    return left
