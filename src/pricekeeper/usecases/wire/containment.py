"""What an administrator does to a client whose secret has leaked."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pricekeeper.usecases.wire.provisioning import Frozen
from pricekeeper.usecases.wire.values import RequestBody, Response
from pricekeeper.values import REASON_LENGTH_MAX

Reason = Annotated[
    str,
    Meta(
        pattern=r"\S",
        min_length=1,
        max_length=REASON_LENGTH_MAX,
        description="Why, for people: printable characters, and no secret in them.",
        examples=["found in a public repository"],
    ),
]


class ReasonBody(RequestBody, frozen=True):
    """Why it is done."""

    reason: Reason


class RevokeCredentialsBody(RequestBody, frozen=True):
    """Why, and which: all secrets, or the one before, whose grace still runs."""

    reason: Reason
    secrets: Literal["ALL", "PREVIOUS"] = "ALL"


class CredentialsRevoked(Response, frozen=True):
    """The client whose secrets and tokens have stopped working."""

    client_id: str
    status: str
    secrets: str


class FreezeAnswer(Response, frozen=True):
    """The freeze in force."""

    client_id: str
    frozen: Frozen


class LimitsReset(Response, frozen=True):
    """The labels that had a bucket, which is full now. Where none is listed, all were full."""

    client_id: str
    labels: list[str]


class UsageVoided(Response, frozen=True):
    """The record that no longer counts, and the correction that says so. Both are listed."""

    request_id: str
    status: str
    correction_id: str
    voided_at: str
    app_id: str | None
    model_label: str
    cost_usd_micros: int
    """What was taken out."""


class AuthorizationVoided(Response, frozen=True):
    """The authorization that holds nothing any more, and whose it was."""

    authorization_id: str
    status: str
    client_id: str
