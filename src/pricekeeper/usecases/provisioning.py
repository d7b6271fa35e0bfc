"""Organisations, apps, their secrets and overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from pricekeeper.authority import Attribution, Coverage
from pricekeeper.bootstrap import Services
from pricekeeper.credentials import Claimable, Provisioned, Retrieval
from pricekeeper.errors import ConflictError
from pricekeeper.metering import next_midnight_ms, org_day
from pricekeeper.tenants import Client, Freeze, Policy
from pricekeeper.usecases.describing import describe, moment
from pricekeeper.values import OrgId, parse_app_id, parse_model_label, parse_org_id, settings_tag
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire.settings import AlertsBody, BudgetBody, RateLimitBody
from pricekeeper.wire.values import rfc3339

Answer: TypeAlias = wire.OrgAnswer | wire.AppAnswer


async def put_client(
    services: Services, client: Client, settings: Mapping[str, Any], by: Attribution
) -> Answer:
    """Create an organisation or app, or replace its settings; credentials are never reset."""
    provisioned = await services.credentials.provision(client, settings, by)
    return _answer(provisioned.policy, provisioned)


async def patch_client(
    services: Services,
    client: Client,
    patch: Mapping[str, Any],
    by: Attribution,
    expected_tag: str | None = None,
) -> Answer:
    """Change some settings; null restores an organisation's default, or lets an app inherit.

    ``expected_tag``, a header ``If-Match``, must have one of the settings' ETags.
    """
    saved = await services.tenants.patch(client, patch, by, _check(expected_tag))
    changed = Provisioned(created=False, policy=saved.policy, retrieval=None)
    return _answer(saved.policy, changed)


async def read_client(services: Services, client: Client) -> Answer:
    """Read the settings of an organisation or app; an app's say which are inherited."""
    return _answer(await services.tenants.read_registered_policy(client))


async def list_orgs(
    services: Services, coverage: Coverage, after: str | None, limit: int
) -> wire.OrgList:
    """Read a page of the covered organisations."""
    start = None if after is None else parse_org_id(after, "after")
    page = await services.tenants.list_orgs(start, limit, among=coverage.org_ids)
    return wire.OrgList([_org(policy) for policy in page.policies], page.after or UNSET)


async def list_apps(
    services: Services, org_id: OrgId, after: str | None, limit: int
) -> wire.AppList:
    """Read a page of an organisation's apps."""
    start = None if after is None else parse_app_id(after, "after")
    page = await services.tenants.list_apps(org_id, start, limit)
    return wire.AppList([_app(policy) for policy in page.policies], page.after or UNSET)


async def issue_provisioning_key(
    services: Services, org_id: OrgId, by: Attribution
) -> wire.ProvisioningKey:
    """Give an organisation a provisioning key, which replaces the previous one."""
    key = await services.provisioning_keys.issue(org_id, by)
    return wire.ProvisioningKey(org_id, key.reveal())


async def rotate(
    services: Services, client: Client, body: wire.RotateBody, by: Attribution
) -> wire.Rotated:
    """Allow a new secret to be claimed; the old one works until then, and for the grace period."""
    rotation = await services.credentials.rotate(client, body.grace_period_hours, by)
    retrieval = _retrieval(rotation.retrieval)
    return wire.Rotated(rotation.client_id, retrieval, rotation.grace_period_hours)


async def claim(services: Services, token: str, by: Attribution) -> wire.Claimed:
    """Exchange a retrieval token for the secret, once."""
    return await complete_claim(services, await services.credentials.find_claim(token), by)


async def complete_claim(services: Services, claim: Claimable, by: Attribution) -> wire.Claimed:
    """As `claim`, with the token's record."""
    claimed = await services.credentials.complete_claim(claim, by)
    secret = claimed.client_secret.reveal()
    return describe(wire.Claimed, claimed, client_secret=secret)


async def put_override(
    services: Services, client: Client, body: wire.OverrideBody, by: Attribution
) -> wire.OverrideAnswer:
    """Use one label until the end of the organisation's day, regardless of quotas."""
    policy = await services.tenants.read_registered_policy(client)
    label = parse_model_label(body.model_label)
    override = await services.selection.set_override(policy, label, by)
    activated_at_ms = override.activated_at_epoch * 1000
    day = org_day(policy.timezone, activated_at_ms)
    until = rfc3339(next_midnight_ms(policy.timezone, activated_at_ms))
    return wire.OverrideAnswer(override.label, day, until)


async def delete_override(services: Services, client: Client, by: Attribution) -> None:
    """Let quotas decide again."""
    await services.selection.clear_override(
        await services.tenants.read_registered_policy(client), by
    )


def etag_of(answer: Answer) -> str:
    """The ETag of the settings in an answer."""
    return f'"{settings_tag(msgspec.to_builtins(answer))}"'


def matches(known: str | None, etag: str) -> bool:
    """Whether the ETag is in ``If-None-Match`` or ``If-Match``."""
    return known is not None and any(
        mark.strip().removeprefix("W/") == etag for mark in known.split(",")
    )


def _check(expected: str | None) -> Callable[[Policy], None]:
    """Refuse a change if the settings are not those that the caller has read."""

    def check(policy: Policy) -> None:
        if expected in (None, "*"):
            return
        if not matches(expected, etag_of(_answer(policy))):
            raise ConflictError("If-Match", "the settings have changed since; read them again")

    return check


def _configuration(policy: Policy) -> wire.Configuration:
    budgets = policy.org_budgets if policy.app_id is None else policy.budgets
    return describe(
        wire.Configuration,
        policy,
        quotas={str(label): quota for label, quota in policy.quotas.items()},
        rate_limits={
            label: {name: describe(RateLimitBody, limit) for name, limit in named.items()}
            for label, named in policy.rate_limits.items()
        },
        budgets=[
            # In the form of a request; a budget for all labels names none.
            describe(BudgetBody, one, labels=list(map(str, one.labels)) or None)
            for one in budgets
        ],
        alerts=describe(AlertsBody, policy.alerts),
    )


def _retrieval(retrieval: Retrieval) -> wire.SecretRetrieval:
    return describe(wire.SecretRetrieval, retrieval, token=retrieval.token.reveal())


def frozen_answer(freeze: Freeze) -> wire.Frozen:
    """Describe a freeze."""
    return describe(wire.Frozen, freeze, at=moment(freeze.frozen_at_epoch))


def _answer(policy: Policy, provisioned: Provisioned | None = None) -> Answer:
    more: dict[str, Any] = {}
    if provisioned is not None:
        more["status"] = "created" if provisioned.created else "updated"
        if provisioned.retrieval is not None:
            more["secret_retrieval"] = _retrieval(provisioned.retrieval)
    describe_client = _org if policy.app_id is None else _app
    return describe_client(policy, **more)


def _org(policy: Policy, **more: Any) -> wire.OrgAnswer:
    return describe(wire.OrgAnswer, policy, **_shared(policy), **more)


def _app(policy: Policy, **more: Any) -> wire.AppAnswer:
    name = policy.app_name or ""
    return describe(wire.AppAnswer, policy, app_name=name, **_shared(policy), **more)


def _shared(policy: Policy) -> dict[str, Any]:
    frozen = None if policy.freeze is None else frozen_answer(policy.freeze)
    return {"configuration": _configuration(policy), "frozen": frozen}
