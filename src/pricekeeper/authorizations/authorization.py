"""An authorization: what it grants, what it holds, and what becomes of it. No I/O, no clock.

::

    open -> captured | voided | unsettled
                                unsettled -> captured | voided   (up to 24 h after it expired)

The grant never changes. What becomes of it is said by later sheets of the organisation's log, in
whose order each change happens once.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from pricekeeper.errors import ConflictError, InvalidValueError
from pricekeeper.storage import Key

LATE_MS_MAX: Final = 24 * 3_600_000
"""How long after it has expired an authorization can be settled."""
HOLD_MS_MAX: Final = 26 * 3_600_000
"""How far an authorization can be extended, from when it was granted."""

REQUESTS, TOKENS = "rpm", "tpm"
"""The limits that a call takes from if it does not say otherwise."""

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class State(StrEnum):
    """What has become of an authorization."""

    OPEN = "open"
    CAPTURED = "captured"
    VOIDED = "voided"
    UNSETTLED = "unsettled"


class HeldAccount(msgspec.Struct, frozen=True):
    """An account that an authorization is held against, by its item and its name in it."""

    key: Key
    id: str


class HeldBucket(msgspec.Struct, frozen=True):
    """A bucket that an authorization took tokens from."""

    entity: str
    terms: dict[str, str]
    """The limits that it took from, as they were then."""


class Considered(msgspec.Struct, frozen=True, array_like=True):
    """A label that was looked at, and why it was not taken; no reason for the one that was."""

    label: str
    because: str = ""


class GrantTerms(msgspec.Struct, frozen=True):
    """What the grants of one app and label have in common."""

    client_id: str
    app_id: str | None
    label: str
    accounts: tuple[HeldAccount, ...]
    buckets: tuple[HeldBucket, ...]
    keys: tuple[Key, ...]
    """The items of the accounts."""
    by_gateway: bool = False
    """Whether the gateway makes the calls, and so it alone settles them."""


class Grant(msgspec.Struct, frozen=True):
    """What an authorization allows, and what it holds for that."""

    terms: GrantTerms
    fingerprint: bytes
    """Of the request: the same request again gets the same grant."""
    reason: str
    held_usd_picos: int
    input_tokens: int
    """Of the prompt, at most as many as the model can read."""
    max_output_tokens: int
    authorized_at_ms: int
    tokens: dict[str, int]
    """What was taken from each bucket, by limit."""
    considered: tuple[Considered, ...] = ()
    tags: dict[str, str] = {}
    asked_as: str = ""
    """The id that the caller gave it, if it did."""


class Settlement(msgspec.Struct, frozen=True):
    """How an authorization was captured or voided."""

    at_ms: int
    fingerprint: bytes = b""
    """Of the capture: the same one again is a duplicate."""
    cost_usd_picos: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    pricing_version: str = ""
    org_day: str = ""
    price_estimated: bool = False
    reason: str = ""


class Authorization(msgspec.Struct, frozen=True):
    """A grant, and what has become of it."""

    id: str
    """Our own name for it, which says on which sheet it is."""
    grant: Grant
    state: State
    """As the log says. What is shown, and what may be done with it, depends on the time: `at`."""
    expires_at_ms: int
    settlement: Settlement | None = None
    outcome: str = ""
    """What the log says has become of it, as it says it; empty if nothing."""

    @property
    def shown_id(self) -> str:
        """The id by which its caller knows it, and by which its record counts."""
        return self.grant.asked_as or self.id

    def at(self, now_ms: int) -> Authorization:
        """The authorization at that time: unsettled from its expiry on.

        The log says so a little later, when a process has charged it.
        """
        if self.state is State.OPEN and self.expires_at_ms <= now_ms:
            return msgspec.structs.replace(self, state=State.UNSETTLED)
        return self

    def may_be_settled_at(self, now_ms: int) -> bool:
        """Whether its client is still in time to settle it."""
        return now_ms <= self.expires_at_ms + LATE_MS_MAX


def usual_tokens(input_tokens: int, max_output_tokens: int) -> dict[str, int]:
    """What a call takes from each bucket, by limit, if it does not say otherwise."""
    return {REQUESTS: 1, TOKENS: input_tokens + max_output_tokens}


def check_may_settle(grant: Grant, *, by_gateway: bool = False) -> None:
    """Raise `ConflictError` if an app would say what a call of the gateway has used."""
    if grant.terms.by_gateway and not by_gateway:
        raise ConflictError("authorization_id", "is a call's through the gateway, which settles it")


def parse_id(text: str, field: str = "authorization_id") -> str:
    """An id in canonical form; raises `InvalidValueError`."""
    if _CANONICAL.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidValueError(
            field, "must be a UUID such as 01928f7c-12ab-7c3d-8e4f-0123456789ab"
        ) from error
