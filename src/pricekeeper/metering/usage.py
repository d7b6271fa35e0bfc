"""A usage record as a client reports it, and its rules.

The window for accepting a record also determines how long a moment must live (`MOMENT_LIFE_SECS`)
and which days may still change.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

import msgspec

from pricekeeper.bedrock import SERVICE_TIER
from pricekeeper.errors import InvalidValueError
from pricekeeper.ledger.position import AUTHORIZATION_VERSION
from pricekeeper.pricing import TokenUsage
from pricekeeper.tags import check_tags

LATE_MS_MAX: Final = 24 * 3_600_000
AHEAD_MS_MAX: Final = 5 * 60_000
MOMENT_LIFE_SECS: Final = 96 * 3_600
"""How long a request id without a time is remembered.

A record is accepted until its timestamp is 24 h old, and the timestamp may be 5 min ahead. So it
can be sent again, as new, for 24 h and 5 min. It can be voided until its day is final: 86 h after
the day begins in the easternmost zone. The rest is margin for clocks that differ and slow commits.
"""
TEXT_LENGTH_MAX: Final = 2048

_REQUEST_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
_FINGERPRINT_BYTES: Final = 16
_VERSION_AT: Final = 14
_AUTHORIZATION_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
_canonical = msgspec.json.Encoder(order="deterministic").encode


class UsageStatus(StrEnum):
    """How the call to the model ended. Its usage counts either way."""

    OK = "OK"
    ERROR = "ERROR"


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of one call, as the client reports it."""

    request_id: str
    model_label: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    service_tier: str | None = None
    batch: bool = False
    bedrock_model_id: str | None = None
    calling_region: str | None = None
    status: UsageStatus = UsageStatus.OK
    timestamp_ms: int | None = None
    tags: dict[str, str] = {}

    @property
    def tokens(self) -> TokenUsage:
        """The priced part; raises `InvalidValueError` for an impossible count."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_5m_tokens=self.cache_write_5m_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens,
            service_tier=self.service_tier,
            batch=self.batch,
        )


def checked(usage: Usage) -> Usage:
    """The record with a canonical id. Pricing checks token counts and the label."""
    request_id = parse_request_id(usage.request_id)
    check_details(usage)
    if request_id == usage.request_id:
        return usage
    return msgspec.structs.replace(usage, request_id=request_id)


def check_details(usage: Usage) -> None:
    """Raise `InvalidValueError` for an invalid field other than token counts, label and id."""
    model_id, tier = usage.bedrock_model_id, usage.service_tier
    if model_id is not None and not 1 <= len(model_id) <= TEXT_LENGTH_MAX:
        raise InvalidValueError("bedrock_model_id", f"must have 1 to {TEXT_LENGTH_MAX} characters")
    if tier is not None and not SERVICE_TIER.fullmatch(tier):
        raise InvalidValueError(
            "service_tier", "must be the tier of Bedrock's response, such as priority"
        )
    if usage.calling_region is not None and not _REGION.fullmatch(usage.calling_region):
        raise InvalidValueError("calling_region", "must be an AWS region such as us-east-1")
    if usage.tags:
        check_tags(usage.tags)


def happened_at_ms(usage: Usage, now_ms: int) -> int:
    """The event's own timestamp if it is in the window, else now."""
    at_ms = usage.timestamp_ms
    if at_ms is None:
        return now_ms
    if now_ms - LATE_MS_MAX <= at_ms <= now_ms + AHEAD_MS_MAX:
        return at_ms
    raise InvalidValueError("timestamp", "must be at most 24 hours old and 5 minutes ahead")


def check_minted(minted_ms: int, now_ms: int) -> None:
    """Refuse an id whose own time is outside the window.

    Only the id decides, so that no other rule can accept the same id as new.
    """
    if not now_ms - LATE_MS_MAX <= minted_ms <= now_ms + AHEAD_MS_MAX:
        raise InvalidValueError(
            "request_id", "was made more than 24 hours ago or 5 minutes ahead, by its own time"
        )


def is_authorization_id(request_id: str) -> bool:
    """Whether a canonical id is of the version used for authorizations."""
    return request_id[_VERSION_AT] == AUTHORIZATION_VERSION


def names_authorization(text: object) -> bool:
    """Whether the text is an id of an authorization, in canonical form."""
    return isinstance(text, str) and _AUTHORIZATION_ID.fullmatch(text) is not None


def fingerprint(client_id: str, body: msgspec.Struct) -> bytes:
    """A digest of client and body, the same in every process and for a retry."""
    named = b"%b\0%b" % (client_id.encode(), _canonical(body))
    return hashlib.blake2b(named, digest_size=_FINGERPRINT_BYTES).digest()


def parse_request_id(text: str) -> str:
    """The id in canonical form; raise `InvalidValueError` if it is none."""
    if type(text) is str and _REQUEST_ID.fullmatch(text):
        return text
    canonical = text.lower() if isinstance(text, str) else ""
    if not _REQUEST_ID.fullmatch(canonical):
        raise InvalidValueError(
            "request_id", "must be a UUID such as 7c9e6679-7425-40de-944b-e07fc1f90ae7"
        )
    return canonical
