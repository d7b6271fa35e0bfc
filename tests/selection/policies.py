"""Policies for the tests of this folder: three models, small round quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metering.conftest import APP, ECONOMY, PREMIUM, STANDARD, a_policy
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import ModelLabel, OrgId

__all__ = ["APP", "ECONOMY", "PREMIUM", "STANDARD"]

TURBO = ModelLabel("turbo")
"""Known to the deployment, but in no order unless a test adds it."""
CHAIN = (PREMIUM, STANDARD, ECONOMY)
LABELS = (*CHAIN, TURBO)
QUOTAS = {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200, TURBO: 100}
ORG = OrgId("550e8400-e29b-41d4-a716-446655440000")

_POLICY = a_policy(
    APP, org_id=ORG, org_name="sample corp", app_name="the api", model_ordering=CHAIN, quotas=QUOTAS
)


def policy(
    *,
    client: Client = _POLICY.client,
    ordering: Sequence[str] = CHAIN,
    quotas: Mapping[ModelLabel, int] = QUOTAS,
    sticky: bool = True,
    tight_pct: int = 95,
    scope: QuotaScope = QuotaScope.APP,
    timezone: str = "UTC",
) -> Policy:
    """Give a policy that differs from the usual one as named."""
    return replace(
        _POLICY,
        client=client,
        model_ordering=tuple(map(ModelLabel, ordering)),
        quotas=quotas,
        sticky_fallback_enabled=sticky,
        tight_mode_threshold_pct=tight_pct,
        quota_scope=scope,
        timezone=timezone,
    )
