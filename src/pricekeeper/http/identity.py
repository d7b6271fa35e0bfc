"""The token endpoints, and the claim of a secret.

Parameters come as a form or as JSON, the client by HTTP Basic or among them, never both. Errors
have the RFC's two fields and those of our problems.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_plus

from pricekeeper.credentials import Authenticated
from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    NotFoundError,
    PriceKeeperError,
    RequestRefusedError,
    SessionLimitRaceError,
    StoreError,
)
from pricekeeper.http.gate import bearer_of, count_failure, find_principal, is_barred, limit_client
from pricekeeper.http.operation import NO_STORE, Answer, Call
from pricekeeper.http.problems import (
    REALM,
    AccessDeniedError,
    BearerDeniedError,
    Problem,
    SecretDeniedError,
    problem_of,
)
from pricekeeper.tenants import parse_client_id
from pricekeeper.tokens import SCOPES, Introspection, TokenGrant
from pricekeeper.usecases import provisioning
from pricekeeper.wire import identity as wire
from pricekeeper.wire.values import rfc3339

LABEL_LENGTH_MAX: Final = 256
_DESCRIPTIONS: Final = {
    "invalid_client": "missing or invalid credentials: send the client's id and secret",
    "invalid_grant": "the refresh token is invalid or has ended: log in with the client's secret",
}
_BY_SECRET: Final = ["client_secret_basic", "client_secret_post"]
_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?", re.ASCII)


async def issue_token(call: Call) -> Answer:
    """Exchange a client's secret for tokens, or its refresh token for new ones (RFC 6749)."""
    given: wire.TokenBody = call.body
    if given.grant_type not in ("client_credentials", "refresh_token"):
        detail = "grant_type must be client_credentials or refresh_token"
        raise OAuthRefusedError("unsupported_grant_type", detail)
    refreshes = given.grant_type == "refresh_token"
    if refreshes != bool(given.refresh_token):
        detail = "refresh_token belongs to grant_type refresh_token, and to no other"
        raise OAuthRefusedError("invalid_request", detail)
    client = client_of(call, given.client_id, given.client_secret)
    if client is None and not refreshes:
        raise OAuthRefusedError("invalid_request", "client_id and client_secret are required")
    if client is None:
        raise InvalidClientError
    authenticated = await _authenticate(call, client)
    if refreshes:
        return await _refresh(call, given.refresh_token, authenticated, variant=True)
    await limit_client(call, authenticated.client.client_id)
    grant = await call.services.identity.login(
        authenticated, user_agent=_user_agent(call), address=call.address
    )
    return Answer(200, _granted(grant), _NO_STORE)


async def issue_aws_credentials(call: Call) -> Answer:
    """Exchange a client's secret for AWS SDK credentials, valid for an hour, without a session."""
    client = client_of(call, "", "")
    if client is None:
        raise SecretDeniedError("the client's secret is needed, by HTTP Basic")
    authenticated = await _authenticate(call, client)
    await limit_client(call, authenticated.client.client_id)
    made = call.services.identity.issue_outside_slots(authenticated)
    answer = wire.AwsCredentialsAnswer(
        access_key_id=made.access_key_id,
        secret_access_key=made.secret_access_key,
        token=made.token,
        expiration=rfc3339(made.expires_at_epoch * 1000),
    )
    return Answer(200, answer, _NO_STORE)


async def refresh(call: Call) -> Answer:
    """A secret that comes with the refresh token must be right."""
    given: wire.RefreshBody = call.body
    if given.grant_type != "refresh_token":
        raise OAuthRefusedError("unsupported_grant_type", "grant_type must be refresh_token")
    client = client_of(call, given.client_id, given.client_secret)
    if client is None and call.services.settings.refresh_needs_secret:
        raise InvalidClientError
    authenticated = None if client is None else await _authenticate(call, client)
    return await _refresh(call, given.refresh_token, authenticated)


async def _refresh(
    call: Call, refresh_token: str, authenticated: Authenticated | None, *, variant: bool = False
) -> Answer:
    identity = call.services.identity
    await limit_client(call, identity.refreshes_for(refresh_token), variant=variant)
    grant = await identity.refresh(refresh_token, authenticated)
    return Answer(200, _granted(grant), _NO_STORE)


async def _authenticate(call: Call, client: tuple[str, str]) -> Authenticated:
    return await call.services.identity.authenticate(*client, doubted=is_barred(call))


async def revoke(call: Call) -> Answer:
    """Revoke a token of the caller's own (RFC 7009); an unknown one is accepted."""
    client_id = await _authenticate_caller(call)
    await call.services.identity.revoke(client_id, call.body.token)
    return Answer(200, {}, _NO_STORE)


async def introspect(call: Call) -> Answer:
    """The claims of a token of the caller's own, if it is valid (RFC 7662)."""
    client_id = await _authenticate_caller(call)
    found = await call.services.identity.introspect(client_id, call.body.token)
    return Answer(200, _introspected(call, found), _NO_STORE)


async def jwks(call: Call) -> Answer:
    """The public keys for verifying access tokens (RFC 7517)."""
    keys = call.services.identity.jwks()
    return Answer(200, keys, ((b"cache-control", b"public, max-age=300"),))


async def metadata(call: Call) -> Answer:
    """The addresses of the token endpoints (RFC 8414)."""
    issuer = call.services.settings.issuer
    named = issuer.startswith(("https://", "http://"))
    base = issuer.rstrip("/") if named else _base_url(call)
    body = {
        "issuer": issuer,
        "token_endpoint": f"{base}/auth/token",
        "revocation_endpoint": f"{base}/auth/revoke",
        "introspection_endpoint": f"{base}/auth/introspect",
        "jwks_uri": f"{base}/.well-known/jwks.json",
        "scopes_supported": list(SCOPES),
        "grant_types_supported": ["client_credentials", "refresh_token"],
        "response_types_supported": [],
        "token_endpoint_auth_methods_supported": _BY_SECRET,
        "revocation_endpoint_auth_methods_supported": _BY_SECRET,
        "introspection_endpoint_auth_methods_supported": [*_BY_SECRET, "Bearer"],
        "service_documentation": f"{base}/docs",
    }
    # A base from one caller's Host header must not be cached for others.
    kept = b"public, max-age=300" if named else b"no-store"
    return Answer(200, body, ((b"cache-control", kept),))


def _base_url(call: Call) -> str:
    host = call.request.header(b"host") or "localhost"
    if not _HOST.fullmatch(host):
        raise RequestRefusedError("the Host header names no host")
    return f"{call.request.scope['scheme']}://{host}"


async def _authenticate_caller(call: Call) -> str:
    """By access token or by the client's secret; charges its limit."""
    access_token = bearer_of(call)
    if access_token is not None:
        try:
            caller = (await find_principal(call, access_token)).client_id
        except InvalidTokenError as error:
            raise BearerDeniedError("the access token does not count") from error
    else:
        client = client_of(call, call.body.client_id, call.body.client_secret)
        if client is None:
            raise AccessDeniedError("an access token or the client's secret is needed")
        caller = (await _authenticate(call, client)).client.client_id
    await limit_client(call, caller)
    return caller


def _introspected(call: Call, found: Introspection | None) -> wire.Claims:
    if found is None:
        return wire.Claims(active=False)
    client = parse_client_id(found.client_id)
    more = {} if found.token_id is None else {"jti": found.token_id}
    if client.app_id is not None:
        more["app_id"] = str(client.app_id)
    return wire.Claims(
        active=True,
        iss=call.services.settings.issuer,
        sub=found.client_id,
        aud=call.services.settings.audience,
        exp=found.expires_at_epoch,
        iat=found.issued_at_epoch,
        sid=found.session_id,
        org_id=client.org_id,
        scope=found.scope,
        client_id=found.client_id,
        token_type=found.token_type,
        **more,
    )


def _user_agent(call: Call) -> str:
    return (call.request.header(b"user-agent") or "")[:LABEL_LENGTH_MAX]


def _granted(grant: TokenGrant) -> wire.TokenAnswer:
    return wire.TokenAnswer(
        access_token=grant.access_token,
        refresh_token=grant.refresh_token,
        token_type="Bearer",  # noqa: S106 - the RFC's word
        expires_in=grant.expires_in_secs,
        refresh_expires_in=grant.refresh_expires_in_secs,
        scope=grant.scope,
        session_id=grant.session_id,
    )


_NO_STORE: Final = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))


class OAuthRefusedError(RequestRefusedError):
    """A refusal for a reason that RFC 6749 names."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(detail)
        self.name = name


def client_of(call: Call, client_id: str, client_secret: str) -> tuple[str, str] | None:
    """The client's name and secret, from HTTP Basic or from the parameters; never from both."""
    header = call.request.header(b"authorization") or ""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return (client_id, client_secret) if client_id or client_secret else None
    if client_secret:
        raise RequestRefusedError("send the client's secret in one place only")
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidClientError from None
    name, separator, secret = text.partition(":")
    if not separator or (client_id and client_id != unquote_plus(name)):
        raise InvalidClientError
    return unquote_plus(name), unquote_plus(secret)


def oauth_error(error: PriceKeeperError, call: Call) -> Answer:
    """The error in the form of RFC 6749, with the fields of our problems."""
    problem = problem_of(error, call.services.clock.now_ms())
    status, name = problem.status, _error_name(error, problem)
    headers = problem.headers
    if isinstance(error, InvalidTokenError):
        status, headers = 400, ()
    elif isinstance(error, InvalidClientError):
        headers = ((b"www-authenticate", b"Basic " + REALM),)
    own = {**problem.fields(call.request_id), "status": status}
    body = {"error": name, "error_description": _DESCRIPTIONS.get(name, problem.detail), **own}
    return Answer(status, body, (*headers, *_NO_STORE))


def _error_name(error: PriceKeeperError, problem: Problem) -> str:
    if isinstance(error, OAuthRefusedError):
        return error.name
    if isinstance(error, InvalidTokenError):
        return "invalid_grant"
    if isinstance(error, BearerDeniedError):
        return "invalid_token"
    if isinstance(error, InvalidClientError) or problem.status == 401:  # noqa: PLR2004
        return "invalid_client"
    if isinstance(error, (StoreError, SessionLimitRaceError)) or problem.status >= 429:  # noqa: PLR2004
        return "temporarily_unavailable"
    return "invalid_request"


async def claim_secret(call: Call) -> Answer:
    """Exchange a retrieval token for the secret, once."""
    try:
        claim = await call.services.credentials.find_claim(call.body.token)
        await limit_client(call, claim.client.client_id)
        call.actor = "retrieval-token"
        claimed = await provisioning.complete_claim(call.services, claim, call.by())
        return Answer(200, claimed, NO_STORE)
    except NotFoundError:
        await count_failure(call)
        raise
