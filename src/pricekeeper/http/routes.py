"""How HTTP serves the table of operations.

Most are answered with the result of their use case; the others have a handler here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.errors import InvalidValueError
from pricekeeper.http import dashboard, events, health, identity, reports, runtime
from pricekeeper.http.edge import (
    parse_json,
    read_body,
    read_json_if_any,
    read_members,
    read_parameters,
    read_patch,
    read_settings,
)
from pricekeeper.http.operation import Answer, Call, Handler, answer_with, route
from pricekeeper.usecases.activity import EVENTS
from pricekeeper.usecases.table import USE_CASES
from pricekeeper.wire import operations as ops
from pricekeeper.wire.operation import Operation, by_name, names_of
from pricekeeper.wire.provisioning import ReasonBody

_HANDLERS: Final[Mapping[str, Handler]] = by_name(
    {
        ops.RECORD_USAGE: runtime.record_usage,
        ops.SELECT_MODEL: runtime.select_model,
        ops.RECORD_BATCH: runtime.answer_batch,
        ops.ACQUIRE: runtime.acquire,
        ops.AUTHORIZE: runtime.authorize,
        ops.CAPTURE_MANY: runtime.capture_many,
        ops.ISSUE_TOKEN: identity.issue_token,
        ops.REFRESH_TOKEN: identity.refresh,
        ops.ISSUE_AWS_CREDENTIALS: identity.issue_aws_credentials,
        ops.REVOKE_TOKEN: identity.revoke,
        ops.INTROSPECT_TOKEN: identity.introspect,
        ops.JWKS: identity.jwks,
        ops.METADATA: identity.metadata,
        ops.READ_TODAY: reports.read_today,
        ops.READ_DAY: reports.read_day,
        ops.READ_RANGE: reports.read_range,
        ops.GET_SPEND: reports.get_spend,
        ops.CLAIM_SECRET: identity.claim_secret,
        ops.STREAM_EVENTS: events.stream_events,
        ops.GET_PAGE: dashboard.get_page,
        ops.GET_ASSET: dashboard.get_asset,
        ops.HEALTHZ: health.healthz,
        ops.READYZ: health.readyz,
        ops.METRICS: health.metrics,
        ops.OPENAPI: health.openapi_document,
        ops.DOCUMENTATION: health.documentation,
    }
)
"""Operations that need more than their use case."""
_OF_TOKENS: Final[tuple[Operation[Any], ...]] = (
    *(ops.ISSUE_TOKEN, ops.REFRESH_TOKEN, ops.REVOKE_TOKEN, ops.INTROSPECT_TOKEN),
)
_OAUTH: Final[Mapping[str, Any]] = {"read": read_parameters, "limits_itself": True, "oauth": True}
_UNBOUNDED: Final = (
    *(ops.TEST_CHANNEL, ops.GET_PAGE, ops.GET_ASSET, ops.HEALTHZ, ops.READYZ, ops.OPENAPI),
    ops.DOCUMENTATION,
)
_DETAILS: Final[Mapping[str, Mapping[str, Any]]] = by_name(
    {
        ops.RECORD_USAGE: {"begin": runtime.begin_usage},
        ops.RECORD_BATCH: {
            "read": read_members,
            "reads_itself": True,
            "begin": runtime.queue_batch,
            "begins_early": True,
        },
        ops.CAPTURE_MANY: {"read": read_members},
        ops.VOID: {"read": read_json_if_any},
        **dict.fromkeys(_OF_TOKENS, _OAUTH),
        ops.ISSUE_AWS_CREDENTIALS: {"oauth": True, "by_secret": True, "limits_itself": True},
        ops.GET_SPEND: {"has_csv": True},
        ops.PUT_ORG: {"read": read_settings},
        ops.PUT_APP: {"read": read_settings},
        ops.PATCH_ORG: {"read": read_patch},
        ops.PATCH_APP: {"read": read_patch},
        ops.CLAIM_SECRET: {"limits_itself": True},
        ops.STREAM_EVENTS: {"events": EVENTS},
        **{one: {"bounds_itself": True} for one in _UNBOUNDED},
    }
)
"""How bodies and deadlines differ from those of a plain operation."""


_WITH_ETAG: Final = names_of(
    *(ops.GET_ORG, ops.GET_APP, ops.GET_ORG_SETTINGS, ops.GET_APP_SETTINGS),
    *(ops.PATCH_ORG, ops.PATCH_APP),
)
_WITH_REASON: Final = names_of(ops.END_SESSION, ops.END_SESSIONS, ops.UNFREEZE)
_WITHOUT_API: Final = names_of(ops.HEALTHZ, ops.READYZ, ops.METRICS, ops.OPENAPI, ops.DOCUMENTATION)


def _reading_reason(handler: Handler) -> Handler:
    """The reason of a DELETE is in the query or in a body."""

    async def answer(call: Call) -> Answer:
        body = await read_body(call.request)
        if body:
            call.body = parse_json(body, ReasonBody)
            if call.request.query.get("reason", call.body.reason) != call.body.reason:
                raise InvalidValueError("reason", "is in the query and, differently, in the body")
        return await handler(call)

    return answer


def _handler(operation: Operation[Any]) -> Handler:
    name = operation.name
    if name in _HANDLERS:
        return _HANDLERS[name]
    if name in _WITH_ETAG:
        return reports.answer_tagged(USE_CASES[name])
    handler = answer_with(operation, USE_CASES[name])
    return _reading_reason(handler) if name in _WITH_REASON else handler


ROUTES: Final = tuple(
    route(one, _handler(one), **_DETAILS.get(one.name, {})) for one in ops.OPERATIONS
)
GATEWAY_ROUTES: Final = tuple(
    one for one in ROUTES if one.tag == "identity" or one.name in _WITHOUT_API
)
"""Served if the API is switched off."""
