"""What an administrator can do when a client's secret has leaked, or when a client runs wild.

Each step is for one client, an organisation or one of its apps, and raises `NotFoundError` if there
is no such client. Each that changes something is handed an `Attribution`: who asked, from where and
why. That is in the entry of the audit trail which the change is made with.

Every step can be repeated: after a lost reply (`OutcomeUnknownError`) the same again is safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.credentials import Credentials
from pricekeeper.limiter import Limiter
from pricekeeper.sessions import Session
from pricekeeper.storage import Write
from pricekeeper.tenants import Client, Freeze, Policy, Tenants
from pricekeeper.tokens import Identity
from pricekeeper.values import Attribution


class Containment:
    """The steps, over the features that make the changes."""

    def __init__(
        self,
        trail: AuditTrail,
        tenants: Tenants,
        credentials: Credentials,
        identity: Identity,
        limiter: Limiter,
    ) -> None:
        self._trail = trail
        self._tenants = tenants
        self._credentials = credentials
        self._identity = identity
        self._limiter = limiter

    async def revoke_credentials(
        self, client: Client, by: Attribution, *, previous_only: bool = False
    ) -> None:
        """Stop the client's secrets, retrieval tokens, sessions and tokens, now."""
        await self._credentials.revoke_now(client, by, previous_only=previous_only)

    async def list_sessions(self, client: Client) -> tuple[Policy, tuple[Session, ...]]:
        """What holds for the client, and its live sessions, the oldest first."""
        policy = await self._tenants.get(client)
        return policy, await self._identity.list_sessions(client.client_id)

    async def end_session(self, client: Client, session_id: str, by: Attribution) -> None:
        """End one session and its tokens; `NotFoundError` if the client has no such session."""
        await self._tenants.read_record(client)
        await self._identity.end_session(client.client_id, session_id, by)

    async def end_all_sessions(self, client: Client, by: Attribution) -> None:
        """End every session and every token of the client; its secrets go on working."""
        await self._identity.end_all_sessions(client.client_id, by)

    async def freeze(self, client: Client, by: Attribution) -> Freeze:
        """Keep the client from getting models and tokens; an organisation's apps with it."""
        return await self._tenants.freeze(client, by)

    async def unfreeze(self, client: Client, by: Attribution) -> None:
        """Lift the client's own freeze, if it has one."""
        await self._tenants.unfreeze(client, by)

    async def reset_limits(self, client: Client, by: Attribution) -> list[str]:
        """Set the client's own token buckets to full: the labels that had one.

        An organisation's are those that all of its apps share. The buckets of each
        app are the app's: they are reset by naming the app, registered or not.
        """
        policy = await self._tenants.read_policy(client)

        async def commit(labels: list[str], operations: Sequence[Write]) -> None:
            told = {"labels": labels}
            change = Change("limits.reset", client.client_id, client.org_id, after=told)
            await self._trail.apply(by, change, operations)

        return await self._limiter.reset(policy.bucket_entity, commit=commit)
