"""Organisations, apps, their secrets and overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from pricekeeper.authority import Attribution
from pricekeeper.bootstrap import Services
from pricekeeper.credentials import Claimable, Provisioned, Retrieval
from pricekeeper.errors import ConflictError
from pricekeeper.metering import next_midnight_ms, org_day
from pricekeeper.tenants import Freeze, Policy
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe, moment
from pricekeeper.values import parse_app_id, parse_model_label, parse_org_id, settings_tag
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire.settings import AlertsBody, BudgetBody, RateLimitBody
from pricekeeper.wire.values import rfc3339

Answer: TypeAlias = wire.OrgAnswer | wire.AppAnswer


async def put_client(ask: Ask) -> Answer:
    """Create an organisation or app, or replace its settings; credentials are never reset."""
    provision = ask.services.credentials.provision
    provisioned = await provision(ask.client, ask.body, ask.by_query)
    return _answer(provisioned.policy, provisioned)


async def patch_client(ask: Ask) -> Answer:
    """Change some settings; null restores an organisation's default, or lets an app inherit.

    A header ``If-Match`` must have one of the settings' ETags.
    """
    check = _check(ask.expected_tag)
    saved = await ask.services.tenants.patch(ask.client, ask.body, ask.by_query, check)
    changed = Provisioned(created=False, policy=saved.policy, retrieval=None)
    return _answer(saved.policy, changed)


async def read_client(ask: Ask) -> Answer:
    """Read the settings of an organisation or app; an app's say which are inherited."""
    return _answer(await ask.services.tenants.read_registered_policy(ask.client))


async def list_orgs(ask: Ask) -> wire.OrgList:
    """Read a page of the covered organisations."""
    after, limit = ask.page
    start = None if after is None else parse_org_id(after, "after")
    page = await ask.services.tenants.list_orgs(start, limit, among=ask.coverage.org_ids)
    return wire.OrgList([_org(policy) for policy in page.policies], page.after or UNSET)


async def list_apps(ask: Ask) -> wire.AppList:
    """Read a page of an organisation's apps."""
    after, limit = ask.page
    start = None if after is None else parse_app_id(after, "after")
    page = await ask.services.tenants.list_apps(ask.org_id, start, limit)
    return wire.AppList([_app(policy) for policy in page.policies], page.after or UNSET)


async def issue_provisioning_key(ask: Ask) -> wire.ProvisioningKey:
    """Give an organisation a provisioning key, which replaces the previous one."""
    key = await ask.services.provisioning_keys.issue(ask.org_id, ask.by())
    return wire.ProvisioningKey(ask.org_id, key.reveal())


async def rotate(ask: Ask) -> wire.Rotated:
    """Allow a new secret to be claimed; the old one works until then, and for the grace period."""
    hours = ask.body.grace_period_hours
    rotation = await ask.services.credentials.rotate(ask.client, hours, ask.by_query)
    return describe(wire.Rotated, rotation, secret_retrieval=_retrieval(rotation.retrieval))


async def claim(ask: Ask) -> wire.Claimed:
    """Exchange a retrieval token for the secret, once."""
    found = await ask.services.credentials.find_claim(ask.body.token)
    return await complete_claim(ask.services, found, ask.by())


async def complete_claim(services: Services, claim: Claimable, by: Attribution) -> wire.Claimed:
    """As `claim`, with the token's record."""
    claimed = await services.credentials.complete_claim(claim, by)
    secret = claimed.client_secret.reveal()
    return describe(wire.Claimed, claimed, client_secret=secret)


async def put_override(ask: Ask) -> wire.OverrideAnswer:
    """Use one label until the end of the organisation's day, regardless of quotas."""
    services, by = ask.services, ask.by_query
    policy = await services.tenants.read_registered_policy(ask.client)
    label = parse_model_label(ask.body.model_label)
    override = await services.selection.set_override(policy, label, by)
    activated_at_ms = override.activated_at_epoch * 1000
    day = org_day(policy.timezone, activated_at_ms)
    until = rfc3339(next_midnight_ms(policy.timezone, activated_at_ms))
    return wire.OverrideAnswer(override.label, day, until)


async def delete_override(ask: Ask) -> None:
    """Let quotas decide again."""
    services, by = ask.services, ask.by_query
    policy = await services.tenants.read_registered_policy(ask.client)
    await services.selection.clear_override(policy, by)


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
