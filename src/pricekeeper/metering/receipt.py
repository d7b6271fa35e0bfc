"""The receipt of a counted record: what makes it count once, and what it was charged.

It is written in the transaction that counts the record, on condition that there is none yet.
Whoever reports the record again meets it and gets the original answer out of it. The commit id
tells a committer whose reply was lost whether the receipt it meets is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.metering.items import receipt_pk
from pricekeeper.metering.usage import RECEIPT_LIFE_SECS
from pricekeeper.pricing import Charge, Component, TokenUsage
from pricekeeper.storage import Item, TypedItem
from pricekeeper.storage.tables import REQUEST_DEDUP

SOURCE_LENGTH_MAX: Final = 100
"""A longer name of a price source is cut, to keep every receipt without tags under 1 KB: one write
unit. Tags add what they weigh, 8 KiB at most."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
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


_TOKENS: Final = tuple(component.tokens_field for component in Component)


def unsigned_receipt(
    org_id: str,
    request_id: str,
    fingerprint: bytes,
    scope_key: str,
    model_label: str,
    org_day: str,
    tokens: TokenUsage,
    charge: Charge,
    pricing_source: str,
    accepted_at_ms: int,
    calling_region: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Item:
    """The item of a receipt, before a commit has put its id and shard on it (`signed`)."""
    item: Item = {
        "PK": receipt_pk(org_id, request_id),
        "fingerprint": fingerprint,
        "scope_key": scope_key,
        "model_label": model_label,
        "org_day": org_day,
        "cost_usd_picos": charge.cost_usd_picos,
        "pricing_version": charge.pricing_version,
        "pricing_source": pricing_source[:SOURCE_LENGTH_MAX],
        "service_tier": charge.variant.value if charge.variant else tokens.service_tier,
        "accepted_at_ms": accepted_at_ms,
        "expires_at_epoch": accepted_at_ms // 1000 + RECEIPT_LIFE_SECS,
    }
    for name in _TOKENS:
        count = getattr(tokens, name)
        if count:
            item[name] = count
    if charge.price_estimated:
        item["price_estimated"] = True
    if calling_region is not None:
        item["calling_region"] = calling_region
    if tags:
        item["tags"] = dict(tags)
    return item


def signed(unsigned: Item, commit_id: str, shard_id: int) -> Item:
    """The item as that commit writes it."""
    return {**unsigned, "commit_id": commit_id, "shard_id": shard_id}


def receipt_from(item: Mapping[str, Any]) -> Receipt:
    """The receipt of an item; raises `UnreadableItemError` if it is none."""
    try:
        return msgspec.convert(item, Receipt)
    except msgspec.ValidationError as error:
        typed = TypedItem(REQUEST_DEDUP, item)
        raise typed.unreadable(f"it is no receipt: {error}") from error
