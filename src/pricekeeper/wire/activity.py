"""What happened: the events of a stream, denials and flips."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.wire.authorizations import ConsideredLabel
from pricekeeper.wire.values import Response

AuthorizationStatus = Literal["open", "captured", "voided", "unsettled"]
FlipReason = Literal["QUOTA_EXCEEDED", "QUOTA_RAISED", "MANUAL_OVERRIDE", "OVERRIDE_CLEARED"]
MissedReason = Literal["TOO_LATE", "TOO_MUCH"]
Why = Annotated[
    dict[str, Any],
    Meta(
        description="What the caller was told: `detail`, and by its code `denied_by` and "
        "`considered`, `violations`, `models`, or who has frozen it; also its `client_id` and "
        "`tags`. `left_out` names what was too large to be kept.",
        examples=[
            {
                "client_id": "org-7c9e6679-7425-40de-944b-e07fc1f90ae7-app-web",
                "detail": "the app's quota quota-premium: this call may cost $1.76, ...",
                "denied_by": [
                    {
                        "kind": "QUOTA",
                        "name": "quota-premium",
                        "scope": "APP",
                        "label": "premium",
                        "needed": 1760000,
                        "remaining": 1296000,
                        "resets_at": "2026-01-24T05:00:00Z",
                    }
                ],
                "considered": [{"label": "premium", "outcome": "SKIPPED", "because": "..."}],
                "tags": {"team": "red"},
            }
        ],
    ),
]
DenialKind = Annotated[
    str,
    Meta(
        description="AUTHORIZATION, GATEWAY, LIMITS (an acquire) or SELECTION. `other` is the rest "
        "of a minute with more than can be told apart; it has no example."
    ),
]


class SpendEventRow(Response, frozen=True):
    """What an app has used of a label since the event before."""

    app_id: str | None
    model_label: str
    cost_usd_micros: int
    requests: int
    errors: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


class SpendEventRecord(Response, frozen=True):
    """A usage record that was counted."""

    request_id: str
    app_id: str | None
    model_label: str
    happened_at: str
    cost_usd_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    status: Literal["OK", "ERROR"]
    tags: dict[str, str]


class SpendEvent(Response, frozen=True):
    """`spend`: usage was counted. The last records are there; `more` were counted besides."""

    org_id: str
    at: str
    rows: list[SpendEventRow]
    records: list[SpendEventRecord]
    more: int


class DeniedEvent(Response, frozen=True):
    """`denied`: so many calls were denied for the same reasons; `example` is the first of them."""

    org_id: str
    at: str
    app_id: str | None
    kind: DenialKind
    model: str
    code: str
    count: int
    example: Why


class GivenUpLabel(Response, frozen=True):
    """A label whose quota was spent, and how much of it was."""

    label: str
    spend_usd_micros: int
    quota_usd_micros: int


class FlipAnswer(Response, frozen=True):
    """A flip or an override: from here on another label is recommended, until the day ends."""

    org_id: str
    at: str
    app_id: str | None
    """Whose quotas or override it is; null is the whole organisation."""
    reason: FlipReason
    from_label: str | None
    to_label: str | None
    """Null after an override was cleared: the quotas decide again."""
    given_up: list[GivenUpLabel]
    until: str


class FlipEvent(FlipAnswer, frozen=True):
    """`flip`: another label is recommended from now on."""


class AuthorizationEventRow(Response, frozen=True):
    """How many authorizations of an app and a label became what, since the event before."""

    app_id: str | None
    model_label: str
    authorized: int
    captured: int
    voided: int
    unsettled: int
    held_usd_micros: int
    """What those that were authorized hold."""
    unsettled_usd_micros: int
    """What is charged for those that nobody has settled in time."""


class AuthorizationEventEntry(Response, frozen=True, omit_defaults=True):
    """An authorization as it became, and the decision that it came from."""

    authorization_id: str
    app_id: str | None
    model_label: str
    status: AuthorizationStatus
    reason: str
    held_usd_micros: int
    considered: list[ConsideredLabel]
    cost_usd_micros: int | UnsetType = UNSET


class AuthorizationEvent(Response, frozen=True):
    """`authorization`: some were granted or settled. The last are there; `more` changed besides."""

    org_id: str
    at: str
    rows: list[AuthorizationEventRow]
    entries: list[AuthorizationEventEntry]
    more: int


class AlertEvent(Response, frozen=True):
    """`alert`: somebody is told something. `alert` is what `GET /api/v1/alerts` lists, as sent."""

    org_id: str | None
    """Null: it is about the deployment."""
    at: str
    app_id: str | None
    alert: dict[str, Any]


class ResetEvent(Response, frozen=True):
    """`reset`: something may be missing here; read anew what is shown, and go on.

    `TOO_LATE`: what followed the given id is gone. `TOO_MUCH`: more has happened than is told.
    """

    reason: MissedReason


class DenialAnswer(Response, frozen=True):
    """Calls of one minute that were denied for the same reasons."""

    org_id: str
    app_id: str | None
    kind: DenialKind
    model: str
    """As it was asked for: `auto`, a label, or an id of Bedrock's."""
    code: str
    count: int
    first_at: str
    last_at: str
    example: Why


class DenialList(Response, frozen=True, omit_defaults=True):
    """Denials, the newest minute first, and where to go on. A page may be empty and have a next."""

    denials: list[DenialAnswer]
    next: str | UnsetType = UNSET


class FlipList(Response, frozen=True, omit_defaults=True):
    """Flips and overrides, the newest first, and where to go on."""

    flips: list[FlipAnswer]
    next: str | UnsetType = UNSET
