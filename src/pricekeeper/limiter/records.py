"""The record of a lease, and how changes alter it. Pure.

Each step can be repeated, at any instance, until it gets an answer: the record is written, marked
or closed on condition that this has not happened yet. A record that is never closed expires, and
its tokens are not given back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pricekeeper.errors import ConflictError, InvalidValueError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.items import ADJUSTMENTS, HELD, RELEASED, LeaseRecord, lease_item
from pricekeeper.limiter.limits import AMOUNT_MAX, HELD_CAPACITIES_MAX, check_whole
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Action,
    Add,
    Condition,
    Put,
    Set,
    Update,
    attr,
)
from pricekeeper.storage.tables import RATE_BUCKETS

LEASE_TTL_SECS: Final = 24 * 3600
"""How long a lease can be adjusted and released, and its name can't be granted again."""
ADJUSTMENTS_MAX: Final = 100
"""With an id of the caller's, of one lease."""


def mark_of(change_id: str, delta: Mapping[str, int], nonce: str) -> str:
    """An adjustment as the record keeps it: its id, a digest of its delta, and a nonce.

    The nonce tells the call that applied it from another one that repeats it.
    """
    encoded = msgspec.json.encode(sorted(delta.items()))
    return f"{change_id}/{hashlib.sha256(encoded).hexdigest()[:16]}/{nonce}"


def known_mark(record: LeaseRecord, mark: str) -> str | None:
    """The mark of this adjustment if it was applied; raises if its id had another delta."""
    change_id, digest, _ = mark.split("/")
    for known in record.adjustments:
        if known.startswith(change_id):
            if known.split("/")[1] != digest:
                raise ConflictError("adjustment_id", "was used for another delta")
            return known
    return None


def check_change(record: LeaseRecord, delta: Mapping[str, int]) -> None:
    """Raise if this lease can't be adjusted by that."""
    if record.released:
        raise released_already()
    if not delta:
        raise InvalidValueError("delta", "must name at least one limit")
    if len(record.adjustments) >= ADJUSTMENTS_MAX:
        raise ConflictError("lease_id", f"a lease has at most {ADJUSTMENTS_MAX} adjustments")
    capacities = _capacities_of(record.debits({}))
    for name, tokens in delta.items():
        if name not in capacities:
            raise InvalidValueError(f"delta.{name}", "is not a limit of this lease's buckets")
        check_whole(f"delta.{name}", tokens, -AMOUNT_MAX, AMOUNT_MAX)
        after, most = record.held.get(name, 0) + tokens, HELD_CAPACITIES_MAX * capacities[name]
        if after < 0:
            raise InvalidValueError(f"delta.{name}", "gives back more than the lease holds")
        if tokens > 0 and after > most:
            message = f"a lease can hold at most {most}, {HELD_CAPACITIES_MAX} times the capacity"
            raise InvalidValueError(f"delta.{name}", message)


def adjusted_record(record: LeaseRecord, taken: Mapping[str, int], mark: str) -> LeaseRecord:
    """The record after an adjustment of which so much was taken."""
    held = {name: record.held.get(name, 0) + tokens for name, tokens in taken.items()}
    return msgspec.structs.replace(
        record, held=record.held | held, adjustments=record.adjustments | {mark}
    )


def released_record(record: LeaseRecord, nonce: str) -> LeaseRecord:
    """The record after a release; the tokens that it held stay readable."""
    return msgspec.structs.replace(record, released=nonce)


def newer_record(one: LeaseRecord, other: LeaseRecord) -> LeaseRecord:
    """The later of two views of one lease: adjustments are never removed."""
    if one.released or other.released:
        return one if one.released else other
    return one if len(one.adjustments) >= len(other.adjustments) else other


def grant_put(record: LeaseRecord) -> Put:
    """The write that records a lease, if there is none."""
    return Put(RATE_BUCKETS, lease_item(record), ITEM_ABSENT)


def record_update(before: LeaseRecord, after: LeaseRecord) -> Update:
    """The write that makes ``after`` of ``before``, if it is open and was not adjusted since."""
    actions: list[Action] = []
    if marks := after.adjustments - before.adjustments:
        actions.append(Add(ADJUSTMENTS, marks))
    for name, tokens in after.held.items():
        if change := tokens - before.held.get(name, 0):
            actions.append(Add(HELD + name, change))
    if after.released:
        actions.append(Set(RELEASED, after.released))
    return Update(RATE_BUCKETS, before.key, tuple(actions), _unchanged(before))


def _unchanged(record: LeaseRecord) -> Condition:
    seen = attr(ADJUSTMENTS)
    same = seen.eq(record.adjustments) if record.adjustments else seen.absent()
    return ITEM_EXISTS & attr(RELEASED).absent() & same


def _capacities_of(debits: Sequence[Debit]) -> dict[str, int]:
    """By limit, the capacity of the largest of these buckets."""
    capacities: dict[str, int] = {}
    for debit in debits:
        for name, limit in debit.limits.items():
            capacities[name] = max(capacities.get(name, 0), limit.capacity)
    return capacities


def released_already() -> ConflictError:
    """The error if the lease was released, and nothing is left to adjust."""
    return ConflictError("lease_id", "the lease has been released")
