"""What is found, and the alert that is decided because of it. No I/O, no clock.

A finding has an **identity**: what tells it from every other finding of its kind. Whoever finds the
same again, on any instance and at any time, finds the same identity; so an alert is decided once
for each.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Final

import msgspec

from pricekeeper.values import AppId, OrgId

_DIGEST_BYTES: Final = 16
_encode_identity: Final = msgspec.msgpack.Encoder().encode


class AlertKind(StrEnum):
    """What an alert is about."""

    BUDGET = "BUDGET"
    """What is charged to a budget has reached a threshold of it."""
    QUOTA = "QUOTA"
    """What is spent of a quota has reached a threshold of it."""
    FALLBACK = "FALLBACK"
    """A label is spent, and another one takes over."""
    EXHAUSTED = "EXHAUSTED"
    """Every label is spent."""
    DENIALS = "DENIALS"
    """Much of what an app asks for is denied."""
    UNSETTLED = "UNSETTLED"
    """Much of what an organisation is charged for was never settled."""
    PRICE = "PRICE"
    """A price is not known, or was estimated."""
    AGGREGATOR_LAG = "AGGREGATOR_LAG"
    """The totals are not brought up to date."""
    SECRET_AGE = "SECRET_AGE"  # noqa: S105 - a kind of alert
    """A client's secret is old."""
    ANOMALY = "ANOMALY"
    """Far more is spent than usual."""


class Owner(msgspec.Struct, frozen=True):
    """Whose an alert or a channel is: an organisation's in one life of it, or the deployment's."""

    org_id: OrgId | None = None
    life: str = ""

    @property
    def key(self) -> str:
        """The owner as a part of keys. No id has a ``#`` or an ``@`` in it."""
        return "DEPLOYMENT" if self.org_id is None else f"ORG#{self.org_id}@{self.life}"


DEPLOYMENT: Final = Owner()


def owner_from(key: str) -> Owner:
    """The owner that such a part of a key names."""
    if key == DEPLOYMENT.key:
        return DEPLOYMENT
    org_id, _, life = key.removeprefix("ORG#").partition("@")
    return Owner(OrgId(org_id), life)


class Finding(msgspec.Struct, frozen=True):
    """Something that people should know, in words with the marks of `parts`, and as data."""

    kind: AlertKind
    owner: Owner
    identity: tuple[str | int, ...]
    title: str
    text: str
    next_step: str
    about: dict[str, Any]
    """The facts, as JSON has them; each kind has its own."""
    lasts_until_ms: int
    """Until when the same can be found again."""
    org_name: str | None = None
    app_id: AppId | None = None
    app_name: str | None = None

    @property
    def digest(self) -> str:
        """The identity as a key."""
        packed = _encode_identity((self.kind.value, *self.identity))
        return hashlib.blake2b(packed, digest_size=_DIGEST_BYTES).hexdigest()


class Alert(msgspec.Struct, frozen=True):
    """A finding that was decided to be told."""

    id: str
    """A UUID of version 7: alerts are in the order of their ids."""
    at_ms: int
    finding: Finding


class DeliveryState(StrEnum):
    """What became of an alert at one channel, or at all of them together."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    UNSENT = "unsent"
    """There was nobody to tell, or the channel had too many that waited."""


_WORST_FIRST: Final = tuple(map(DeliveryState, ("pending", "given_up", "unsent", "delivered")))


def joined_state(states: list[DeliveryState]) -> DeliveryState:
    """The state of an alert by those of its deliveries: what is still to be done comes first."""
    for state in _WORST_FIRST:
        if state in states:
            return state
    return DeliveryState.UNSENT
