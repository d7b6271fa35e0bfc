"""Containment: what an administrator does to a client whose secret has leaked, with a reason."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.errors import InvalidValueError
from pricekeeper.http.edge import parse_json, read_body
from pricekeeper.http.gate import REASON, attribution_of
from pricekeeper.http.oauth import NO_STORE
from pricekeeper.http.operation import APP, ORG, Access, Answer, Call, Operation
from pricekeeper.usecases import containment as cases
from pricekeeper.wire import provisioning as wire
from pricekeeper.wire.provisioning import SessionList


async def revoke_credentials(call: Call) -> Answer:
    """Stop a client's secrets, sessions and tokens at once; a rotation gives it a secret again."""
    by, secrets = attribution_of(call, call.body.reason), call.body.secrets
    return Answer(200, await cases.revoke_credentials(call.services, call.client, secrets, by))


async def list_sessions(call: Call) -> Answer:
    """The live sessions of a client, the oldest first."""
    return Answer(200, await cases.list_sessions(call.services, call.client), NO_STORE)


async def end_sessions(call: Call) -> Answer:
    """End every session of a client and all of its tokens; its secret goes on working."""
    by = attribution_of(call, await _read_reason(call))
    await cases.end_sessions(call.services, call.client, by, call.path.get("session_id"))
    return Answer(204)


async def freeze(call: Call) -> Answer:
    """Refuse models and tokens to a client, or to an organisation and its apps; usage counts on."""
    by = attribution_of(call, call.body.reason)
    return Answer(200, await cases.freeze(call.services, call.client, by))


async def unfreeze(call: Call) -> Answer:
    """Lift a client's own freeze, if it has one."""
    by = attribution_of(call, await _read_reason(call))
    await cases.unfreeze(call.services, call.client, by)
    return Answer(204)


async def reset_limits(call: Call) -> Answer:
    """Fill the token buckets of a client: of an app, or of an organisation without its apps."""
    by = attribution_of(call, call.body.reason)
    return Answer(200, await cases.reset_limits(call.services, call.client, by))


async def void_usage(call: Call) -> Answer:
    """Take a usage record out of its totals and budgets, by a correction; both stay visible."""
    by = attribution_of(call, call.body.reason)
    request_id = call.path["request_id"]
    return Answer(200, await cases.void_usage(call.services, call.client, request_id, by))


async def void_authorization(call: Call) -> Answer:
    """Give back what any client of the organisation was granted: the call is not to be made."""
    by, voided = attribution_of(call, call.body.reason), call.path["authorization_id"]
    return Answer(200, await cases.void_authorization(call.services, call.client, voided, by))


async def _read_reason(call: Call) -> str | None:
    """The reason of a DELETE: in the query, or in a body like that of the other operations."""
    body = await read_body(call.request)
    if not body:
        return call.request.query.get("reason")
    reason = parse_json(body, wire.ReasonBody).reason
    if call.request.query.get("reason", reason) != reason:
        raise InvalidValueError("reason", "is in the query and, differently, in the body")
    return reason


_row: Final = partial(
    Operation, access=Access.PROVISIONING, tag="containment", limit="provisioning"
)


def _operations(kind: str, base: str) -> tuple[Operation, ...]:
    return (
        _row("GET", f"{base}/sessions", f"list{kind}Sessions", list_sessions, {200: SessionList},
             role=Role.VIEWER),
        _row("POST", f"{base}/credentials/revoke", f"revoke{kind}Credentials", revoke_credentials,
             {200: wire.CredentialsRevoked}, role=Role.OPERATOR, body=wire.RevokeCredentialsBody),
        _row("DELETE", f"{base}/sessions", f"end{kind}Sessions", end_sessions, {204: None},
             role=Role.OPERATOR, query=(REASON,)),
        _row("DELETE", f"{base}/sessions/{{session_id}}", f"end{kind}Session", end_sessions,
             {204: None}, role=Role.OPERATOR, query=(REASON,),
             says="End one session of a client; its tokens stop working."),
        _row("PUT", f"{base}/freeze", f"freeze{kind}", freeze, {200: wire.FreezeAnswer},
             role=Role.OPERATOR, body=wire.ReasonBody),
        _row("DELETE", f"{base}/freeze", f"unfreeze{kind}", unfreeze, {204: None},
             role=Role.OPERATOR, query=(REASON,)),
        _row("POST", f"{base}/limits/reset", f"reset{kind}Limits", reset_limits,
             {200: wire.LimitsReset}, role=Role.OPERATOR, body=wire.ReasonBody),
    )  # fmt: skip


OPERATIONS: Final = (
    *_operations("Org", ORG),
    *_operations("App", APP),
    _row("POST", f"{ORG}/usage/{{request_id}}/void", "voidUsage", void_usage,
         {200: wire.UsageVoided}, access=Access.DEPLOYMENT, role=Role.OPERATOR,
         body=wire.ReasonBody, problems=(409,)),
    _row("POST", f"{ORG}/authorizations/{{authorization_id}}/void",
         "voidOrgAuthorization", void_authorization, {200: wire.AuthorizationVoided},
         access=Access.DEPLOYMENT, role=Role.OPERATOR, body=wire.ReasonBody, problems=(409,)),
)  # fmt: skip
