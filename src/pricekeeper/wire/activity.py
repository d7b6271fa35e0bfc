"""Events of the stream, denials and flips."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.wire.authorizations import ConsideredLabel
from pricekeeper.wire.values import Response, Spent

AuthorizationStatus = Literal["open", "captured", "voided", "unsettled"]
FlipReason = Literal["QUOTA_EXCEEDED", "QUOTA_RAISED", "MANUAL_OVERRIDE", "OVERRIDE_CLEARED"]
MissedReason = Literal["TOO_LATE", "TOO_MUCH"]
Why = Annotated[
    dict[str, Any],
    Meta(
        description="The answer to the caller: `detail`, and by its code `denied_by` and "
        "`considered`, `violations`, `models`, or the freeze; also its `client_id` and `tags`. "
        "`left_out` names fields that were too large to keep.",
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
        "of a minute with too many different denials; it has no example."
    ),
]


class SpendEventRow(Spent, frozen=True):
    """The usage of an app and label since the previous event."""

    app_id: str | None
    model_label: str
    requests: int
    errors: int


class SpendEventRecord(Spent, frozen=True):
    """A usage record that was counted."""

    request_id: str
    app_id: str | None
    model_label: str
    happened_at: str
    status: Literal["OK", "ERROR"]
    tags: dict[str, str]


class SpendEvent(Response, frozen=True):
    """`spend`: usage was counted. It has the last records; `more` is the number of others."""

    org_id: str
    at: str
    rows: list[SpendEventRow]
    records: list[SpendEventRecord]
    more: int


class DeniedEvent(Response, frozen=True):
    """`denied`: calls that were denied for the same reasons; `example` is the first."""

    org_id: str
    at: str
    app_id: str | None
    kind: DenialKind
    model: str
    code: str
    count: int
    example: Why


class GivenUpLabel(Response, frozen=True):
    """A label whose quota was spent, and the amounts."""

    label: str
    spend_usd_micros: int
    quota_usd_micros: int


class FlipAnswer(Response, frozen=True):
    """A flip or an override: another label is recommended until the day ends."""

    org_id: str
    at: str
    app_id: str | None
    """Null is the whole organisation."""
    reason: FlipReason
    from_label: str | None
    to_label: str | None
    """Null after an override was cleared: quotas decide again."""
    given_up: list[GivenUpLabel]
    until: str


class FlipEvent(FlipAnswer, frozen=True):
    """`flip`: another label is recommended now."""


class AuthorizationEventRow(Response, frozen=True):
    """Changes of authorizations of an app and label since the previous event, by outcome."""

    app_id: str | None
    model_label: str
    authorized: int
    captured: int
    voided: int
    unsettled: int
    held_usd_micros: int
    unsettled_usd_micros: int
    """Charged for those that expired without settlement."""


class AuthorizationEventEntry(Response, frozen=True, omit_defaults=True):
    """A changed authorization, and the decision that granted it."""

    authorization_id: str
    app_id: str | None
    model_label: str
    status: AuthorizationStatus
    reason: str
    held_usd_micros: int
    considered: list[ConsideredLabel]
    cost_usd_micros: int | UnsetType = UNSET


class AuthorizationEvent(Response, frozen=True):
    """`authorization`: some were granted or settled. It has the last; `more` counts the others."""

    org_id: str
    at: str
    rows: list[AuthorizationEventRow]
    entries: list[AuthorizationEventEntry]
    more: int


class AlertEvent(Response, frozen=True):
    """`alert`: an alert was decided, in the form that `GET /api/v1/alerts` lists."""

    org_id: str | None
    """Null for an alert about the deployment."""
    at: str
    app_id: str | None
    alert: dict[str, Any]


class ResetEvent(Response, frozen=True):
    """`reset`: events may be missing; reload the data that is shown.

    `TOO_LATE`: the events after the given id are gone. `TOO_MUCH`: there were too many events.
    """

    reason: MissedReason


class DenialAnswer(Response, frozen=True):
    """Calls of one minute that were denied for the same reasons."""

    org_id: str
    app_id: str | None
    kind: DenialKind
    model: str
    """As the caller asked: `auto`, a label, or a Bedrock model id."""
    code: str
    count: int
    first_at: str
    last_at: str
    example: Why


class DenialList(Response, frozen=True, omit_defaults=True):
    """Denials, the newest minute first. A page may be empty and have a next."""

    denials: list[DenialAnswer]
    next: str | UnsetType = UNSET


class FlipList(Response, frozen=True, omit_defaults=True):
    """Flips and overrides, the newest first."""

    flips: list[FlipAnswer]
    next: str | UnsetType = UNSET
