"""The table of operations, for routes, the OpenAPI document, use cases and clients."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

import msgspec

from pricekeeper.authority import Role
from pricekeeper.wire import (
    activity,
    administration,
    alerts,
    authorizations,
    identity,
    provisioning,
    queries,
    runtime,
    settings,
    spend,
)
from pricekeeper.wire.operation import (
    APP,
    ORG,
    Access,
    Operation,
    Pair,
    by_deployment_key,
    by_key,
    containing,
    of_any_client,
    of_app,
    of_app_or_org,
    of_channel,
    of_client_by_key,
    public,
    state,
)

VIEWER, OPERATOR, ADMIN = Role
_CREATED: Final = (200, 201)


class Document(msgspec.Struct):
    """An OpenAPI document."""

    openapi: str


# What an app asks all day.
RECORD_USAGE: Final = of_app(
    "recordUsage", f"POST {APP}/usage", runtime.UsageAnswer,
    "Count what one model call used, exactly once.",
    statuses=(202,), body=runtime.UsageBody, limit="usage", problems=(409,),
)  # fmt: skip
SELECT_MODEL: Final = of_app(
    "selectModel", f"GET {APP}/model-selection", runtime.SelectionAnswer,
    "The model to call now, and why.",
    other_answers={304: None}, query=(queries.FORCE_CHECK,), limit="selection",
    variant_limit="force_check",
)  # fmt: skip
RECORD_BATCH: Final = of_app(
    "recordUsageBatch", f"POST {APP}/usage/batch", runtime.BatchAnswer,
    "Count up to 100 calls; each record is judged by itself.",
    statuses=(207,), body=runtime.BatchBody, limit="batch",
)  # fmt: skip
ACQUIRE: Final = of_app(
    "acquire", f"POST {APP}/limits/acquire", runtime.Acquired,
    "Take tokens from the buckets of a label, all or nothing.",
    body=runtime.AcquireBody, limit="limits", problems=(409, 429),
)  # fmt: skip
ADJUST: Final = of_app(
    "adjustLease", f"POST {APP}/leases/{{lease_id}}/adjust", runtime.Adjusted,
    "Settle a lease to the real use; each adjustment applies once.",
    body=runtime.AdjustBody, limit="limits", problems=(409,),
)  # fmt: skip
RELEASE: Final = of_app(
    "releaseLease", f"POST {APP}/leases/{{lease_id}}/release", NoneType,
    "Return everything that a lease holds.", limit="limits", problems=(409,),
)  # fmt: skip
LIST_LIMITS: Final = of_app(
    "listLimits", f"GET {APP}/limits", runtime.LimitList,
    "The state of this app's buckets; nothing is taken.", limit="limits", role=VIEWER,
)  # fmt: skip
AUTHORIZE: Final = of_app(
    "authorize", f"POST {APP}/authorizations", authorizations.AuthorizedAnswer,
    "Decide whether a call may be made and with which model, and hold its maximum cost.",
    statuses=_CREATED, body=authorizations.AuthorizeBody, limit="authorize", problems=(409, 429),
    tag="authorizations",
)  # fmt: skip
LIST_AUTHORIZATIONS: Final = of_app(
    "listAuthorizations", f"GET {APP}/authorizations", authorizations.AuthorizationList,
    "Authorizations that are open, or expired without settlement, the newest first.",
    query=queries.UNFINISHED, limit="aggregates", role=VIEWER, tag="authorizations",
)  # fmt: skip
_ONE: Final = f"{APP}/authorizations/{{authorization_id}}"
GET_AUTHORIZATION: Final = of_app(
    "getAuthorization", f"GET {_ONE}", authorizations.AuthorizationAnswer,
    "An authorization and its present state.", limit="limits", role=VIEWER, tag="authorizations",
)  # fmt: skip
CAPTURE: Final = of_app(
    "captureAuthorization", f"POST {_ONE}/capture", authorizations.CapturedAnswer,
    "Count what an authorized call used, exactly once, and release its hold.",
    body=authorizations.CaptureBody, limit="capture", problems=(409,), tag="authorizations",
)  # fmt: skip
VOID: Final = of_app(
    "voidAuthorization", f"POST {_ONE}/void", NoneType,
    "Return everything that an authorization holds: the model was never reached.",
    body=authorizations.VoidBody, limit="capture", problems=(409,), tag="authorizations",
)  # fmt: skip
EXTEND: Final = of_app(
    "extendAuthorization", f"POST {_ONE}/extend", authorizations.AuthorizationAnswer,
    "Hold an authorization for longer; it is never shortened.",
    body=authorizations.ExtendBody, limit="capture", problems=(409,), tag="authorizations",
)  # fmt: skip
CAPTURE_MANY: Final = of_app(
    "captureAuthorizations", f"POST {APP}/captures", authorizations.CapturesAnswer,
    "Capture up to 100 calls; each capture is judged by itself.",
    statuses=(207,), body=authorizations.CapturesBody, limit="batch", tag="authorizations",
)  # fmt: skip
LIST_BUDGETS: Final = of_app_or_org(
    "list{}Budgets", "GET {}/budgets", authorizations.BudgetList,
    "Every budget that applies, and what is left of it in its present window.",
    limit="limits", tag="authorizations",
)  # fmt: skip

# Tokens and sessions.
_OAUTH: Final[Mapping[str, Any]] = {
    "tag": "identity",
    "other_answers": {400: identity.OAuthError, 401: identity.OAuthError},
}
ISSUE_TOKEN: Final = public(
    "issueToken", "POST /auth/token", identity.TokenAnswer,
    "Exchange a client's secret for tokens, or its refresh token for new ones (RFC 6749).",
    body=identity.TokenBody, limit="token", variant_limit="refresh", **_OAUTH,
)  # fmt: skip
REFRESH_TOKEN: Final = public(
    "refreshToken", "POST /auth/refresh", identity.TokenAnswer,
    "Exchange a refresh token for its successor; a secret that comes with it must be right.",
    body=identity.RefreshBody, limit="refresh", **_OAUTH,
)  # fmt: skip
ISSUE_AWS_CREDENTIALS: Final = public(
    "issueAwsCredentials", "GET /auth/aws-credentials", identity.AwsCredentialsAnswer,
    "Exchange a client's secret for credentials for AWS SDKs: valid for an hour, no session.",
    limit="token", tag="identity", other_answers={401: identity.OAuthError},
)  # fmt: skip
REVOKE_TOKEN: Final = public(
    "revokeToken", "POST /auth/revoke", identity.Empty,
    "Revoke a token of the caller's own (RFC 7009); an unknown one is accepted.",
    body=identity.RevokeBody, limit="revoke", **_OAUTH,
)  # fmt: skip
INTROSPECT_TOKEN: Final = public(
    "introspectToken", "POST /auth/introspect", identity.Claims,
    "The claims of a token of the caller's own, if it is valid (RFC 7662).",
    body=identity.RevokeBody, limit="revoke", **_OAUTH,
)  # fmt: skip
LIST_OWN_SESSIONS: Final = state(
    Access.ANY_CLIENT, "listSessions", "GET /auth/sessions", provisioning.SessionList,
    "The live sessions of the calling client, the oldest first.", tag="identity", is_private=True,
)  # fmt: skip
END_OWN_SESSIONS: Final = state(
    Access.ANY_CLIENT, "endSessions", "DELETE /auth/sessions", NoneType,
    "End every session of the calling client, including this one.", tag="identity",
)  # fmt: skip
END_OWN_SESSION: Final = state(
    Access.ANY_CLIENT, "endSession", "DELETE /auth/sessions/{session_id}", NoneType,
    "End one session of the calling client; its tokens stop working.", tag="identity",
    problems=(404,),
)  # fmt: skip
JWKS: Final = public(
    "jwks", "GET /.well-known/jwks.json", identity.Jwks,
    "The public keys that verify access tokens (RFC 7517).", tag="identity",
)  # fmt: skip
METADATA: Final = public(
    "serverMetadata", "GET /.well-known/oauth-authorization-server", identity.Metadata,
    "The addresses of the token endpoints (RFC 8414).", tag="identity",
)  # fmt: skip

# Reports.
_DAYS: Final[Mapping[str, Any]] = {
    "limit": "aggregates", "tag": "aggregates", "other_answers": {304: None},
}  # fmt: skip
GET_FORECAST: Final = of_app_or_org(
    "get{}Forecast", "GET {}/forecast", spend.ForecastList,
    "Where every budget that applies will end, and when it will be spent.",
    limit="aggregates", tag="aggregates",
)  # fmt: skip
READ_TODAY: Final = of_app_or_org(
    "{}AggregatesToday", "GET {}/aggregates/today", spend.AggregateAnswer,
    "The totals of the organisation's present day so far.", **_DAYS,
)  # fmt: skip
READ_DAY: Final = of_app_or_org(
    "{}AggregatesOnDay", "GET {}/aggregates/{{date}}", spend.AggregateAnswer,
    "The totals of a day; a past day without data has zeros.", **_DAYS,
)  # fmt: skip
READ_RANGE: Final = of_app_or_org(
    "{}AggregatesInRange", "GET {}/aggregates", spend.AggregateRange,
    "The totals of each day of a range, the earliest first.", query=queries.DAYS, **_DAYS,
)  # fmt: skip
GET_SPEND: Final = of_any_client(
    "getSpend", "GET /api/v1/spend", spend.SpendAnswer,
    "Spend in a range, by org, app, label, day, hour and the value of a tag.",
    query=queries.SPEND, limit="reports", tag="aggregates", problems=(404,),
)  # fmt: skip
LIST_USAGE: Final = of_any_client(
    "listUsage", f"GET {ORG}/usage", spend.UsageList,
    "Single usage records, the newest first; a page may be empty although more pages follow.",
    query=queries.RECORDS, limit="reports", tag="aggregates", problems=(404,),
)  # fmt: skip
LIST_ALL_BUDGETS: Final = of_any_client(
    "listAllBudgets", "GET /api/v1/budgets", authorizations.AllBudgets,
    "Every budget of the clients that the caller covers; "
    "a page may be empty although more pages follow.",
    query=queries.ALL_BUDGETS, limit="limits", tag="authorizations", problems=(404,),
)  # fmt: skip

# What an administrator sets up.
_SETTINGS: Final[Mapping[str, Any]] = {"query": (queries.REASON,), "problems": (409,)}
LIST_ORGS: Final = by_key(
    VIEWER, "listOrgs", "GET /api/v1/orgs", provisioning.OrgList,
    "Every organisation that the key covers, page by page.", query=queries.ORG_PAGES,
)  # fmt: skip
LIST_APPS: Final = by_key(
    VIEWER, "listApps", f"GET {ORG}/apps", provisioning.AppList,
    "Every app of an organisation, page by page.", query=queries.APP_PAGES,
)  # fmt: skip
GET_ORG: Final = by_key(
    VIEWER, "getOrg", f"GET {ORG}", provisioning.OrgAnswer, "An organisation's settings."
)
GET_APP: Final = by_key(
    VIEWER, "getApp", f"GET {APP}", provisioning.AppAnswer,
    "An app's settings, and which of them are inherited.",
)  # fmt: skip
GET_ORG_SETTINGS: Final = state(
    Access.ORG, "getOrgSettings", f"GET {ORG}/settings", provisioning.OrgAnswer,
    "The settings of an organisation, for itself.", role=VIEWER, limit="provisioning",
)  # fmt: skip
GET_APP_SETTINGS: Final = state(
    Access.APP, "getAppSettings", f"GET {APP}/settings", provisioning.AppAnswer,
    "The settings of an app, and which of them are inherited, for itself or its organisation.",
    role=VIEWER, limit="provisioning",
)  # fmt: skip
PUT_ORG: Final = by_key(
    ADMIN, "putOrg", f"PUT {ORG}", provisioning.OrgAnswer,
    "Create an organisation or replace its settings; credentials are never reset.",
    statuses=_CREATED, body=settings.OrgBody, **_SETTINGS,
)  # fmt: skip
PATCH_ORG: Final = by_key(
    ADMIN, "patchOrg", f"PATCH {ORG}", provisioning.OrgAnswer,
    "Change some settings of an organisation by a JSON merge patch; null restores a default.",
    body=settings.OrgPatch, **_SETTINGS,
)  # fmt: skip
DELETE_ORG: Final = by_key(
    ADMIN, "deleteOrg", f"DELETE {ORG}", NoneType,
    "Delete an organisation and its apps; their tokens stop working.", query=(queries.REASON,),
)  # fmt: skip
PUT_APP: Final = by_key(
    ADMIN, "putApp", f"PUT {APP}", provisioning.AppAnswer,
    "Create an app or replace what it overrides; credentials are never reset.",
    statuses=_CREATED, body=settings.AppBody, **_SETTINGS,
)  # fmt: skip
PATCH_APP: Final = by_key(
    ADMIN, "patchApp", f"PATCH {APP}", provisioning.AppAnswer,
    "Change some settings of an app by a JSON merge patch; a null value is inherited again.",
    body=settings.AppPatch, **_SETTINGS,
)  # fmt: skip
DELETE_APP: Final = by_key(
    ADMIN, "deleteApp", f"DELETE {APP}", NoneType,
    "Delete an app; its tokens stop working.", query=(queries.REASON,),
)  # fmt: skip
ROTATE: Final = of_client_by_key(
    OPERATOR, "rotate{}Credentials", "POST {}/credentials/rotate", provisioning.Rotated,
    "Allow the client to claim a new secret. The old one works until the claim, and then for the "
    "grace period.",
    body=provisioning.RotateBody, query=(queries.REASON,),
)  # fmt: skip
PUT_OVERRIDE: Final = of_client_by_key(
    OPERATOR, "put{}Override", "PUT {}/model-override", provisioning.OverrideAnswer,
    "Use one label until the end of the organisation's day, regardless of quotas.",
    body=provisioning.OverrideBody, query=(queries.REASON,),
)  # fmt: skip
DELETE_OVERRIDE: Final = of_client_by_key(
    OPERATOR, "delete{}Override", "DELETE {}/model-override", NoneType,
    "Let quotas decide again.", query=(queries.REASON,),
)  # fmt: skip
ISSUE_ORG_KEY: Final = by_deployment_key(
    ADMIN, "issueProvisioningKey", f"POST {ORG}/provisioning-key", provisioning.ProvisioningKey,
    "Give an organisation a provisioning key of its own, which replaces the previous one.",
    statuses=(201,), is_private=True,
)  # fmt: skip
WITHDRAW_ORG_KEY: Final = by_deployment_key(
    ADMIN, "withdrawProvisioningKey", f"DELETE {ORG}/provisioning-key", NoneType,
    "Withdraw an organisation's own provisioning key.",
)  # fmt: skip
CLAIM_SECRET: Final = public(
    "claimSecret", "POST /api/v1/credentials/claim", provisioning.Claimed,
    "Exchange a retrieval token for the secret, once.",
    body=provisioning.ClaimBody, limit="claim", tag="provisioning", problems=(404,),
)  # fmt: skip

# What an administrator does about a leaked secret.
LIST_SESSIONS: Final = containing(
    VIEWER, "list{}Sessions", "GET {}/sessions", provisioning.SessionList,
    "The live sessions of a client, the oldest first.", is_private=True,
)  # fmt: skip
REVOKE_CREDENTIALS: Final = containing(
    OPERATOR, "revoke{}Credentials", "POST {}/credentials/revoke", provisioning.CredentialsRevoked,
    "Revoke a client's secrets, sessions and tokens at once; rotate to get a new secret.",
    body=provisioning.RevokeCredentialsBody,
)  # fmt: skip
END_SESSIONS: Final = containing(
    OPERATOR, "end{}Sessions", "DELETE {}/sessions", NoneType,
    "End every session of a client and all of its tokens; its secret keeps working.",
    query=(queries.REASON,),
)  # fmt: skip
END_SESSION: Final = containing(
    OPERATOR, "end{}Session", "DELETE {}/sessions/{{session_id}}", NoneType,
    "End one session of a client; its tokens stop working.", query=(queries.REASON,),
)  # fmt: skip
FREEZE: Final = containing(
    OPERATOR, "freeze{}", "PUT {}/freeze", provisioning.FreezeAnswer,
    "Refuse models and tokens to a client, or to an organisation and its apps; "
    "usage is still counted.",
    body=provisioning.ReasonBody, is_repeatable=True,
)  # fmt: skip
UNFREEZE: Final = containing(
    OPERATOR, "unfreeze{}", "DELETE {}/freeze", NoneType,
    "Lift a client's own freeze, if it has one.", query=(queries.REASON,),
)  # fmt: skip
RESET_LIMITS: Final = containing(
    OPERATOR, "reset{}Limits", "POST {}/limits/reset", provisioning.LimitsReset,
    "Fill the token buckets of an app, or of an organisation without those of its apps.",
    body=provisioning.ReasonBody,
)  # fmt: skip
VOID_USAGE: Final = by_deployment_key(
    OPERATOR, "voidUsage", f"POST {ORG}/usage/{{request_id}}/void", provisioning.UsageVoided,
    "Remove a usage record from its totals and budgets by a correction; both stay visible.",
    body=provisioning.ReasonBody, tag="containment", problems=(409,), is_repeatable=True,
)  # fmt: skip
VOID_ORG_AUTHORIZATION: Final = by_deployment_key(
    OPERATOR, "voidOrgAuthorization", f"POST {ORG}/authorizations/{{authorization_id}}/void",
    provisioning.AuthorizationVoided,
    "Void an authorization of any client: its hold and tokens go back.",
    body=provisioning.ReasonBody, tag="containment", problems=(409,), is_repeatable=True,
)  # fmt: skip

# What happened.
LIST_ALL_DENIALS: Final = of_any_client(
    "listAllDenials", "GET /api/v1/denials", activity.DenialList,
    "Denied calls of the clients that the caller covers, each with its reason, the newest first.",
    query=queries.ALL_DENIALS, limit="reports", tag="activity", problems=(404,),
)  # fmt: skip
LIST_DENIALS: Final = of_any_client(
    "listDenials", f"GET {ORG}/denials", activity.DenialList,
    "Denied calls of an organisation, each with its reason, the newest minute first.",
    query=queries.ORG_DENIALS, limit="reports", tag="activity", problems=(403, 404),
)  # fmt: skip
LIST_FLIPS: Final = of_app_or_org(
    "list{}Flips", "GET {}/flips", activity.FlipList,
    "Which labels were given up or set by hand, when, why and until when, the newest first.",
    query=queries.FLIPS, limit="reports", tag="activity", is_private=True,
)  # fmt: skip
STREAM_EVENTS: Final = of_any_client(
    "streamEvents", "GET /api/v1/events", str,
    "What happens to the clients that the caller covers, from now on or since `Last-Event-ID`.",
    query=queries.EVENTS, limit="events", tag="activity", problems=(400, 404, 429),
    media_type="text/event-stream",
)  # fmt: skip

# The dashboard.
GET_PAGE: Final = public(
    "getPage", "GET /", str, "The dashboard, for people.", tag="operations",
    media_type="text/html", other_answers={304: None},
)  # fmt: skip
GET_ASSET: Final = public(
    "getAsset", "GET /assets/{file}", str, "A file that the dashboard loads.", tag="operations",
    media_type="application/octet-stream", other_answers={304: None}, problems=(404,),
)  # fmt: skip

# Keys of administrators.
_KEYS: Final = "/api/v1/admin-keys"
_PRIVATE: Final[Mapping[str, Any]] = {"tag": "administration", "is_private": True}
CREATE_ADMIN_KEY: Final = by_deployment_key(
    ADMIN, "createAdminKey", f"POST {_KEYS}", administration.IssuedAdminKey,
    "Create a key with a role; only this answer shows it. "
    "It covers no more than the key that asks, and does not outlive it.",
    statuses=(201,), body=administration.AdminKeyBody, **_PRIVATE,
)  # fmt: skip
LIST_ADMIN_KEYS: Final = by_deployment_key(
    ADMIN, "listAdminKeys", f"GET {_KEYS}", administration.AdminKeyList,
    "The keys that cover no more than the one that asks, the oldest first, without their texts.",
    query=queries.KEY_PAGES, **_PRIVATE,
)  # fmt: skip
ROTATE_ADMIN_KEY: Final = by_deployment_key(
    ADMIN, "rotateAdminKey", f"POST {_KEYS}/{{key_id}}/rotate", administration.IssuedAdminKey,
    "Give a key a new text, shown once; the old one works until the grace period ends. "
    "A key with more rights than yours is refused.",
    body=administration.RotateKeyBody, problems=(404, 409), **_PRIVATE,
)  # fmt: skip
DELETE_ADMIN_KEY: Final = by_deployment_key(
    ADMIN, "deleteAdminKey", f"DELETE {_KEYS}/{{key_id}}", NoneType,
    "Delete a key: at once here, within 30 seconds everywhere.", problems=(404,),
    tag="administration",
)  # fmt: skip
GET_ME: Final = of_any_client(
    "getMe", "GET /api/v1/me", administration.Me,
    "What the credential of this request is, and what it may see.",
    limit="provisioning", tag="administration",
)  # fmt: skip

# Alerts.
LIST_ALERTS: Final = of_any_client(
    "listAlerts", "GET /api/v1/alerts", alerts.AlertList,
    "Alerts, the newest first; a page may be empty although more pages follow.",
    query=queries.ALERTS, limit="aggregates", tag="alerts", problems=(403, 404),
)  # fmt: skip
LIST_CHANNELS: Final = of_channel(
    VIEWER, "list{}AlertChannels", "GET {}", alerts.ChannelList,
    "The channels for alerts, without their secrets.",
)  # fmt: skip
PUT_CHANNEL: Final = of_channel(
    ADMIN, "put{}AlertChannel", "PUT {}/{{channel}}", alerts.ChannelAnswer,
    "Create or change a channel for alerts; its address and its secret are never shown.",
    statuses=_CREATED, body=alerts.ChannelBody, problems=(404, 409),
)  # fmt: skip
DELETE_CHANNEL: Final = of_channel(
    ADMIN, "delete{}AlertChannel", "DELETE {}/{{channel}}", NoneType,
    "Remove a channel; alerts that wait for it are dropped.", is_private=False,
)  # fmt: skip
TEST_CHANNEL: Final = of_channel(
    OPERATOR, "test{}AlertChannel", "POST {}/{{channel}}/test", alerts.TrialAnswer,
    "Send a test through a channel now, and report the outcome.",
)  # fmt: skip

# The audit log, and the service itself.
LIST_AUDIT: Final = by_key(
    VIEWER, "listAudit", "GET /api/v1/audit", administration.AuditList,
    "Every change by a person or key, the newest first; "
    "a page may be empty although more pages follow.",
    query=queries.AUDIT, tag="audit", is_private=True, problems=(404,),
)  # fmt: skip
HEALTHZ: Final = public(
    "healthz", "GET /healthz", identity.Health, "Whether the process is alive.", tag="operations"
)
READYZ: Final = public(
    "readyz", "GET /readyz", identity.Health,
    "Whether requests can be served: the store takes writes, and the service is not shutting down.",
    tag="operations", other_answers={503: identity.Health},
)  # fmt: skip
METRICS: Final = state(
    Access.METRICS, "metrics", "GET /metrics", str,
    "The metrics for Prometheus, with the metrics token.",
    tag="operations", media_type="text/plain", problems=(429,),
)  # fmt: skip
OPENAPI: Final = public(
    "openapi", "GET /openapi.json", Document, "The description of this API.", tag="operations"
)
DOCUMENTATION: Final = public(
    "documentation", "GET /docs", str, "The description of this API for people; works offline.",
    tag="operations", media_type="text/html",
)  # fmt: skip

OPERATIONS: Final[tuple[Operation[Any], ...]] = tuple(
    operation
    for stated in tuple(globals().values())
    if isinstance(stated, (Operation, Pair))
    for operation in (stated if isinstance(stated, Pair) else (stated,))
)
