"""Sessions of clients, at most N live ones for each."""

from pricekeeper.sessions.items import generation_of, slot_key
from pricekeeper.sessions.meter import SessionsMeter
from pricekeeper.sessions.opening import Login, Opened
from pricekeeper.sessions.service import Sessions
from pricekeeper.sessions.session import (
    REFRESH_TOKEN_PREFIX,
    REFRESH_TOKEN_SECS_MAX,
    Labels,
    Lifetimes,
    RefreshKey,
    RefreshToken,
    Session,
    SessionId,
    make_labels,
    parse_session_id,
)

__all__ = [
    "REFRESH_TOKEN_PREFIX",
    "REFRESH_TOKEN_SECS_MAX",
    "Labels",
    "Lifetimes",
    "Login",
    "Opened",
    "RefreshKey",
    "RefreshToken",
    "Session",
    "SessionId",
    "Sessions",
    "SessionsMeter",
    "generation_of",
    "make_labels",
    "parse_session_id",
    "slot_key",
]
