"""Policies for the tests of this folder: three models, small round quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, ModelLabel, OrgId

PREMIUM, STANDARD, ECONOMY = map(ModelLabel, ("premium", "standard", "economy"))
TURBO = ModelLabel("turbo")
"""Known to the deployment, but in no order unless a test adds it."""
CHAIN = (PREMIUM, STANDARD, ECONOMY)
LABELS = (*CHAIN, TURBO)
QUOTAS = {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200, TURBO: 100}
ORG = OrgId("550e8400-e29b-41d4-a716-446655440000")
APP = AppId("api")

_POLICY = Policy(
    client=Client(ORG, APP),
    org_name="sample corp",
    app_name="the api",
    timezone="UTC",
    quota_scope=QuotaScope.APP,
    model_ordering=CHAIN,
    quotas=QUOTAS,
    sticky_fallback_enabled=True,
    agg_shard_count=8,
    tight_mode_threshold_pct=95,
    refresh_interval_normal_secs=300,
    refresh_interval_tight_secs=60,
    session_limit=5,
    rate_limits={},
    org_rate_limits={},
    inherited_fields=(),
    created_at_epoch=0,
    updated_at_epoch=0,
    token_generation="first",
    tokens_valid_from_epoch_ms=0,
    incarnation="life-1",
    org_incarnation="life-1",
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
