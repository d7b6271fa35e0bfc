"""Refresh tokens: where a session lives, and a seal that only we can make.

A token is the prefix and, in base64url, an HMAC followed by what it seals:
``{key}.{rotation}.{session}.{subject}``. Nobody can make one up; a mistyped or forged one is
refused without asking the store; and a token can be derived again from what its slot says,
which is how a retry gets the same successor although only hashes are stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, Protocol

import msgspec

from pricekeeper.sessions.session import Session, SessionId, parse_session_id

REFRESH_TOKEN_LENGTH_MAX: Final = 512
REFRESH_TOKEN_PREFIX: Final = "pkrt_"  # noqa: S105 - what every token begins with

_SEAL_BYTES: Final = 32
_FIELDS: Final = 4


class RefreshKey(msgspec.Struct, frozen=True):
    """A secret that refresh tokens are derived with, and its public name."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"RefreshKey(id={self.id!r})"


class RefreshKeys(Protocol):
    """The source of the keys that refresh tokens are derived with."""

    def current_refresh_key(self) -> RefreshKey:
        """The key for new tokens."""
        ...

    def find_refresh_key(self, key_id: str) -> RefreshKey | None:
        """That key, as long as tokens derived with it may still be alive."""
        ...


class RefreshToken(msgspec.Struct, frozen=True):
    """A genuine refresh token, taken apart. Genuine does not mean that its session lives."""

    subject: str
    session_id: SessionId
    rotation: int
    hash: str


def derive(key: RefreshKey, subject: str, session_id: SessionId, rotation: int) -> str:
    """The refresh token of that session after so many rotations."""
    body = f"{key.id}.{rotation}.{session_id}.{subject}".encode()
    return REFRESH_TOKEN_PREFIX + _encoded(_seal(key, body) + body)


def token_of(session: Session, key: RefreshKey) -> str:
    """The session's current refresh token, made again."""
    return derive(key, session.subject, session.id, session.rotation)


def open_token(text: str, keys: RefreshKeys) -> RefreshToken | None:
    """Take a token apart; ``None`` if we never made it."""
    raw = _decoded(text)
    seal, body = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
    fields = body.decode("ascii", "replace").split(".", _FIELDS - 1)
    if len(fields) != _FIELDS:
        return None
    key = keys.find_refresh_key(fields[0])
    if key is None or not hmac.compare_digest(seal, _seal(key, body)):
        return None
    session_id = parse_session_id(fields[2])
    if session_id is None or not fields[1].isdigit():
        return None  # sealed by us, yet not of this shape: another version's, perhaps
    return RefreshToken(fields[3], session_id, int(fields[1]), hash_of(text))


def hash_of(token: str) -> str:
    """What the store knows a refresh token by."""
    return hashlib.sha256(token.encode()).hexdigest()


def _seal(key: RefreshKey, body: bytes) -> bytes:
    return hmac.digest(key.secret, body, "sha256")


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """The bytes of a token; none if it is not spelt exactly as we would."""
    if (
        len(text) > REFRESH_TOKEN_LENGTH_MAX
        or not text.startswith(REFRESH_TOKEN_PREFIX)
        or not text.isascii()
    ):
        return b""
    encoded = text.removeprefix(REFRESH_TOKEN_PREFIX)
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except binascii.Error:
        return b""
    return raw if _encoded(raw) == encoded else b""
