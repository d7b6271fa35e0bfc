"""What every part of the API shares: values with their rules, and what goes wrong."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pricekeeper.tenants.bodies import LABEL, LIMIT_NAME

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
Timestamp = Annotated[
    str,
    Meta(
        min_length=20,
        max_length=40,
        examples=["2026-01-23T15:30:45Z"],
        extra_json_schema={"format": "date-time", "pattern": TIMESTAMP},
    ),
]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller sends: an unknown field is a mistake, not a wish."""


class Response(msgspec.Struct, frozen=True):
    """What we send back."""


class Mistake(Response, frozen=True):
    """One bad field."""

    field: str
    message: str


class ProblemBody(Response, frozen=True):
    """RFC 9457, with our stable code, the request's id and typed extras."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Mistake] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    outcome: Literal["OUTCOME_UNKNOWN", "NOT_APPLIED"] | UnsetType = UNSET
    """Of a 503: whether the request may have been applied all the same, where that is known."""


class OAuthError(Response, frozen=True):
    """RFC 6749, section 5.2."""

    error: str
    error_description: str


class Health(Response, frozen=True, omit_defaults=True):
    """A word about the process, and why it is not ready if it is not."""

    status: str
    reason: str | None = None
