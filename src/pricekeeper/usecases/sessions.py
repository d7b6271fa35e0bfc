"""The live sessions of a client."""

from __future__ import annotations

from collections.abc import Sequence

from pricekeeper.bootstrap import Services
from pricekeeper.sessions import Session
from pricekeeper.tenants import Client
from pricekeeper.wire.provisioning import SessionAnswer, SessionList
from pricekeeper.wire.values import rfc3339


async def list_sessions(services: Services, client: Client, current_id: str = "") -> SessionList:
    """Read the live sessions, the oldest first; ``current_id`` is the one that asks."""
    policy = await services.tenants.find_registered_policy(client.org_id, client.app_id)
    sessions = await services.identity.list_sessions(client.client_id)
    return session_list(sessions, policy.session_limit, current_id)


def session_list(sessions: Sequence[Session], limit: int, current_id: str = "") -> SessionList:
    """Describe live sessions."""
    answers = [
        SessionAnswer(
            session_id=str(session.id),
            created_at=rfc3339(session.opened_at_ms),
            last_used_at=rfc3339(session.refreshed_at_ms),
            expires_at=rfc3339(session.ends_at_epoch * 1000),
            user_agent=session.labels.user_agent,
            address=session.labels.address,
            current=str(session.id) == current_id,
        )
        for session in sessions
    ]
    return SessionList(answers, limit)
