"""Alerts, and the channels that they go to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from pricekeeper.wire.bounds import (
    CHANNEL_SECRET_LENGTHS,
    MAILBOX_LENGTH_MAX,
    RECIPIENTS_MAX,
    URL_LENGTH_MAX,
)
from pricekeeper.wire.values import RequestBody, Response

KindName = Literal[
    "BUDGET",
    "QUOTA",
    "FALLBACK",
    "EXHAUSTED",
    "DENIALS",
    "UNSETTLED",
    "PRICE",
    "AGGREGATOR_LAG",
    "SECRET_AGE",
    "ANOMALY",
]
Mailbox = Annotated[str, Meta(max_length=MAILBOX_LENGTH_MAX, examples=["ops@example.com"])]
StateName = Literal["pending", "delivered", "given_up", "unsent"]


class DeliveryAnswer(Response, frozen=True, omit_defaults=True):
    """What became of an alert at a channel."""

    channel: str
    state: StateName
    at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class AlertAnswer(Response, frozen=True):
    """An alert as it was sent, and what became of it."""

    id: str
    kind: KindName
    at: str
    title: str
    text: str
    next: str
    about: Annotated[dict[str, Any], Meta(description="The facts; each kind of alert has its own.")]
    org_id: str | None
    org_name: str | None
    app_id: str | None
    app_name: str | None
    state: StateName
    deliveries: list[DeliveryAnswer]


class AlertList(Response, frozen=True, omit_defaults=True):
    """Alerts, the newest first, and where to go on; a page may be empty and have a next."""

    alerts: list[AlertAnswer]
    next: str | UnsetType = UNSET


class ChannelBody(RequestBody, frozen=True):
    """Where alerts go, and which; of a channel that there is, what is left out stays as it is.

    If `url` names another server (scheme, host or port), `secret` and `user` are said again.
    """

    kind: Literal["WEBHOOK", "SLACK", "SNS", "EMAIL"]
    url: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=URL_LENGTH_MAX,
                description="Where alerts are posted to: https, in the public internet; the ARN "
                "of a topic; or the mail server (smtps://, or smtp:// for STARTTLS). "
                "It is sealed, and never shown again.",
                examples=["https://hooks.example.com/alerts"],
            ),
        ]
        | None
    ) = None
    secret: (
        Annotated[
            str,
            Meta(
                max_length=CHANNEL_SECRET_LENGTHS[1],
                description="What alerts are signed with, 16 characters at least; or the password "
                "at the mail server. It is sealed, and never shown again.",
            ),
        ]
        | None
    ) = None
    user: (
        Annotated[str, Meta(max_length=256, description="Who logs in at the mail server.")] | None
    ) = None
    sender: Annotated[Mailbox, Meta(description="Who mails are from.")] | None = None
    recipients: (
        Annotated[list[Mailbox], Meta(max_length=RECIPIENTS_MAX, description="Who gets mails.")]
        | None
    ) = None
    kinds: Annotated[list[KindName], Meta(max_length=64, description="All kinds if empty.")] = (
        field(default_factory=list)
    )


class ChannelAnswer(Response, frozen=True, omit_defaults=True):
    """A channel, without its secrets."""

    channel: str
    kind: str
    address: str
    kinds: list[str]
    updated_at: str
    status: str | UnsetType = UNSET


class ChannelList(Response, frozen=True):
    """The channels of an organisation or of the deployment, by name."""

    channels: list[ChannelAnswer]


class TrialAnswer(Response, frozen=True, omit_defaults=True):
    """What came of a test that was sent through a channel."""

    channel: str
    outcome: Literal["delivered", "failed"]
    alert_id: str
    error: str | UnsetType = UNSET
