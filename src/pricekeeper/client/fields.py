"""Optional fields of the REST contract, as keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class UsageFields(TypedDict, total=False):
    """Optional fields of a usage record."""

    cache_read_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    service_tier: str
    batch: bool
    bedrock_model_id: str
    calling_region: str
    status: str
    timestamp: str
    tags: dict[str, str]


class AuthorizeFields(TypedDict, total=False):
    """Optional fields of an authorization request."""

    fallback: bool
    cache_write: str
    service_tier: str | None
    batch: bool
    uses: Sequence[str]
    window_tokens: int
    consume: dict[str, int]
    tags: dict[str, str]
    allow_lower_max_output: bool
    min_output_tokens: int
    hold_secs: int
