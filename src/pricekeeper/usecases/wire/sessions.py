"""The sessions of a client."""

from __future__ import annotations

from pricekeeper.usecases.wire.values import Response


class SessionAnswer(Response, frozen=True):
    """A live session."""

    session_id: str
    created_at: str
    last_used_at: str
    expires_at: str
    user_agent: str
    address: str
    current: bool


class SessionList(Response, frozen=True):
    """The live sessions of a client, the oldest first."""

    sessions: list[SessionAnswer]
    limit: int
