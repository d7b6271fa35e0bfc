"""Values with their rules that all parts of the API share, and times as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pricekeeper import showing
from pricekeeper.errors import InvalidValueError
from pricekeeper.wire.settings import LABEL, LIMIT_NAME, Readable

Tokens = Annotated[int, Meta(ge=0, le=10**9)]
Uuid = Annotated[
    str,
    Meta(pattern="^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"),
]
APP_ID: Final = r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}$"
Label = Annotated[str, Meta(pattern=LABEL)]
LimitName = Annotated[str, Meta(pattern=LIMIT_NAME)]
Amount = Annotated[int, Meta(ge=0, le=10**12)]
Delta = Annotated[int, Meta(ge=-(10**12), le=10**12)]
ShortText = Annotated[str, Meta(max_length=256)]
TIMESTAMP: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
LAST_EPOCH: Final = showing.LAST_EPOCH
rfc3339: Final = showing.rfc3339
_RFC3339: Final = re.compile(TIMESTAMP, re.ASCII)
Timestamp = Annotated[
    str,
    Meta(
        min_length=20,
        max_length=40,
        examples=["2026-01-23T15:30:45Z"],
        extra_json_schema={"format": "date-time", "pattern": TIMESTAMP},
    ),
]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request body; an unknown field is refused."""


class Response(Readable, frozen=True):
    """What the service sends back."""


class Spent(Response, frozen=True, kw_only=True):
    """A cost, and the tokens that it is for."""

    cost_usd_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


def parse_timestamp(text: str, field: str = "timestamp") -> int:
    """RFC 3339 to milliseconds since the epoch."""
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValueError(field, "must be a time such as 2026-01-23T15:30:45Z") from None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
