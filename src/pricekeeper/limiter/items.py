"""The keys of buckets and leases in the table, and the codec between items and values.

A bucket is one item, ``{entity}`` / ``{resource}``, with every limit in it::

    rf                 when it was last refilled, ms; the lock of the Refill write
    tk.{limit}         stored balance in units (see `limits`)
    tc.{limit}         tokens taken and not given back, over its life
    lm.{limit}         the terms that the units are counted by: capacity/amount/period
    expires_at_epoch   later than the moment at which it is surely full: absent is full

A lease is an item of its own, ``{entity}#LEASE#{lease_id}`` / ``LEASE``, so that it is granted
once, and can be adjusted and released from any instance::

    resource, parents, consume   the request
    terms                        entity -> limit -> terms, as they were then
    held.{limit}                 tokens that it holds now
    adjustments                  id/digest/nonce of each adjustment that was applied
    nonce, released              the acquire that wrote it, the release that closed it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.errors import InvalidValueError
from pricekeeper.limiter.bucket import Bucket, Debit, Holding
from pricekeeper.limiter.limits import Limit, limit_of
from pricekeeper.storage import Item, Key, TypedItem
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY

REFILLED: Final = "rf"
STORED: Final = "tk."
CONSUMED: Final = "tc."
TERMS: Final = "lm."
HELD: Final = "held."
ADJUSTMENTS: Final = "adjustments"
RELEASED: Final = "released"

_LEASE: Final = "LEASE"
_KEY_PART: Final = re.compile(r"[A-Za-z0-9*._:@/+=-]{1,256}")


def check_key_part(field: str, text: str) -> str:
    """Check an entity or resource, which is part of a key: no ``#``, no blanks, not too long."""
    if not isinstance(text, str) or not _KEY_PART.fullmatch(text):
        raise InvalidValueError(field, "must be 1 to 256 of A-Z a-z 0-9 * . _ : @ / + = -")
    return text


def bucket_item(key: Key, bucket: Bucket) -> Item:
    """The item of a bucket."""
    item: Item = {
        **key.attributes,
        REFILLED: bucket.refilled_at_ms,
        EXPIRY: bucket.expires_at_epoch,
    }
    for name, holding in bucket.holdings.items():
        item[TERMS + name] = holding.limit.terms
        item[STORED + name] = holding.units
        item[CONSUMED + name] = holding.consumed
    return item


def bucket_of(item: Mapping[str, Any] | None) -> Bucket | None:
    """The bucket of an item; raises `UnreadableItemError` if it is none."""
    if item is None:
        return None
    typed = TypedItem(RATE_BUCKETS, item)
    names = [name.removeprefix(TERMS) for name in item if name.startswith(TERMS)]
    counts = [kind + name for name in names for kind in (STORED, CONSUMED)]
    refilled_at_ms, expires_at_epoch, *counted = typed.integers(REFILLED, EXPIRY, *counts)
    holdings = {
        name: Holding(_limit(typed, name, typed.text(TERMS + name)), units, consumed)
        for name, units, consumed in zip(names, counted[::2], counted[1::2], strict=True)
    }
    return Bucket(refilled_at_ms, expires_at_epoch, holdings)


def _limit(typed: TypedItem, name: str, terms: str) -> Limit:
    try:
        return limit_of(name, terms)
    except ValueError as error:
        raise typed.report_unreadable(f"{TERMS}{name} are no terms of a limit") from error
    except InvalidValueError as error:
        raise typed.report_unreadable(f"{TERMS}{name}: {error}") from error


class LeaseRecord(msgspec.Struct, frozen=True):
    """A lease in the store."""

    entity: str
    lease_id: str
    resource: str
    parents: tuple[str, ...]
    consume: dict[str, int]
    terms: dict[str, dict[str, str]]
    granted_at_ms: int
    expires_at_epoch: int
    held: dict[str, int]
    nonce: str = ""
    """Tells the acquire that wrote the record from another one under the same id."""
    adjustments: frozenset[str] = frozenset()
    released: str = ""
    """The nonce of the release; empty while the lease is open."""

    @property
    def key(self) -> Key:
        return lease_key(self.entity, self.lease_id)

    def debits(self, tokens: Mapping[str, int]) -> tuple[Debit, ...]:
        """These tokens, for every bucket of the lease that has such a limit, parents last."""
        debits = []
        for entity in (self.entity, *self.parents):
            terms = self.terms.get(entity)
            if terms is None:
                continue
            limits = {name: limit_of(name, text) for name, text in terms.items()}
            named = {name: count for name, count in tokens.items() if name in limits}
            debits.append(Debit(Key(entity, self.resource), limits, named))
        return tuple(debits)


def lease_key(entity: str, lease_id: str) -> Key:
    """The key of a lease, whose name is unique only within its entity."""
    return Key(f"{entity}#{_LEASE}#{lease_id}", _LEASE)


def lease_item(record: LeaseRecord) -> Item:
    """The item of a lease that has just been granted."""
    item: Item = {
        **record.key.attributes,
        EXPIRY: record.expires_at_epoch,
        "resource": record.resource,
        "parents": list(record.parents),
        "consume": record.consume,
        "terms": record.terms,
        "granted_at_ms": record.granted_at_ms,
        "nonce": record.nonce,
    }
    item.update((HELD + name, tokens) for name, tokens in record.held.items())
    return item


def lease_of(entity: str, lease_id: str, item: Mapping[str, Any] | None) -> LeaseRecord | None:
    """The lease of an item; raises `UnreadableItemError` if it is none."""
    if item is None:
        return None
    held = {name.removeprefix(HELD): item[name] for name in item if name.startswith(HELD)}
    named = {"entity": entity, "lease_id": lease_id, "held": held}
    typed = TypedItem(RATE_BUCKETS, {**item, **named})
    record = typed.convert(LeaseRecord)
    for terms in record.terms.values():
        for name, text in terms.items():
            _limit(typed, name, text)
    return record
