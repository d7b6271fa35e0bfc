"""Provisioning: organisations, apps, their credentials and overrides, with the provisioning key."""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.credentials import Provisioned, Retrieval
from pricekeeper.errors import FieldError, InvalidValueError, NotFoundError, RequestRefusedError
from pricekeeper.http.edge import read_body, strict_json
from pricekeeper.http.gate import count_failure, limit_client
from pricekeeper.http.operation import Access, Answer, Call, Operation, Parameter
from pricekeeper.metering import next_midnight_ms, org_day
from pricekeeper.tenants import Client, Freeze, Policy
from pricekeeper.usecases.wire import provisioning as wire
from pricekeeper.usecases.wire.values import APP_ID, rfc3339
from pricekeeper.values import OrgId, parse_app_id, parse_model_label, parse_org_id

PAGE_DEFAULT: Final = 100

SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Room for limits of their own for every model label."""
_ORG: Final = "/api/v1/orgs/{org_id}"
_APP: Final = "/api/v1/orgs/{org_id}/apps/{app_id}"
_AFTER: Final = "The `next` of the page before."
_LIMIT: Final = Parameter(
    "limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 100}
)
_ORG_PAGES: Final = (Parameter("after", _AFTER, {"type": "string", "format": "uuid"}), _LIMIT)
_APP_PAGES: Final = (
    Parameter("after", _AFTER, {"type": "string", "pattern": APP_ID}),
    _LIMIT,
)


async def put_org(call: Call) -> Answer:
    """Create an organisation or replace its settings; credentials are never reset."""
    body = await _object(call)
    provisioned = await call.services.provisioning.put_org(call.org_id, body)
    return Answer(_status(provisioned), _org(provisioned.policy, provisioned))


async def get_org(call: Call) -> Answer:
    """An organisation's settings."""
    return Answer(200, _org(await call.services.tenants.get(Client(call.org_id))))


async def list_orgs(call: Call) -> Answer:
    """Every organisation, page by page."""
    after, limit = _page(call)
    start = None if after is None else parse_org_id(after, "after")
    if call.key_org_id is not None:
        return await _own_org(call, call.key_org_id, start)
    page = await call.services.tenants.list_orgs(start, limit)
    more = {"next": str(page.after)} if page.after is not None else {}
    return Answer(200, wire.OrgList([_org(policy) for policy in page.policies], **more))


async def _own_org(call: Call, org_id: OrgId, start: OrgId | None) -> Answer:
    """The list as an organisation's own key sees it."""
    if start is not None and start >= org_id:
        return Answer(200, wire.OrgList([]))
    return Answer(200, wire.OrgList([_org(await call.services.tenants.get(Client(org_id)))]))


async def issue_provisioning_key(call: Call) -> Answer:
    """Give an organisation a provisioning key of its own, which replaces the one it had."""
    key = await call.services.provisioning_keys.issue(call.org_id)
    body = wire.ProvisioningKey(call.org_id, key.reveal())
    return Answer(201, body, ((b"cache-control", b"no-store"),))


async def withdraw_provisioning_key(call: Call) -> Answer:
    """Stop an organisation's own provisioning key from working."""
    await call.services.provisioning_keys.withdraw(call.org_id)
    return Answer(204)


async def delete_org(call: Call) -> Answer:
    """End an organisation and its apps; their tokens stop working."""
    await call.services.tenants.delete_org(call.org_id)
    return Answer(204)


async def put_app(call: Call) -> Answer:
    """Create an app or replace what it overrides; credentials are never reset."""
    body = await _object(call)
    provisioned = await call.services.provisioning.put_app(call.org_id, call.app_id, body)
    return Answer(_status(provisioned), _app(provisioned.policy, provisioned))


async def get_app(call: Call) -> Answer:
    """An app's settings, and which of them are inherited."""
    return Answer(200, _app(await call.services.tenants.get(Client(call.org_id, call.app_id))))


async def list_apps(call: Call) -> Answer:
    """Every app of an organisation, page by page."""
    after, limit = _page(call)
    start = None if after is None else parse_app_id(after, "after")
    page = await call.services.tenants.list_apps(call.org_id, start, limit)
    more = {"next": str(page.after)} if page.after is not None else {}
    return Answer(200, wire.AppList([_app(policy) for policy in page.policies], **more))


async def delete_app(call: Call) -> Answer:
    """End an app; its tokens stop working."""
    await call.services.tenants.delete_app(call.org_id, call.app_id, call.key_org_id)
    return Answer(204)


async def rotate(call: Call) -> Answer:
    """Let a new secret be claimed; the old one works until then, and for the grace after."""
    client = Client(call.org_id, call.app_id_or_none)
    rotation = await call.services.credentials.rotate(client, call.body.grace_period_hours)
    return Answer(
        200,
        wire.Rotated(
            rotation.client_id, _retrieval(rotation.retrieval), rotation.grace_period_hours
        ),
    )


async def claim_secret(call: Call) -> Answer:
    """Turn a retrieval token into the secret, once."""
    credentials = call.services.credentials
    try:
        claim = await credentials.find_claim(call.body.token)
        await limit_client(call, claim.client_id)
        claimed = await credentials.complete_claim(claim)
    except NotFoundError:
        await count_failure(call)
        raise
    more = {}
    if claimed.old_secret_expires_at_epoch is not None:
        more["old_secret_expires_at"] = rfc3339(claimed.old_secret_expires_at_epoch * 1000)
    body = wire.Claimed(claimed.client_id, claimed.client_secret.reveal(), **more)
    return Answer(200, body, ((b"cache-control", b"no-store"),))


async def put_override(call: Call) -> Answer:
    """Have one label used until the end of the organisation's day, whatever was spent."""
    policy = await call.services.tenants.get(Client(call.org_id, call.app_id_or_none))
    label = parse_model_label(call.body.model_label)
    override = await call.services.selection.set_override(policy, label)
    activated_at_ms = override.activated_at_epoch * 1000
    day = org_day(policy.timezone, activated_at_ms)
    until = rfc3339(next_midnight_ms(policy.timezone, activated_at_ms))
    return Answer(200, wire.OverrideAnswer(override.label, day, until))


async def delete_override(call: Call) -> Answer:
    """Let quotas decide again."""
    policy = await call.services.tenants.get(Client(call.org_id, call.app_id_or_none))
    await call.services.selection.clear_override(policy)
    return Answer(204)


def _status(provisioned: Provisioned) -> int:
    return 201 if provisioned.created else 200


async def _object(call: Call) -> dict[str, Any]:
    """The body as plain JSON: settings have their own parser, which names every bad field."""
    plain = strict_json(await read_body(call.request, SETTINGS_BYTES_MAX))
    if not isinstance(plain, dict):
        mistake = FieldError("", "expected an object")
        raise RequestRefusedError("the body must be a JSON object", (mistake,))
    return plain


def _page(call: Call) -> tuple[str | None, int]:
    query = call.request.query
    text = query.get("limit", str(PAGE_DEFAULT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_DEFAULT:
        raise InvalidValueError("limit", f"must be from 1 to {PAGE_DEFAULT}")
    return query.get("after"), int(text)


def _configuration(policy: Policy) -> wire.Configuration:
    return wire.Configuration(
        timezone=policy.timezone,
        quota_scope=policy.quota_scope,
        model_ordering=list(policy.model_ordering),
        quotas={str(label): quota for label, quota in policy.quotas.items()},
        sticky_fallback_enabled=policy.sticky_fallback_enabled,
        agg_shard_count=policy.agg_shard_count,
        tight_mode_threshold_pct=policy.tight_mode_threshold_pct,
        refresh_interval_normal_secs=policy.refresh_interval_normal_secs,
        refresh_interval_tight_secs=policy.refresh_interval_tight_secs,
        session_limit=policy.session_limit,
        rate_limits={
            label: {
                name: wire.RateLimitBody(
                    limit.capacity, limit.refill_amount, limit.refill_period_ms
                )
                for name, limit in named.items()
            }
            for label, named in policy.rate_limits.items()
        },
    )


def _retrieval(retrieval: Retrieval) -> wire.SecretRetrieval:
    return wire.SecretRetrieval(
        retrieval.token.reveal(), rfc3339(retrieval.expires_at_epoch * 1000)
    )


def frozen_answer(freeze: Freeze) -> wire.Frozen:
    """The freeze as answers show it."""
    return wire.Frozen(freeze.reason, rfc3339(freeze.frozen_at_epoch * 1000), freeze.scope)


def _outcome(policy: Policy, provisioned: Provisioned | None) -> dict[str, Any]:
    """What an answer says beyond the settings: times, and after a PUT what came of it."""
    more: dict[str, Any] = {
        "created_at": rfc3339(policy.created_at_epoch * 1000),
        "updated_at": rfc3339(policy.updated_at_epoch * 1000),
    }
    if policy.client_secret_created_at_epoch is not None:
        more["client_secret_created_at"] = rfc3339(policy.client_secret_created_at_epoch * 1000)
    if policy.freeze is not None:
        more["frozen"] = frozen_answer(policy.freeze)
    if provisioned is not None:
        more["status"] = "created" if provisioned.created else "updated"
        if provisioned.retrieval is not None:
            more["secret_retrieval"] = _retrieval(provisioned.retrieval)
    return more


def _org(policy: Policy, provisioned: Provisioned | None = None) -> wire.OrgAnswer:
    return wire.OrgAnswer(
        policy.org_id,
        policy.org_name,
        policy.client_id,
        _configuration(policy),
        **_outcome(policy, provisioned),
    )


def _app(policy: Policy, provisioned: Provisioned | None = None) -> wire.AppAnswer:
    return wire.AppAnswer(
        policy.org_id,
        str(policy.app_id),
        policy.app_name or "",
        policy.client_id,
        _configuration(policy),
        list(policy.inherited_fields),
        **_outcome(policy, provisioned),
    )


def _provisioning(method: str, path: str, name: str, handler: Any, **more: Any) -> Operation:
    summary = (handler.__doc__ or "").strip()
    limit = more.pop("limit", "provisioning")
    access = more.pop("access", Access.PROVISIONING)
    return Operation(
        method, path, name, summary, handler, access, tag="provisioning", limit=limit, **more
    )


OPERATIONS: Final = (
    _provisioning(
        "GET", "/api/v1/orgs", "listOrgs", list_orgs, answers={200: wire.OrgList}, query=_ORG_PAGES
    ),
    _provisioning(
        "PUT",
        _ORG,
        "putOrg",
        put_org,
        answers={200: wire.OrgAnswer, 201: wire.OrgAnswer},
        body=wire.OrgBody,
        reads_body=True,
        problems=frozenset({409}),
    ),
    _provisioning(
        "GET", _ORG, "getOrg", get_org, answers={200: wire.OrgAnswer}, problems=frozenset({404})
    ),
    _provisioning(
        "DELETE", _ORG, "deleteOrg", delete_org, answers={204: None}, problems=frozenset({404})
    ),
    _provisioning(
        "GET",
        f"{_ORG}/apps",
        "listApps",
        list_apps,
        answers={200: wire.AppList},
        query=_APP_PAGES,
        problems=frozenset({404}),
    ),
    _provisioning(
        "PUT",
        _APP,
        "putApp",
        put_app,
        answers={200: wire.AppAnswer, 201: wire.AppAnswer},
        body=wire.AppBody,
        reads_body=True,
        problems=frozenset({404, 409}),
    ),
    _provisioning(
        "GET", _APP, "getApp", get_app, answers={200: wire.AppAnswer}, problems=frozenset({404})
    ),
    _provisioning(
        "DELETE",
        _APP,
        "deleteApp",
        delete_app,
        answers={204: None},
        problems=frozenset({403, 404}),
    ),
    *(
        _provisioning(
            "POST",
            f"{base}/credentials/rotate",
            f"rotate{kind}Credentials",
            rotate,
            answers={200: wire.Rotated},
            body=wire.RotateBody,
            problems=frozenset({404}),
        )
        for kind, base in (("Org", _ORG), ("App", _APP))
    ),
    _provisioning(
        "POST",
        f"{_ORG}/provisioning-key",
        "issueProvisioningKey",
        issue_provisioning_key,
        answers={201: wire.ProvisioningKey},
        access=Access.DEPLOYMENT,
    ),
    _provisioning(
        "DELETE",
        f"{_ORG}/provisioning-key",
        "withdrawProvisioningKey",
        withdraw_provisioning_key,
        answers={204: None},
        access=Access.DEPLOYMENT,
    ),
    *(
        operation
        for kind, base in (("Org", _ORG), ("App", _APP))
        for operation in (
            _provisioning(
                "PUT",
                f"{base}/model-override",
                f"put{kind}Override",
                put_override,
                answers={200: wire.OverrideAnswer},
                body=wire.OverrideBody,
                problems=frozenset({404}),
            ),
            _provisioning(
                "DELETE",
                f"{base}/model-override",
                f"delete{kind}Override",
                delete_override,
                answers={204: None},
                problems=frozenset({404}),
            ),
        )
    ),
    _provisioning(
        "POST",
        "/api/v1/credentials/claim",
        "claimSecret",
        claim_secret,
        answers={200: wire.Claimed},
        body=wire.ClaimBody,
        access=Access.PUBLIC,
        limit="claim",
        limits_itself=True,
        problems=frozenset({404}),
    ),
)
