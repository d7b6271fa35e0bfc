"""A session and its rules: which slot a login takes, and what a refresh token is good for.

Pure: values in, values out. A subject has numbered slots and a session lives in exactly one of
them, so there can't be more live sessions than slots, whatever races. A session also belongs
to the *token generation* that its client had when it was opened, and is dead in any other: so
everything a client holds ends with one write to the client, and no clocks are compared.
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum
from typing import Final

import msgspec

from pricekeeper.errors import InvalidValueError

SLOTS_MAX: Final = 100
LABEL_LENGTH_MAX: Final = 256
REFRESH_TOKEN_SECS_MAX: Final = 30 * 86_400

_SESSION_ID: Final = re.compile(r"([0-9]{3})-([A-Za-z0-9_-]{22})")


class SessionId(msgspec.Struct, frozen=True):
    """A session's name: its slot, so that it is found without searching, and 128 random bits."""

    slot: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.slot:03}-{self.nonce}"


def parse_session_id(text: str) -> SessionId | None:
    """The id that this text is, if it is one."""
    matched = _SESSION_ID.fullmatch(text)
    if matched is None or int(matched[1]) >= SLOTS_MAX:
        return None
    return SessionId(int(matched[1]), matched[2])


class Lifetimes(msgspec.Struct, frozen=True):
    """How long a session lasts: unused, and at most; and how long a spent token is forgiven.

    A refresh token lives as long as its session may idle: each use gives a new one.
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
        """The second from which a session opened and last used then is over."""
        return min(used_at_ms // 1000 + self.idle_secs, opened_at_ms // 1000 + self.absolute_secs)


class Labels(msgspec.Struct, frozen=True):
    """What a session is shown as. Told by the client, so it proves nothing."""

    user_agent: str = ""
    address: str = ""


def make_labels(user_agent: str, address: str) -> Labels:
    """Labels cut to a length and stripped of what could not be shown or stored."""
    return Labels(_printable(user_agent), _printable(address))


class Session(msgspec.Struct, frozen=True):
    """One session, as its slot holds it."""

    subject: str
    id: SessionId
    token_generation: str
    """The client's token generation when the session was opened."""
    rotation: int
    """How often its refresh token has been replaced."""
    key_id: str
    """The id of the key that its current refresh token is derived with."""
    refresh_hash: str
    previous_hash: str
    """The hash of the refresh token before; empty if there was none."""
    opened_at_ms: int
    refreshed_at_ms: int
    ends_at_epoch: int
    labels: Labels
    ended_at_ms: int = 0
    """Not 0 if it was ended before its time. It keeps its slot then until somebody takes it."""


class Slots(msgspec.Struct, frozen=True):
    """A subject's slots as they were at one reading, seen from its present token generation."""

    token_generation: str
    held: tuple[Session, ...]
    """What is in them, alive or not. The store leaves out expired ones."""
    unreadable: frozenset[int] = frozenset()
    """Slots that can't be read. Whether a session lives there is not known: none is put there."""

    @property
    def live(self) -> tuple[Session, ...]:
        """The sessions of this generation that nobody has ended, oldest first."""
        alive = (
            session
            for session in self.held
            if session.token_generation == self.token_generation and not session.ended_at_ms
        )
        return tuple(sorted(alive, key=lambda session: (session.opened_at_ms, session.id.slot)))

    def find(self, session_id: SessionId) -> Session | None:
        """That session, if it is live."""
        return next((session for session in self.live if session.id == session_id), None)

    def free(self, limit: int) -> dict[int, Session | None]:
        """The slots below the limit that hold no live session, with what is left in them."""
        taken = {session.id.slot for session in self.live} | self.unreadable
        left = {session.id.slot: session for session in self.held}
        return {slot: left.get(slot) for slot in range(limit) if slot not in taken}

    def oldest(self, limit: int) -> Session | None:
        """Who has to go when every slot below the limit is taken; ``None`` if none can be read."""
        return next((session for session in self.live if session.id.slot < limit), None)

    def beyond(self, limit: int) -> tuple[Session, ...]:
        """Live sessions in slots that a lowered limit has taken away."""
        return tuple(session for session in self.live if session.id.slot >= limit)


class Verdict(Enum):
    """What a presented refresh token is worth."""

    ROTATE = "it is the current one"
    REPLAY = "it was spent a moment ago: its owner may not have heard"
    REUSED = "it was spent before: somebody else may hold it"
    ENDED = "its session is over"


def judge(
    session: Session | None,
    session_id: SessionId,
    presented_hash: str,
    rotation: int,
    *,
    now_ms: int,
    grace_ms: int,
) -> Verdict:
    """Judge a genuine refresh token by what its slot holds now."""
    if session is None or session.id != session_id or session.ended_at_ms:
        return Verdict.ENDED
    if session.refresh_hash == presented_hash:
        return Verdict.ROTATE
    if session.previous_hash == presented_hash and now_ms < session.refreshed_at_ms + grace_ms:
        return Verdict.REPLAY
    if rotation < session.rotation:
        return Verdict.REUSED
    return Verdict.ENDED  # ahead of the store: it may have been restored from a backup


def _printable(text: str) -> str:
    cut = text[:LABEL_LENGTH_MAX]
    return "".join(c for c in cut if not unicodedata.category(c).startswith("C")).strip()
