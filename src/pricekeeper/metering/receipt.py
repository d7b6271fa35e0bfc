"""The receipt of a counted record: what makes it count once, and what it was charged.

It is written in the transaction that counts the record, on condition that there is none yet.
Whoever reports the record again meets it and gets the original answer out of it. The commit id
tells a committer whose reply was lost whether the receipt it meets is its own.
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

_TAKEN_FOR: Final = "authorization_id"
SOURCE_LENGTH_MAX: Final = 100
"""A longer name of a price source is cut, to keep every receipt without tags under 1 KB: one write
unit. Tags add what they weigh, 8 KiB at most."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was charged, where it was counted, and by which commit."""

    fingerprint: bytes
    scope_key: str
    model_label: str
    org_day: str
    cost_usd_picos: int
    pricing_version: str
    pricing_source: str
    service_tier: str
    """As it was served; ``batch`` is one too."""
    accepted_at_ms: int
    commit_id: str
    shard_id: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    price_estimated: bool = False
    """Whether what was served has no prices, and the highest of the model were taken."""
    calling_region: str | None = None
    tags: dict[str, str] = {}

    @property
    def account(self) -> Account:
        """Where its spend counts."""
        return Account(self.scope_key, self.model_label, self.org_day)


def receipt_pk(org_id: str, request_id: str) -> str:
    """The partition key under which a request id is remembered."""
    return f"ORG#{org_id}#REQ#{request_id}"


def receipt_key(org_id: str, request_id: str) -> tuple[Table, Key]:
    """Where the receipt of a request id is, if there is one."""
    return REQUEST_DEDUP, Key(receipt_pk(org_id, request_id))


def receipt_put(org_id: str, request_id: str, receipt: Receipt) -> Put:
    """Write a receipt where there is none."""
    item: Item = msgspec.to_builtins(receipt, builtin_types=(bytes,))
    item["PK"] = receipt_pk(org_id, request_id)
    item["expires_at_epoch"] = receipt.accepted_at_ms // 1000 + RECEIPT_LIFE_SECS
    return Put(REQUEST_DEDUP, item, ITEM_ABSENT)


def take_place_put(
    org_id: str,
    request_id: str,
    authorization_id: str,
    expires_at_epoch: int,
    before: str | None = None,
) -> Put:
    """Claim the place of a receipt, where there is none, or where that claim stands."""
    item: Item = {
        "PK": receipt_pk(org_id, request_id),
        _TAKEN_FOR: authorization_id,
        "expires_at_epoch": expires_at_epoch,
    }
    unclaimed = ITEM_ABSENT if before is None else attr(_TAKEN_FOR).eq(before)
    return Put(REQUEST_DEDUP, item, unclaimed)


def receipt_taken_for(item: Mapping[str, Any]) -> str | None:
    """The authorization that the place of a receipt is taken for, if it is."""
    held = item.get(_TAKEN_FOR)
    if held is None:
        return None
    if not names_authorization(held):
        typed = TypedItem(REQUEST_DEDUP, item)
        raise typed.report_unreadable("it names no authorization")
    return str(held)


def receipt_from(item: Mapping[str, Any]) -> Receipt:
    """The receipt of an item; raises `UnreadableItemError` if it is none."""
    return TypedItem(REQUEST_DEDUP, item).convert(Receipt)


class Outcome(StrEnum):
    """Whether this submission counted the record, or an earlier one had."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Recorded(msgspec.Struct, frozen=True):
    """A record that counts, under its receipt.

    ``daily_total`` is what its scope has spent on its label on its day, as far as this
    process knows; ``None`` if no total could be read. Never a reason to fail the record.
    """

    request_id: str
    outcome: Outcome
    receipt: Receipt
    daily_total: Total | None

    @property
    def cost_usd_micros(self) -> int:
        """What it costs, in whole micro-dollars, for showing."""
        return split_micros(self.receipt.cost_usd_picos)[0]


@dataclass(frozen=True, slots=True)
class Refused:
    """A record of a batch that was not counted; after `OutcomeUnknownError` it may have been."""

    request_id: str
    error: PriceKeeperError

    @property
    def code(self) -> str:
        return self.error.code

    @property
    def detail(self) -> str:
        return str(self.error)
