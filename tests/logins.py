"""Logs a client in."""

from __future__ import annotations

from pricekeeper.tokens import Identity, TokenGrant


async def log_in(identity: Identity, client_id: str, secret: str, **labels: str) -> TokenGrant:
    return await identity.login(await identity.authenticate(client_id, secret), **labels)
