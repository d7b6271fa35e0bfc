"""An alert as JSON: what a webhook gets, and what the list of alerts shows.

The shape is the same for every kind; what differs is in ``about``. Members may be added, and none
is ever taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from pricekeeper import showing
from pricekeeper.alerts.alert import Alert
from pricekeeper.alerts.parts import Span, foreign, split, unlinked

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
    foreign: dict[str, list[Span]] = {}
    """Which parts of ``title``, ``text`` and ``next`` others have written."""
    test: bool = False
    """Whether nothing has happened, and somebody tries a channel."""
    org_id: str | None = None
    org_name: str | None = None
    app_id: str | None = None
    app_name: str | None = None

    def shown(
        self, name: str, theirs: Callable[[str], str], ours: Callable[[str], str] = str
    ) -> str:
        """One of the three texts as a channel shows it: each part in the way of its kind."""
        text, at, shown = getattr(self, name), 0, ""
        for start, end in self.foreign.get(name, ()):
            shown += ours(text[at:start]) + theirs(text[start:end])
            at = end
        return shown + ours(text[at:])


def alert_body(alert: Alert) -> bytes:
    """The alert as it is sent and stored."""
    finding = alert.finding
    return encoded_body(
        AlertBody(
            id=alert.id,
            kind=finding.kind.value,
            at=showing.rfc3339(alert.at_ms),
            about=finding.about,
            **_texts(title=finding.title, text=finding.text, next=finding.next_step),
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
            **_texts(
                title="Test: alerts of pricekeeper arrive here",
                text=f"Somebody has tried the channel {foreign(channel)}. Nothing has happened, "
                "and nothing is to be done.",
                next="See the alerts so far: pricekeeper alerts list",
            ),
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


def plain_words(alert: AlertBody) -> str:
    """An alert in plain text, where a program may look for links: what is to be read and done."""
    text, next_step = (alert.shown(name, unlinked) for name in ("text", "next"))
    return f"{text}\n\n{next_step}\n\n{alert.id}"


def _texts(**marked: str) -> dict[str, Any]:
    """The texts without the marks, and the spans of what others wrote, by name."""
    texts = {name: split(text) for name, text in marked.items()}
    spans = {name: text.foreign for name, text in texts.items() if text.foreign}
    return {**{name: text.plain for name, text in texts.items()}, "foreign": spans}
