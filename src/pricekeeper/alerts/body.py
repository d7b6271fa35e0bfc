"""An alert as JSON: what a webhook gets, and what the list of alerts shows.

The shape is the same for every kind; what differs is in ``about``. Members may be added, and none
is ever taken away.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pricekeeper import showing
from pricekeeper.alerts.alert import Alert

TRIAL: Final = "TEST"
"""The kind of what is sent to try a channel."""
_encode: Final = msgspec.json.Encoder().encode


class AlertBody(msgspec.Struct, frozen=True):
    """One alert, as it is sent."""

    id: str
    kind: str
    at: str
    title: str
    text: str
    next: str
    about: dict[str, Any]
    test: bool = False
    """Whether nothing has happened, and somebody tries a channel."""
    org_id: str | None = None
    org_name: str | None = None
    app_id: str | None = None
    app_name: str | None = None


def alert_body(alert: Alert) -> bytes:
    """The alert as it is sent and stored."""
    finding = alert.finding
    return encoded_body(
        AlertBody(
            id=alert.id,
            kind=finding.kind.value,
            at=showing.rfc3339(alert.at_ms),
            title=finding.title,
            text=finding.text,
            next=finding.next_step,
            about=finding.about,
            org_id=finding.owner.org_id,
            org_name=finding.org_name,
            app_id=finding.app_id,
            app_name=finding.app_name,
        )
    )


def trial_body(alert_id: str, at_ms: int, channel: str) -> bytes:
    """What is sent to try a channel; it says that nothing has happened."""
    return encoded_body(
        AlertBody(
            id=alert_id,
            kind=TRIAL,
            at=showing.rfc3339(at_ms),
            title="Test: alerts of pricekeeper arrive here",
            text=f"Somebody has tried the channel {channel}. Nothing has happened, and nothing is "
            "to be done.",
            next="See the alerts so far: pricekeeper alerts list",
            about={"channel": channel},
            test=True,
        )
    )


def encoded_body(body: AlertBody) -> bytes:
    """The alert as JSON."""
    return _encode(body)


def parse_body(body: bytes) -> AlertBody:
    """What was stored."""
    return msgspec.json.decode(body, type=AlertBody)
