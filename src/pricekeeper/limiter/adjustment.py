"""One write that adjusts a bucket: tokens used beyond a debit, or given back. Pure.

An adjustment is not denied, but a debt has a bound. If the stored balance alone can't bear it and
the refill since can, the write settles that refill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pricekeeper.limiter.bucket import (
    Bucket,
    Debit,
    HoldingChange,
    Refill,
    bearable,
    effective,
    new_bucket,
    plan_refill,
)
from pricekeeper.limiter.writes import adjust_update, create_put, refill_update
from pricekeeper.storage import Put, Update


class Adjustment(NamedTuple):
    """The write, if one is needed, and the tokens that it takes of each limit."""

    operation: Put | Update | None
    after: Bucket | None
    taken: dict[str, int]


def adjust(bucket: Bucket | None, debit: Debit, now_ms: int, *, is_fresh: bool) -> Adjustment:
    """Plan the write. Tokens are cut to what the bucket can bear only if it ``is_fresh``.

    A bucket that was not just read and is not known is adjusted on the terms of the debit.
    """
    if bucket is None:
        return _of_absent(debit, now_ms) if is_fresh else _blind(debit)
    limits = {name: held.limit for name, held in bucket.holdings.items()}
    # The bucket ignores limits that it no longer has.
    tokens = {name: count for name, count in debit.tokens.items() if name in limits}
    here = Debit(debit.key, limits, tokens)
    if is_fresh:
        here = here.with_tokens(_cut(here, bearable(bucket, here, now_ms)))
    taken = debit.tokens | here.tokens
    here = here.with_tokens({name: count for name, count in here.tokens.items() if count})
    if not here.tokens:
        return Adjustment(None, None, taken)
    if _needs_refill(bucket, here, now_ms):
        return Adjustment(refill_update(here, _settled(bucket, here, now_ms)), None, taken)
    return Adjustment(adjust_update(here), None, taken)


def _blind(debit: Debit) -> Adjustment:
    return Adjustment(adjust_update(debit), None, dict(debit.tokens))


def _of_absent(debit: Debit, now_ms: int) -> Adjustment:
    """An absent bucket is full: nothing can be given back to it, but it can be charged."""
    used = debit.with_tokens({name: count for name, count in debit.tokens.items() if count > 0})
    used = used.with_tokens(_cut(used, bearable(None, used, now_ms)))
    taken = debit.tokens | used.tokens
    if not used.tokens:
        return Adjustment(None, None, taken)
    after = new_bucket(used, now_ms)
    return Adjustment(create_put(debit.key, after), after, taken)


def _cut(debit: Debit, most: Mapping[str, int]) -> dict[str, int]:
    return {name: min(count, most[name]) for name, count in debit.tokens.items()}


def _needs_refill(bucket: Bucket, debit: Debit, now_ms: int) -> bool:
    """Whether the debt stays within its bound only with refill that is not settled yet."""
    some = False
    for name, count in debit.tokens.items():
        held, limit = bucket.holdings[name], debit.limits[name]
        least = count * limit.units_per_token - limit.debt_units_max
        if count > 0 and held.units < least:
            if effective(bucket, held, now_ms) < least:
                return False
            some = True
    return some


def _settled(bucket: Bucket, debit: Debit, now_ms: int) -> Refill:
    step = plan_refill(bucket, debit, now_ms)
    changes = dict(step.changes)
    for name, count in debit.tokens.items():
        before, after, least = changes[name].before, changes[name].after, changes[name].stored_min
        if before is None or after is None or least is None or least == before.units:
            continue  # an overflow was cut off: the balance must be the one seen
        least = None if count < 0 else least - after.limit.debt_units_max
        changes[name] = HoldingChange(before, after, least)
    return Refill(bucket, step.after, changes)
