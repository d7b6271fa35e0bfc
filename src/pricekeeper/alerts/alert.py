"""Alerts: a finding, the alert that is decided for it, and its body as JSON.

Every instance that finds the same thing computes the same **identity**, so it is decided once.

Texts mark **foreign** parts: names and tags that tenants choose. Each channel shows these in its
own safe way. A body has the same members for every kind; members may be added and are never
removed.

No I/O, no clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from pricekeeper import showing
from pricekeeper.values import AppId, OrgId

TRIAL: Final = "TEST"
_DIGEST_BYTES: Final = 16
_encode_identity: Final = msgspec.msgpack.Encoder().encode


class AlertKind(StrEnum):
    """What an alert is about."""

    BUDGET = "BUDGET"
    QUOTA = "QUOTA"
    FALLBACK = "FALLBACK"
    EXHAUSTED = "EXHAUSTED"
    DENIALS = "DENIALS"
    UNSETTLED = "UNSETTLED"
    PRICE = "PRICE"
    AGGREGATOR_LAG = "AGGREGATOR_LAG"
    SECRET_AGE = "SECRET_AGE"  # noqa: S105 - a kind of alert
    ANOMALY = "ANOMALY"


class Owner(msgspec.Struct, frozen=True):
    """The owner of an alert or channel: one life of an organisation, or the deployment."""

    org_id: OrgId | None = None
    life: str = ""

    @property
    def key(self) -> str:
        """A part of keys. Ids contain neither ``#`` nor ``@``."""
        return "DEPLOYMENT" if self.org_id is None else f"ORG#{self.org_id}@{self.life}"


DEPLOYMENT: Final = Owner()


def owner_from(key: str) -> Owner:
    """Parse such a part of a key."""
    if key == DEPLOYMENT.key:
        return DEPLOYMENT
    org_id, _, life = key.removeprefix("ORG#").partition("@")
    return Owner(OrgId(org_id), life)


class Party(NamedTuple):
    """What a finding is about: an organisation, an app of it, or the deployment."""

    owner: Owner = DEPLOYMENT
    org_name: str | None = None
    app_id: AppId | None = None
    app_name: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """A fact for people, as texts with marks of `foreign`, and as data."""

    kind: AlertKind
    party: Party
    identity: tuple[str | int, ...]
    title: str
    text: str
    next_step: str
    about: dict[str, Any]
    lasts_until_ms: int
    """Until when the same thing can be found."""

    @property
    def owner(self) -> Owner:
        return self.party.owner

    @property
    def digest(self) -> str:
        packed = _encode_identity((self.kind.value, *self.identity))
        return hashlib.blake2b(packed, digest_size=_DIGEST_BYTES).hexdigest()


class Alert(msgspec.Struct, frozen=True):
    """A decided finding."""

    id: str
    """A UUIDv7, so ids are in the order of time."""
    at_ms: int
    finding: Finding


class DeliveryState(StrEnum):
    """The result of an alert at one channel, or at all of them."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    UNSENT = "unsent"
    """It had no channel, or its channel's queue was full."""


_WORST_FIRST: Final = tuple(map(DeliveryState, ("pending", "given_up", "unsent", "delivered")))


def joined_state(states: list[DeliveryState]) -> DeliveryState:
    """The first of these states in this order: pending, given up, unsent, delivered."""
    return min(states, key=_WORST_FIRST.index, default=DeliveryState.UNSENT)


Span: TypeAlias = tuple[int, int]
"""The first character of a foreign part, and the one after its last."""
_OPEN: Final = "\x02"
_CLOSE: Final = "\x03"
_MARKED: Final = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*+){_CLOSE}")
_JOINED: Final = re.compile(r"(?<=[.\u3002\uff0e\uff61:/@])(?=\S)")
"""After each character that makes a link or mention; four of them count as a dot (UTS 46)."""
BREAK: Final = "\u200b"


class Text(NamedTuple):
    """A text and its foreign parts."""

    plain: str
    foreign: list[Span]


def foreign(text: str) -> str:
    """Mark foreign text: one line, without control characters and direction marks."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return f"{_OPEN}{' '.join(printable.split())}{_CLOSE}"


def split(marked: str) -> Text:
    """Remove the marks, and return their positions."""
    plain, spans, at = "", list[Span](), 0
    for found in _MARKED.finditer(marked):
        plain += marked[at : found.start()]
        spans.append((len(plain), len(plain) + len(found[1])))
        plain, at = plain + found[1], found.end()
    return Text(plain + marked[at:], spans)


def unlinked(text: str) -> str:
    """Break links and mentions in a way that people do not see."""
    return _JOINED.sub(BREAK, text)


class AlertBody(msgspec.Struct, frozen=True):
    """An alert in the form that is sent."""

    id: str
    kind: str
    at: str
    title: str
    text: str
    next: str
    about: dict[str, Any]
    foreign: dict[str, list[Span]] = {}
    test: bool = False
    org_id: str | None = None
    org_name: str | None = None
    app_id: str | None = None
    app_name: str | None = None

    def shown(
        self, name: str, theirs: Callable[[str], str], ours: Callable[[str], str] = str
    ) -> str:
        """Format one of the three texts: foreign parts with ``theirs``, the rest with ``ours``."""
        text, at, shown = getattr(self, name), 0, ""
        for start, end in self.foreign.get(name, ()):
            shown += ours(text[at:start]) + theirs(text[start:end])
            at = end
        return shown + ours(text[at:])


encoded_body: Final = msgspec.json.Encoder().encode
parse_body: Final = msgspec.json.Decoder(AlertBody).decode


def alert_body(alert: Alert) -> bytes:
    """Encode an alert to send and store it."""
    finding, party = alert.finding, alert.finding.party
    return encoded_body(
        AlertBody(
            id=alert.id,
            kind=finding.kind.value,
            at=showing.rfc3339(alert.at_ms),
            about=finding.about,
            **_texts(title=finding.title, text=finding.text, next=finding.next_step),
            org_id=party.owner.org_id,
            org_name=party.org_name,
            app_id=party.app_id,
            app_name=party.app_name,
        )
    )


def trial_body(alert_id: str, at_ms: int, channel: str) -> bytes:
    """Encode a test of a channel."""
    return encoded_body(
        AlertBody(
            id=alert_id,
            kind=TRIAL,
            at=showing.rfc3339(at_ms),
            **_texts(
                title="Test: alerts of pricekeeper arrive here",
                text=f"This is a test of the channel {foreign(channel)}. You need to do nothing.",
                next="See the alerts so far: pricekeeper alerts list",
            ),
            about={"channel": channel},
            test=True,
        )
    )


def plain_words(alert: AlertBody) -> str:
    """An alert as plain text for programs that may look for links."""
    text, next_step = (alert.shown(name, unlinked) for name in ("text", "next"))
    return f"{text}\n\n{next_step}\n\n{alert.id}"


def _texts(**marked: str) -> dict[str, Any]:
    texts = {name: split(text) for name, text in marked.items()}
    spans = {name: text.foreign for name, text in texts.items() if text.foreign}
    return {**{name: text.plain for name, text in texts.items()}, "foreign": spans}
