"""The receipt of a counted record, and the answer to it.

A receipt is written in the transaction that counts the record, if there is none. A duplicate meets
it and gets the original answer. Its commit id tells a committer whose reply was lost whether the
receipt is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from pricekeeper.errors import PriceKeeperError
from pricekeeper.metering.counters import Account, Total
from pricekeeper.metering.usage import RECEIPT_LIFE_SECS, names_authorization
from pricekeeper.pricing import split_micros
from pricekeeper.storage import ITEM_ABSENT, Item, Key, Put, Table, TypedItem, attr
from pricekeeper.storage.tables import REQUEST_DEDUP
from pricekeeper.storage.values import EXPIRY

_TAKEN_FOR: Final = "authorization_id"
SOURCE_LENGTH_MAX: Final = 100
"""A longer price source is cut, so that a receipt without tags is under 1 KB: one write unit. Tags
add up to 8 KiB."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The charge of a record, its account, and the commit that counted it."""

    fingerprint: bytes
    scope_key: str
    model_label: str
    org_day: str
    cost_usd_picos: int
    pricing_version: str
    pricing_source: str
    service_tier: str
    accepted_at_ms: int
    commit_id: str
    shard_id: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    price_estimated: bool = False
    calling_region: str | None = None
    tags: dict[str, str] = {}

    @property
    def account(self) -> Account:
        return Account(self.scope_key, self.model_label, self.org_day)


def receipt_pk(org_id: str, request_id: str) -> str:
    """The partition key of a request id."""
    return f"ORG#{org_id}#REQ#{request_id}"


def receipt_key(org_id: str, request_id: str) -> tuple[Table, Key]:
    """The key of a request id's receipt."""
    return REQUEST_DEDUP, Key(receipt_pk(org_id, request_id))


def receipt_put(org_id: str, request_id: str, receipt: Receipt) -> Put:
    """Write a receipt, if there is none."""
    item: Item = msgspec.to_builtins(receipt, builtin_types=(bytes,))
    item["PK"] = receipt_pk(org_id, request_id)
    item[EXPIRY] = receipt.accepted_at_ms // 1000 + RECEIPT_LIFE_SECS
    return Put(REQUEST_DEDUP, item, ITEM_ABSENT)


def take_place_put(
    org_id: str,
    request_id: str,
    authorization_id: str,
    expires_at_epoch: int,
    before: str | None = None,
) -> Put:
    """Claim the place of a receipt, if there is none, or this claim exists already."""
    place = receipt_key(org_id, request_id)[1].attributes
    item: Item = {**place, _TAKEN_FOR: authorization_id, EXPIRY: expires_at_epoch}
    unclaimed = ITEM_ABSENT if before is None else attr(_TAKEN_FOR).eq(before)
    return Put(REQUEST_DEDUP, item, unclaimed)


def receipt_taken_for(item: Mapping[str, Any]) -> str | None:
    """The authorization by which the receipt's place is taken, if it is."""
    held = item.get(_TAKEN_FOR)
    if held is None:
        return None
    if not names_authorization(held):
        typed = TypedItem(REQUEST_DEDUP, item)
        raise typed.report_unreadable("it names no authorization")
    return str(held)


def receipt_from(item: Mapping[str, Any]) -> Receipt:
    """Decode a receipt; raise `UnreadableItemError` if that fails."""
    return TypedItem(REQUEST_DEDUP, item).convert(Receipt)


class Outcome(StrEnum):
    """Whether this request counted the record, or an earlier one."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Recorded(msgspec.Struct, frozen=True):
    """A counted record, its receipt, and the spend of its account, if that is known."""

    request_id: str
    outcome: Outcome
    receipt: Receipt
    daily_total: Total | None

    @property
    def cost_usd_micros(self) -> int:
        return split_micros(self.receipt.cost_usd_picos)[0]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused record of a batch; after `OutcomeUnknownError` it may be counted."""

    request_id: str
    error: PriceKeeperError

    @property
    def code(self) -> str:
        return self.error.code

    @property
    def detail(self) -> str:
        return str(self.error)
