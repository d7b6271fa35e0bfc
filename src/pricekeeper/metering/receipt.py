"""The receipt of a counted record, and the answer to it.

A duplicate finds the record and gets its receipt. The commit id tells a committer whose reply was
lost whether the record is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from pricekeeper.errors import PriceKeeperError
from pricekeeper.metering.counters import Account, Total
from pricekeeper.pricing import PICOS_PER_MICRO

SOURCE_LENGTH_MAX: Final = 100
"""A longer price source is cut, so that a record without tags is under 1 KB: one write unit. Tags
add up to 8 KiB."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
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
        return self.receipt.cost_usd_picos // PICOS_PER_MICRO


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
