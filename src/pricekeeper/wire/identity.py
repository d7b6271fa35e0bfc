"""OAuth tokens and keys, problems, and health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.wire.values import RequestBody, Response, ShortText


class TokenBody(RequestBody, frozen=True):
    """The client, unless HTTP Basic carries it, and the refresh token to exchange, if any."""

    grant_type: Annotated[
        str, Meta(extra_json_schema={"enum": ["client_credentials", "refresh_token"]})
    ]
    client_id: ShortText = ""
    client_secret: ShortText = ""
    scope: ShortText = ""
    refresh_token: Annotated[str, Meta(max_length=4096)] = ""


class RefreshBody(RequestBody, frozen=True):
    """A refresh token and its client, unless HTTP Basic carries that."""

    grant_type: Annotated[str, Meta(extra_json_schema={"const": "refresh_token"})]
    refresh_token: Annotated[str, Meta(max_length=4096)]
    client_id: ShortText = ""
    client_secret: ShortText = ""
    scope: ShortText = ""


class RevokeBody(RequestBody, frozen=True):
    """A token of the caller's own; the client may be named here, by HTTP Basic or by Bearer."""

    token: Annotated[str, Meta(max_length=8192)]
    token_type_hint: ShortText = ""
    client_id: ShortText = ""
    client_secret: ShortText = ""


class TokenAnswer(Response, frozen=True):
    """RFC 6749, section 5.1, with our session."""

    access_token: str
    refresh_token: str
    token_type: str
    expires_in: int
    refresh_expires_in: int
    scope: str
    session_id: str


class AwsCredentialsAnswer(Response, frozen=True, rename="pascal"):
    """The form that AWS SDKs read from a container credentials endpoint."""

    access_key_id: Annotated[str, Meta(pattern="^[A-Z0-9]{16,128}$")]
    secret_access_key: str
    token: str
    expiration: str


class Empty(Response, frozen=True):
    """An empty object."""


class Claims(Response, frozen=True, omit_defaults=True):
    """RFC 7662: the claims of a token, if it is valid."""

    active: bool
    iss: str | UnsetType = UNSET
    sub: str | UnsetType = UNSET
    aud: str | UnsetType = UNSET
    exp: int | UnsetType = UNSET
    iat: int | UnsetType = UNSET
    jti: str | UnsetType = UNSET
    sid: str | UnsetType = UNSET
    org_id: str | UnsetType = UNSET
    app_id: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    token_type: str | UnsetType = UNSET


class Metadata(Response, frozen=True):
    """RFC 8414."""

    issuer: str
    token_endpoint: str
    revocation_endpoint: str
    introspection_endpoint: str
    jwks_uri: str
    scopes_supported: list[str]
    grant_types_supported: list[str]
    response_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]
    revocation_endpoint_auth_methods_supported: list[str]
    introspection_endpoint_auth_methods_supported: list[str]
    service_documentation: str


class Jwks(Response, frozen=True):
    """RFC 7517."""

    keys: list[dict[str, Any]]


class Mistake(Response, frozen=True):
    """One bad field."""

    field: str
    message: str


class ProblemBody(Response, frozen=True):
    """RFC 9457, with our stable code, the request's id and typed extras."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Mistake] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    outcome: Literal["OUTCOME_UNKNOWN", "NOT_APPLIED"] | UnsetType = UNSET
    """Of a 503: whether the request may have been applied, where that is known."""


class OAuthError(Response, frozen=True):
    """RFC 6749, section 5.2."""

    error: str
    error_description: str


class Health(Response, frozen=True, omit_defaults=True):
    """The state of the process, and why it is not ready."""

    status: str
    reason: str | None = None
