"""The four write paths of a bucket, each one operation of the store.

=============== ========================================= ======================================
operation       what it adds                              on condition that
=============== ========================================= ======================================
`create_put`    the whole item                            there is none
`refill_update` refill less what is taken, and moves `rf` `rf` is as expected, and see there
`take_update`   what is taken                             it is there, and nothing has overflowed
`adjust_update` what a lease used more or less            it counts in the same unit, and the
                                                          debt stays within its bound
=============== ========================================= ======================================

Balances change by ``ADD`` alone wherever the unit stays the same, so that no write undoes
another. If a reply is lost, the store may send the first two again, because they guard
themselves; the other two are never sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from pricekeeper.limiter.bucket import Bucket, Debit, HoldingChange, Refill, TakeOnly, stored_range
from pricekeeper.limiter.items import CONSUMED, REFILLED, STORED, TERMS, bucket_item
from pricekeeper.limiter.limits import Limit
from pricekeeper.storage import (
    ITEM_ABSENT,
    Action,
    Add,
    Condition,
    Key,
    Put,
    Remove,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.expressions import And, Attribute
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY

_REFILLED: Final = attr(REFILLED)


@lru_cache(maxsize=4096)
def _counts_by(name: str, terms: str) -> Condition:
    return attr(TERMS + name).eq(terms)


@lru_cache(maxsize=4096)
def _stored(name: str) -> Attribute:
    return attr(STORED + name)


def create_put(key: Key, bucket: Bucket) -> Put:
    """Put the bucket if it is absent."""
    return Put(RATE_BUCKETS, bucket_item(key, bucket), ITEM_ABSENT)


def refill_update(debit: Debit, plan: Refill) -> Update:
    """Add refill less consumption and move ``rf``, if no other write has moved it.

    A `TakeOnly` leaves ``rf`` unchanged. So each limit that is taken from must still hold enough
    once refilled, and one whose refill was cut at the capacity must hold what made it overflow.
    Where the terms change, the unit does, too: the balance is set, and must be the one seen.
    """
    before, after = plan.before, plan.after
    actions: list[Action] = [
        Set(REFILLED, after.refilled_at_ms),
        Add(EXPIRY, after.expires_at_epoch - before.expires_at_epoch),
    ]
    conditions = [_REFILLED.eq(before.refilled_at_ms)]
    for name, change in plan.changes.items():
        actions.extend(_changed(name, change))
        conditions.extend(_unchanged(name, change))
    return Update(RATE_BUCKETS, debit.key, tuple(actions), _all(conditions))


def take_update(debit: Debit, plan: TakeOnly) -> Update:
    """Add consumption only, if every limit holds as much and has not overflowed.

    ``rf`` does not move, so such writes do not conflict. The expiry was put off for longer than a
    bucket may go without a `Refill`.
    """
    is_known, refilled_ms = plan.refilled_ms < plan.as_of_ms, plan.refilled_ms
    conditions = [_REFILLED.eq(refilled_ms) if is_known else _REFILLED.ge(refilled_ms)]
    actions: list[Action] = []
    for name, tokens in debit.tokens.items():
        limit, stored = debit.limits[name], _stored(name)
        least, most = stored_range(limit, tokens, plan)
        conditions += (_counts_by(name, limit.terms), stored.ge(least), stored.le(most))
        actions += _take(name, limit, tokens)
    return Update(RATE_BUCKETS, debit.key, tuple(actions), _all(conditions))


def adjust_update(debit: Debit) -> Update:
    """Add the tokens used beyond the estimate, or less than it.

    The balance may go above the capacity, and below zero as far as a debt may. The unit must still
    be the one that we count in. Only the stored balance is checked, without unsettled refill: if
    the write is refused for that, the refill must be settled with it. The expiry moves by the time
    that the used tokens take to refill.
    """
    actions: list[Action] = []
    conditions: list[Condition] = []
    longest_ms = 0
    for name, tokens in debit.tokens.items():
        limit = debit.limits[name]
        units = tokens * limit.units_per_token
        longest_ms = max(longest_ms, limit.filling_ms(units))
        actions += _take(name, limit, tokens)
        conditions.append(_counts_by(name, limit.terms))
        if tokens > 0:
            conditions.append(_stored(name).ge(units - limit.debt_units_max))
    if longest_ms:
        actions.append(Add(EXPIRY, -(-longest_ms // 1000)))
    return Update(RATE_BUCKETS, debit.key, tuple(actions), _all(conditions))


def _take(name: str, limit: Limit, tokens: int) -> tuple[Action, Action]:
    return Add(STORED + name, -tokens * limit.units_per_token), Add(CONSUMED + name, tokens)


def _changed(name: str, change: HoldingChange) -> Iterator[Action]:
    before, after = change.before, change.after
    if after is None:
        yield from (Remove(TERMS + name), Remove(STORED + name), Remove(CONSUMED + name))
    elif before is None or before.limit != after.limit:
        yield Set(TERMS + name, after.limit.terms)
        yield Set(STORED + name, after.units)
        yield Add(CONSUMED + name, after.consumed - (before.consumed if before else 0))
    else:
        yield Add(STORED + name, after.units - before.units)
        yield Add(CONSUMED + name, after.consumed - before.consumed)


def _unchanged(name: str, change: HoldingChange) -> Iterator[Condition]:
    before, after = change.before, change.after
    if before is None:
        yield attr(TERMS + name).absent()
        return
    yield _counts_by(name, before.limit.terms)
    if after is None or before.limit != after.limit:
        yield _stored(name).eq(before.units)
    elif change.stored_min is not None:
        yield _stored(name).ge(change.stored_min)


def _all(conditions: Sequence[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))
