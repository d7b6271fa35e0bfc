"""The OpenAPI 3.1 document, generated from the routes and msgspec's JSON schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pricekeeper.http.edge import (
    FORM,
    JSON,
    MERGE_PATCH,
    read_json_if_any,
    read_members,
    read_parameters,
    read_patch,
)
from pricekeeper.http.operation import BodyReader, Route
from pricekeeper.version import __version__
from pricekeeper.wire.bounds import CHANNEL_NAME
from pricekeeper.wire.identity import OAuthError, ProblemBody
from pricekeeper.wire.operation import Access
from pricekeeper.wire.queries import KEY_ID
from pricekeeper.wire.values import APP_ID

_NAME: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFERENCE: Final = "#/components/schemas/{name}"
_KEY_SCHEME: Final = {
    "type": "apiKey",
    "in": "header",
    "name": "X-API-Key",
    "description": "A key of an administrator. The name beside it is the lowest role: VIEWER "
    "reads; OPERATOR also overrides, freezes, revokes, rotates, resets and voids; ADMIN also "
    "provisions and manages keys. An organisation that a key does not cover is absent for it.",
}
_SCHEMES: Final = {
    Access.METRICS: "metricsToken",
    **dict.fromkeys((Access.APP, Access.ORG, Access.ANY_CLIENT), "accessToken"),
}
_IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "description": "The ETag of the settings that the patch is for: if they have changed, the "
    "patch is refused with 409.",
    "required": False,
    "schema": {"type": "string"},
}
_MEDIA_TYPES: Final[dict[BodyReader, tuple[str, ...]]] = {
    read_patch: (MERGE_PATCH, JSON),
    read_parameters: (JSON, FORM),
}
"""Media types of bodies that are not only JSON."""
_UUID: Final = {"type": "string", "format": "uuid"}
_PATH_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "org_id": {**_UUID, "pattern": "^[0-9a-f-]+$"},
    "app_id": {"type": "string", "pattern": APP_ID},
    "date": {"type": "string", "format": "date", "examples": ["2026-01-23"]},
    "lease_id": _UUID,
    "authorization_id": _UUID,
    "request_id": _UUID,
    "key_id": {"type": "string", "pattern": KEY_ID},
    "session_id": {"type": "string", "minLength": 1, "maxLength": 128},
    "file": {"type": "string", "minLength": 1, "maxLength": 255},
    "channel": {"type": "string", "pattern": CHANNEL_NAME, "examples": ["ops"]},
}
_MEANINGS: Final = {
    400: "The request is invalid; every bad field is listed.",
    401: "Missing or invalid credentials.",
    403: "The credentials do not allow this; with code FROZEN, the client is frozen.",
    404: "The resource is absent, or belongs to another client.",
    405: "The path does not support this method.",
    409: "The request conflicts with the present state.",
    413: "The body is too large.",
    429: "A quota or rate limit is exhausted; retry after Retry-After.",
    503: "Temporarily unavailable; retry after Retry-After.",
}


_ORG: Final = {"org_id": "$response.body#/org_id"}
_APP: Final = {**_ORG, "app_id": "$response.body#/app_id"}
_SAME_APP: Final = {"org_id": "$request.path.org_id", "app_id": "$request.path.app_id"}
_LEASE: Final = {**_SAME_APP, "lease_id": "$response.body#/lease_id"}
_AUTHORIZATION: Final = {**_SAME_APP, "authorization_id": "$response.body#/authorization_id"}
_LINKS: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "putOrg": (_ORG, ("getOrg", "patchOrg", "putApp", "listApps", "deleteOrg")),
    "putApp": (
        _APP,
        ("getApp", "patchApp", "rotateAppCredentials", "putAppOverride", "deleteApp"),
    ),
    "acquire": (_LEASE, ("adjustLease", "releaseLease")),
    "authorize": (
        _AUTHORIZATION,
        tuple(f"{verb}Authorization" for verb in ("get", "extend", "capture", "void")),
    ),
}
"""The values of an answer, and the operations that use them."""


def openapi(operations: Sequence[Route]) -> dict[str, Any]:
    """Make the document."""
    bodies = [ProblemBody, OAuthError]
    for operation in operations:
        bodies += [kind for kind in (operation.body, *operation.answers.values()) if _is_type(kind)]
        bodies += operation.events.values()
    schemas, components = msgspec.json.schema_components(
        list(dict.fromkeys(bodies)), ref_template=_REFERENCE
    )
    # A bad member of a batch gets a result; the batch is not refused.
    for body in (one.body for one in operations if one.read is read_members):
        (members,) = components[body.__name__]["properties"].values()
        members["items"] = {"anyOf": [members["items"], {}]}
    by_type = dict(zip(dict.fromkeys(bodies), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = _NAME.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bedrock Price Keeper",
            "version": __version__,
            "description": "Who are you, how fast, how much: for every model call.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "provisioningKey": _KEY_SCHEME,
                "accessToken": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "clientSecret": {"type": "http", "scheme": "basic"},
                "metricsToken": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(operation: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": _security(operation),
        "responses": _responses(operation, schemas),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}
        for name in _NAME.findall(operation.path)
    ]
    parameters += [
        {
            "name": p.name,
            "in": "query",
            "description": p.description,
            "required": p.required,
            "schema": dict(p.schema),
        }
        for p in operation.query
    ]
    if operation.read is read_patch:
        parameters.append(_IF_MATCH)
    if parameters:
        made["parameters"] = parameters
    if operation.body is not None:
        schema = {"schema": schemas[operation.body]}
        content = dict.fromkeys(_MEDIA_TYPES.get(operation.read, (JSON,)), schema)
        required = operation.read is not read_json_if_any
        made["requestBody"] = {"required": required, "content": content}
    return made


def _security(operation: Route) -> list[dict[str, list[str]]]:
    if operation.by_secret:
        return [{"clientSecret": []}]
    scheme, role = _SCHEMES.get(operation.access), operation.role
    by_token: list[dict[str, list[str]]] = [] if scheme is None else [{scheme: []}]
    by_key = [] if role is None else [{"provisioningKey": [role.value]}]
    return [*by_token, *by_key]


def _responses(operation: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        made[str(status)] = {"description": "Done." if status < 400 else _MEANINGS[status]}  # noqa: PLR2004
        if isinstance(kind, str):
            # OpenAPI 3.1 can't describe the events of a stream.
            text = {} if kind == "text/event-stream" else {"schema": {"type": "string"}}
            made[str(status)]["content"] = {kind: text}
            if operation.events:
                described = {name: schemas[event] for name, event in operation.events.items()}
                made[str(status)]["content"][kind]["x-events"] = described
        elif kind is not None:
            made[str(status)]["content"] = {"application/json": {"schema": schemas[kind]}}
            if operation.has_csv:
                made[str(status)]["content"]["text/csv"] = {"schema": {"type": "string"}}
            if operation.name in _LINKS:
                parameters, names = _LINKS[operation.name]
                made[str(status)]["links"] = {
                    name: {"operationId": name, "parameters": parameters} for name in names
                }
    content = {"application/problem+json": {"schema": schemas[ProblemBody]}}
    if operation.oauth:
        content = {"application/json": {"schema": schemas[OAuthError]}, **content}
    for status in sorted(problem_statuses(operation) - operation.answers.keys()):
        made[str(status)] = {"description": _MEANINGS[status], "content": content}
    return made


def problem_statuses(operation: Route) -> set[int]:
    """The statuses of problems that the operation may answer with."""
    statuses = {405, 503, *operation.problems}
    if operation.access is not Access.PUBLIC:
        statuses |= {401}
    if operation.role is not None:
        statuses |= {403}
    if operation.access in (Access.APP, Access.ORG):
        statuses |= {403, 404}
    if operation.role is not None and "{org_id}" in operation.path:
        statuses |= {404}
    if operation.body is not None:
        statuses |= {400, 413}
    if _NAME.search(operation.path) or operation.query:
        statuses |= {400}
    if operation.limit is not None:
        statuses |= {429}
    return statuses


def _is_type(kind: Any) -> bool:
    return kind is not None and not isinstance(kind, str)
