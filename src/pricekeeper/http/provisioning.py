"""Provisioning: organisations, apps, their credentials and overrides, with a key."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.errors import NotFoundError
from pricekeeper.http.caching import matches
from pricekeeper.http.edge import read_patch, read_settings
from pricekeeper.http.gate import (
    REASON,
    attribution_of,
    attribution_with_reason,
    count_failure,
    limit_client,
)
from pricekeeper.http.operation import (
    AFTER,
    APP,
    NO_STORE,
    ORG,
    Access,
    Answer,
    Call,
    Operation,
    Parameter,
)
from pricekeeper.usecases import provisioning as cases
from pricekeeper.usecases.queries import parse_limit
from pricekeeper.values import parse_app_id, parse_org_id
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire import settings as bodies
from pricekeeper.wire.values import APP_ID

PAGE_DEFAULT: Final = 100

_CLAIMANT: Final = "retrieval-token"
"""The actor of a claim: whoever has the token, which is all that a claimant shows."""
LIMIT: Final = Parameter(
    "limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 100}
)
_ORG_PAGES: Final = (AFTER({"type": "string", "format": "uuid"}), LIMIT)
_APP_PAGES: Final = (AFTER({"type": "string", "pattern": APP_ID}), LIMIT)


async def put_client(call: Call) -> Answer:
    """Create the client in the path, or replace its settings."""
    by = attribution_with_reason(call)
    answer = await cases.put_client(call.services, call.client, call.body, by)
    return Answer(201 if answer.status == "created" else 200, answer)


async def patch_client(call: Call) -> Answer:
    """Change some settings of the client in the path."""
    by, expects = attribution_with_reason(call), _expected_tags(call)
    return _tagged(await cases.patch_client(call.services, call.client, call.body, by, expects))


async def get_client(call: Call) -> Answer:
    """The settings of the client in the path."""
    return _tagged(await cases.read_client(call.services, call.client))


async def list_orgs(call: Call) -> Answer:
    """Every organisation that the key covers, page by page."""
    after, limit = page_of(call)
    start = None if after is None else parse_org_id(after, "after")
    return Answer(200, await cases.list_orgs(call.services, call.coverage, start, limit))


async def issue_provisioning_key(call: Call) -> Answer:
    """Give an organisation a provisioning key of its own, which replaces the one it had."""
    by = attribution_of(call)
    made = await cases.issue_provisioning_key(call.services, call.org_id, by)
    return Answer(201, made, NO_STORE)


async def withdraw_provisioning_key(call: Call) -> Answer:
    """Stop an organisation's own provisioning key from working."""
    await call.services.provisioning_keys.withdraw(call.org_id, attribution_of(call))
    return Answer(204)


async def delete_org(call: Call) -> Answer:
    """End an organisation and its apps; their tokens stop working."""
    await call.services.tenants.delete_org(call.org_id, attribution_with_reason(call))
    return Answer(204)


def _tagged(answer: cases.Answer) -> Answer:
    """The settings with their ETag, which a patch may expect."""
    return Answer(200, answer, ((b"etag", _quoted(cases.tag_of(answer))),))


def _expected_tags(call: Call) -> cases.Expects:
    """Whether ``If-Match`` has the tag of some settings; ``None`` if any will do."""
    header = call.request.header(b"if-match")
    if header is None or header.strip() == "*":
        return None
    return lambda tag: matches(header, _quoted(tag))


def _quoted(tag: str) -> bytes:
    return f'"{tag}"'.encode()


async def list_apps(call: Call) -> Answer:
    """Every app of an organisation, page by page."""
    after, limit = page_of(call)
    start = None if after is None else parse_app_id(after, "after")
    return Answer(200, await cases.list_apps(call.services, call.org_id, start, limit))


async def delete_app(call: Call) -> Answer:
    """End an app; its tokens stop working."""
    await call.services.tenants.delete_app(call.org_id, call.app_id, attribution_with_reason(call))
    return Answer(204)


async def rotate(call: Call) -> Answer:
    """Let a new secret be claimed; the old one works until then, and for the grace after."""
    by = attribution_with_reason(call)
    return Answer(200, await cases.rotate(call.services, call.client, call.body, by))


async def claim_secret(call: Call) -> Answer:
    """Turn a retrieval token into the secret, once."""
    try:
        claim = await call.services.credentials.find_claim(call.body.token)
        await limit_client(call, claim.client_id)
        call.actor = _CLAIMANT
        by = attribution_of(call)
        return Answer(200, await cases.complete_claim(call.services, claim, by), NO_STORE)
    except NotFoundError:
        await count_failure(call)
        raise


async def put_override(call: Call) -> Answer:
    """Have one label used until the end of the organisation's day, whatever was spent."""
    by = attribution_with_reason(call)
    return Answer(200, await cases.put_override(call.services, call.client, call.body, by))


async def delete_override(call: Call) -> Answer:
    """Let quotas decide again."""
    await cases.delete_override(call.services, call.client, attribution_with_reason(call))
    return Answer(204)


def page_of(call: Call) -> tuple[str | None, int]:
    """Behind what a page begins, and how much it has at most."""
    query = call.request.query
    limit = parse_limit(query.get("limit", str(PAGE_DEFAULT)), PAGE_DEFAULT)
    return query.get("after"), limit


_row: Final = partial(
    Operation, access=Access.PROVISIONING, tag="provisioning", limit="provisioning"
)
_SAVED_ORG: Final = {200: wire.OrgAnswer, 201: wire.OrgAnswer}
_SAVED_APP: Final = {200: wire.AppAnswer, 201: wire.AppAnswer}
_READING: Final = (
    _row("GET", "/api/v1/orgs", "listOrgs", list_orgs, {200: wire.OrgList},
         role=Role.VIEWER, query=_ORG_PAGES),
    _row("GET", ORG, "getOrg", get_client, {200: wire.OrgAnswer}, role=Role.VIEWER,
         says="An organisation's settings."),
    _row("GET", f"{ORG}/apps", "listApps", list_apps, {200: wire.AppList},
         role=Role.VIEWER, query=_APP_PAGES),
    _row("GET", APP, "getApp", get_client, {200: wire.AppAnswer}, role=Role.VIEWER,
         says="An app's settings, and which of them are inherited."),
    _row("GET", f"{ORG}/settings", "getOrgSettings", get_client, {200: wire.OrgAnswer},
         access=Access.ORG, role=Role.VIEWER, tag="runtime",
         says="The settings of an organisation, for itself."),
    _row("GET", f"{APP}/settings", "getAppSettings", get_client, {200: wire.AppAnswer},
         access=Access.APP, role=Role.VIEWER, tag="runtime",
         says="The settings of an app, and which of them are inherited, for itself or its "
         "organisation."),
)  # fmt: skip
_change: Final = partial(_row, query=(REASON,))
_SETTINGS: Final = (
    _change("PUT", ORG, "putOrg", put_client, _SAVED_ORG,
            role=Role.ADMIN, body=bodies.OrgBody, read=read_settings, problems=(409,),
            says="Create an organisation or replace its settings; credentials are never reset."),
    _change("PATCH", ORG, "patchOrg", patch_client, {200: wire.OrgAnswer},
            role=Role.ADMIN, body=bodies.OrgPatch, read=read_patch, problems=(409,),
            says="Change some settings of an organisation by a JSON merge patch; null restores a "
            "default."),
    _change("DELETE", ORG, "deleteOrg", delete_org, {204: None}, role=Role.ADMIN),
    _change("PUT", APP, "putApp", put_client, _SAVED_APP,
            role=Role.ADMIN, body=bodies.AppBody, read=read_settings, problems=(409,),
            says="Create an app or replace what it overrides; credentials are never reset."),
    _change("PATCH", APP, "patchApp", patch_client, {200: wire.AppAnswer},
            role=Role.ADMIN, body=bodies.AppPatch, read=read_patch, problems=(409,),
            says="Change some settings of an app by a JSON merge patch; what is null is inherited "
            "again."),
    _change("DELETE", APP, "deleteApp", delete_app, {204: None}, role=Role.ADMIN),
)  # fmt: skip


def _operations(kind: str, base: str) -> tuple[Operation, ...]:
    return (
        _change("POST", f"{base}/credentials/rotate", f"rotate{kind}Credentials", rotate,
                {200: wire.Rotated}, role=Role.OPERATOR, body=wire.RotateBody),
        _change("PUT", f"{base}/model-override", f"put{kind}Override", put_override,
                {200: wire.OverrideAnswer}, role=Role.OPERATOR, body=wire.OverrideBody),
        _change("DELETE", f"{base}/model-override", f"delete{kind}Override", delete_override,
                {204: None}, role=Role.OPERATOR),
    )  # fmt: skip


OPERATIONS: Final = (
    *_READING,
    *_SETTINGS,
    *_operations("Org", ORG),
    *_operations("App", APP),
    _row("POST", f"{ORG}/provisioning-key", "issueProvisioningKey", issue_provisioning_key,
         {201: wire.ProvisioningKey}, access=Access.DEPLOYMENT, role=Role.ADMIN),
    _row("DELETE", f"{ORG}/provisioning-key", "withdrawProvisioningKey",
         withdraw_provisioning_key, {204: None}, access=Access.DEPLOYMENT, role=Role.ADMIN),
    _row("POST", "/api/v1/credentials/claim", "claimSecret", claim_secret, {200: wire.Claimed},
         body=wire.ClaimBody, access=Access.PUBLIC, limit="claim", limits_itself=True,
         problems=(404,)),
)  # fmt: skip
