"""Fields of the REST contract that may be given beside the arguments of a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class UsageFields(TypedDict, total=False):
    """What a usage record may say beside its label and tokens; as the REST contract has it."""

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
    """What a request for an authorization may say beside its tokens and its model."""

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
