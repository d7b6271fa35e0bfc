"""Alerts and their channels."""

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
    """The delivery of an alert to a channel."""

    channel: str
    state: StateName
    at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class AlertAnswer(Response, frozen=True):
    """An alert in the form that was sent, and its deliveries."""

    id: str
    kind: KindName
    at: str
    title: str
    text: str
    next: str
    about: Annotated[
        dict[str, Any], Meta(description="The facts; each kind of alert has other fields.")
    ]
    org_id: str | None
    org_name: str | None
    app_id: str | None
    app_name: str | None
    state: StateName
    deliveries: list[DeliveryAnswer]


class AlertList(Response, frozen=True, omit_defaults=True):
    """Alerts, the newest first; a page may be empty although more pages follow."""

    alerts: list[AlertAnswer]
    next: str | UnsetType = UNSET


class ChannelBody(RequestBody, frozen=True):
    """A channel for alerts; fields of an existing channel that are left out stay unchanged.

    If `url` names another server (scheme, host or port), send `secret` and `user` again.
    """

    kind: Literal["WEBHOOK", "SLACK", "SNS", "EMAIL"]
    url: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=URL_LENGTH_MAX,
                description="Where alerts are posted: an https URL in the public internet, the ARN "
                "of a topic, or the mail server (smtps://, or smtp:// for STARTTLS). "
                "It is encrypted, and never shown again.",
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
                description="Signs alerts, 16 characters at least; or the password at the mail "
                "server. It is encrypted, and never shown again.",
            ),
        ]
        | None
    ) = None
    user: (
        Annotated[str, Meta(max_length=256, description="The user at the mail server.")] | None
    ) = None
    sender: Annotated[Mailbox, Meta(description="The sender of mails.")] | None = None
    recipients: (
        Annotated[
            list[Mailbox], Meta(max_length=RECIPIENTS_MAX, description="The recipients of mails.")
        ]
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
    """The channels of an organisation or of the deployment, in the order of names."""

    channels: list[ChannelAnswer]


class TrialAnswer(Response, frozen=True, omit_defaults=True):
    """The outcome of a test that was sent through a channel."""

    channel: str
    outcome: Literal["delivered", "failed"]
    alert_id: str
    error: str | UnsetType = UNSET
