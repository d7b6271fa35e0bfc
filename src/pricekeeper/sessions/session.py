"""Sessions, slots and refresh tokens as values with their rules. Pure.

A session lives in one of its subject's numbered slots, so there are never more live sessions than
slots. It is dead outside the *token generation* in which it was opened, so one write to the client
ends all its sessions.

A refresh token is a prefix and, in base64url, an HMAC with the text that it covers:
``{key}.{rotation}.{session}.{subject}``. A forged one is refused without a read. Only hashes are
stored: a token can be derived again from its slot, so a repeated call gets the same successor.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import unicodedata
from enum import Enum
from typing import Final, Protocol

import msgspec

from pricekeeper.errors import InvalidValueError

SLOTS_MAX: Final = 100
LABEL_LENGTH_MAX: Final = 256
REFRESH_TOKEN_SECS_MAX: Final = 30 * 86_400

_SESSION_ID: Final = re.compile(r"([0-9]{3})-([A-Za-z0-9_-]{22})")


class SessionId(msgspec.Struct, frozen=True):
    """A session's slot, to find it without a search, and 128 random bits."""

    slot: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.slot:03}-{self.nonce}"


def parse_session_id(text: str) -> SessionId | None:
    """Parse an id; ``None`` if it is none."""
    matched = _SESSION_ID.fullmatch(text)
    if matched is None or int(matched[1]) >= SLOTS_MAX:
        return None
    return SessionId(int(matched[1]), matched[2])


class Lifetimes(msgspec.Struct, frozen=True):
    """The longest idle time and life of a session, and the grace of a replaced refresh token.

    A refresh token lives as long as its session may be idle: each use gives a new one.
    """

    idle_secs: int = REFRESH_TOKEN_SECS_MAX
    absolute_secs: int = 90 * 86_400
    grace_ms: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.idle_secs <= min(self.absolute_secs, REFRESH_TOKEN_SECS_MAX):
            raise InvalidValueError("idle_secs", "must be positive, at most 30 days and absolute")
        if self.grace_ms < 0:
            raise InvalidValueError("grace_ms", "must not be negative")

    def end_epoch(self, opened_at_ms: int, used_at_ms: int) -> int:
        """The second in which a session ends that was opened and last used then."""
        return min(used_at_ms // 1000 + self.idle_secs, opened_at_ms // 1000 + self.absolute_secs)


class Labels(msgspec.Struct, frozen=True):
    """Descriptions of a session by its client; they prove nothing."""

    user_agent: str = ""
    address: str = ""


def make_labels(user_agent: str, address: str) -> Labels:
    """Labels without unprintable characters, cut to a length."""
    return Labels(_printable(user_agent), _printable(address))


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session as in its slot."""

    subject: str
    id: SessionId
    token_generation: str
    rotation: int
    key_id: str
    refresh_hash: str
    previous_hash: str
    opened_at_ms: int
    refreshed_at_ms: int
    ends_at_epoch: int = msgspec.field(name="expires_at_epoch")
    labels: Labels
    ended_at_ms: int = 0
    """Not 0 if it was ended early; it stays in its slot until that is reused."""


class Slots(msgspec.Struct, frozen=True):
    """A subject's slots at one reading, in its present token generation."""

    token_generation: str
    held: tuple[Session, ...]
    unreadable: frozenset[int] = frozenset()
    """They may hold a live session, so they are never used."""

    @property
    def live(self) -> tuple[Session, ...]:
        alive = (
            session
            for session in self.held
            if session.token_generation == self.token_generation and not session.ended_at_ms
        )
        return tuple(sorted(alive, key=lambda session: (session.opened_at_ms, session.id.slot)))

    def find(self, session_id: SessionId) -> Session | None:
        return next((session for session in self.live if session.id == session_id), None)

    def free(self, limit: int) -> dict[int, Session | None]:
        """The slots below the limit without a live session, with the dead session in each."""
        taken = {session.id.slot for session in self.live} | self.unreadable
        left = {session.id.slot: session for session in self.held}
        return {slot: left.get(slot) for slot in range(limit) if slot not in taken}

    def oldest(self, limit: int) -> Session | None:
        """The session to evict if all slots below the limit are taken; ``None`` if unreadable."""
        return next((session for session in self.live if session.id.slot < limit), None)

    def beyond(self, limit: int) -> tuple[Session, ...]:
        return tuple(session for session in self.live if session.id.slot >= limit)


def _printable(text: str) -> str:
    cut = text[:LABEL_LENGTH_MAX]
    return "".join(c for c in cut if not unicodedata.category(c).startswith("C")).strip()


REFRESH_TOKEN_LENGTH_MAX: Final = 512
REFRESH_TOKEN_PREFIX: Final = "pkrt_"  # noqa: S105 - what every token begins with

_SEAL_BYTES: Final = 32
_FIELDS: Final = 4


class RefreshKey(msgspec.Struct, frozen=True):
    """A secret that derives refresh tokens, and its public name."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"RefreshKey(id={self.id!r})"


class RefreshKeys(Protocol):
    """A source of keys that derive refresh tokens."""

    def current_refresh_key(self) -> RefreshKey: ...

    def find_refresh_key(self, key_id: str) -> RefreshKey | None: ...


class RefreshToken(msgspec.Struct, frozen=True):
    """A parsed genuine refresh token; its session may be dead."""

    subject: str
    session_id: SessionId
    rotation: int
    hash: str


class Verdict(Enum):
    """The result of checking a refresh token."""

    ROTATE = "current"
    REPLAY = "replaced a moment ago: the reply may be lost"
    REUSED = "replaced before: it may be stolen"
    ENDED = "its session has ended"


def judge(session: Session | None, token: RefreshToken, now_ms: int, grace_ms: int) -> Verdict:
    """Check a genuine refresh token against its slot."""
    if session is None or session.id != token.session_id or session.ended_at_ms:
        return Verdict.ENDED
    if session.refresh_hash == token.hash:
        return Verdict.ROTATE
    if session.previous_hash == token.hash and now_ms < session.refreshed_at_ms + grace_ms:
        return Verdict.REPLAY
    if token.rotation < session.rotation:
        return Verdict.REUSED
    return Verdict.ENDED  # ahead of the store: it may have been restored from a backup


def derive(key: RefreshKey, subject: str, session_id: SessionId, rotation: int) -> str:
    """The refresh token of that session after so many rotations."""
    body = f"{key.id}.{rotation}.{session_id}.{subject}".encode()
    return REFRESH_TOKEN_PREFIX + _encoded(_seal(key, body) + body)


def token_of(session: Session, key: RefreshKey) -> str:
    """The session's current refresh token, derived again."""
    return derive(key, session.subject, session.id, session.rotation)


def open_token(text: str, keys: RefreshKeys) -> RefreshToken | None:
    """Parse a token; ``None`` if it is not ours."""
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
        return None  # sealed by us in another form
    return RefreshToken(fields[3], session_id, int(fields[1]), hash_of(text))


def hash_of(token: str) -> str:
    """The stored hash of a refresh token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _seal(key: RefreshKey, body: bytes) -> bytes:
    return hmac.digest(key.secret, body, "sha256")


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """The bytes of a token; empty unless it has our exact spelling."""
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
