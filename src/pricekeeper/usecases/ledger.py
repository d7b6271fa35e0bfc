"""The check of the ledger, for an organisation and all of its apps."""

from __future__ import annotations

from pricekeeper.authorizations import Finding, LedgerCheck
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.values import AppId, OrgId


async def check_org(
    tenants: Tenants, ledger: LedgerCheck, org_id: OrgId, *, mend: bool = False
) -> list[Finding]:
    """Hold every budget of an organisation against the journal, and perhaps set it right."""
    policies: list[Policy] = [await tenants.read_policy(Client(org_id))]
    after: AppId | None = None
    while True:  # every page begins behind the one before
        page = await tenants.list_apps(org_id, after)
        policies += page.policies
        after = page.after
        if after is None:
            return await ledger.check(policies, mend=mend)
