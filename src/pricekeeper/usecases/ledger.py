"""The check of the ledger, for an organisation and all of its apps."""

from __future__ import annotations

from functools import partial

from pricekeeper.authorizations import Finding, LedgerCheck
from pricekeeper.tenants import Client, Policy, Tenants
from pricekeeper.tenants.listing import read_pages
from pricekeeper.values import OrgId


async def check_org(
    tenants: Tenants, ledger: LedgerCheck, org_id: OrgId, *, mend: bool = False
) -> list[Finding]:
    """Hold every budget of an organisation against the journal, and perhaps set it right."""
    policies: list[Policy] = [await tenants.read_policy(Client(org_id))]
    async for page in read_pages(partial(tenants.list_apps, org_id)):
        policies += page.policies
    return await ledger.check(policies, mend=mend)
