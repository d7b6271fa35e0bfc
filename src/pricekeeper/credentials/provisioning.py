"""Registers clients: a client's settings and its retrieval token are written together.

`Tenants` creates clients and knows nothing of secrets; `Credentials` adds the retrieval token to
the same transaction. So the caller that wins a race of creations has a token that works, and there
is never a client without a way to get its secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pricekeeper.authority import Attribution
from pricekeeper.credentials.service import Credentials, Retrieval
from pricekeeper.tenants import Client, Policy, Saved, Tenants
from pricekeeper.values import AppId, OrgId


@dataclass(frozen=True, slots=True)
class Provisioned:
    """A client was created, with a retrieval token, or updated, without one."""

    created: bool
    policy: Policy
    retrieval: Retrieval | None


class Provisioning:
    """Creates and updates clients, with credentials."""

    def __init__(self, tenants: Tenants, credentials: Credentials) -> None:
        self._tenants = tenants
        self._credentials = credentials

    async def put_org(self, org_id: OrgId, body: Mapping[str, Any], by: Attribution) -> Provisioned:
        """Create the organisation, or replace its settings."""
        enrolment, retrieval = self._credentials.enrolment(Client(org_id), by)
        saved = await self._tenants.put_org(org_id, body, by, enrolment)
        return self._note_saved(saved, retrieval)

    async def put_app(
        self, org_id: OrgId, app_id: AppId, body: Mapping[str, Any], by: Attribution
    ) -> Provisioned:
        """Create the app, or replace what it overrides."""
        enrolment, retrieval = self._credentials.enrolment(Client(org_id, app_id), by)
        saved = await self._tenants.put_app(org_id, app_id, body, by, enrolment)
        return self._note_saved(saved, retrieval)

    def _note_saved(self, saved: Saved, retrieval: Retrieval) -> Provisioned:
        if not saved.created:
            return Provisioned(created=False, policy=saved.policy, retrieval=None)
        self._credentials.meter.retrievals_issued += 1
        return Provisioned(created=True, policy=saved.policy, retrieval=retrieval)
