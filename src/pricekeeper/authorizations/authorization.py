"""An authorization: what it grants, what it holds, and what becomes of it. No I/O, no clock.

::

    open -> captured | voided | unsettled
                                unsettled -> captured | voided   (up to 24 h after it expired)

The grant never changes. What changes is the state, with the nonce of whoever changed it last. A
change is written on the condition that both are as they were seen. So each happens once, and
whoever lost the reply knows its own change again.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import Key

HOLD_SECS_RANGE: Final = (10, 3_600)
HOLD_SECS_DEFAULT: Final = 900
LATE_MS_MAX: Final = 24 * 3_600_000
"""How long after it has expired an authorization can be settled."""
HOLD_MS_MAX: Final = 26 * 3_600_000
"""How far an authorization can be extended, from when it was granted."""

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION: Final = 8
_RANDOM_BITS: Final = 74


class State(StrEnum):
    """What has become of an authorization."""

    OPEN = "open"
    CAPTURED = "captured"
    VOIDED = "voided"
    UNSETTLED = "unsettled"


class HeldAccount(msgspec.Struct, frozen=True, array_like=True):
    """An account that an authorization is held against, by its item and its name in it."""

    pk: str
    sk: str
    id: str

    @property
    def key(self) -> Key:
        """The item that it is in."""
        return Key(self.pk, self.sk)


class HeldTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that an authorization took from a bucket."""

    entity: str
    tokens: dict[str, int]
    terms: dict[str, str]
    """The limits as they were then."""


class Considered(msgspec.Struct, frozen=True, array_like=True):
    """A label that was looked at, and why it was not taken; no reason for the one that was."""

    label: str
    because: str = ""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What an authorization allows, and what it holds for that."""

    fingerprint: bytes
    """Of the request: the same request again gets the same grant."""
    client_id: str
    app_id: str | None
    label: str
    reason: str
    held_usd_picos: int
    accounts: tuple[HeldAccount, ...]
    buckets: tuple[HeldTokens, ...]
    input_tokens: int
    max_output_tokens: int
    authorized_at_ms: int
    considered: tuple[Considered, ...] = ()
    tags: dict[str, str] = {}
    asked_as: str = ""
    """The id that the caller gave it, if it did."""


class Settlement(msgspec.Struct, frozen=True, array_like=True):
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
    """Our own name for it, which says where it is."""
    grant: Grant
    state: State
    expires_at_ms: int
    nonce: bytes
    settlement: Settlement | None = None

    @property
    def shown_id(self) -> str:
        """The id by which its caller knows it, and by which its record counts."""
        return self.grant.asked_as or self.id

    @property
    def held_usd_picos(self) -> int:
        return self.grant.held_usd_picos


def new_authorization_id(epoch_ms: int, random: int) -> str:
    """An id that says when it was made. Its version, 8, tells it from ids of usage records."""
    low = random & (1 << _RANDOM_BITS) - 1
    value = epoch_ms << 80 | _VERSION << 76 | (low >> 62) << 64
    digits = f"{value | 0b10 << 62 | low & (1 << 62) - 1:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_own_id(authorization_id: str) -> bool:
    """Whether we made that id, which is in canonical form."""
    return authorization_id[14] == str(_VERSION)


def minted_ms(authorization_id: str) -> int:
    """When one of our ids was made."""
    return int(authorization_id[:8] + authorization_id[9:13], 16)


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


def fingerprint_of(client_id: str, body: bytes) -> bytes:
    """Equal exactly for the same request of the same client."""
    return hashlib.blake2b(client_id.encode() + b"\0" + body, digest_size=16).digest()
