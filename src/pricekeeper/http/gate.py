"""Checks every request in this order: credentials, path, role of a key, rate limit.

Credentials come first, so a caller without them learns nothing, and no client is charged for a
request that it did not send. The path must name the caller itself, or an organisation that the key
covers. For another tenant's resource the answer is 404, as for one that does not exist; the store
is not asked. If the credentials are in the body, the handler keeps this order: `limit_client`
after it has authenticated the client, `count_failure` if that failed.

`check_metrics_token`: the token for ``/metrics`` belongs to the operator. No client's token opens
it; without a token in the settings it is closed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pricekeeper.admin_keys import KEY_PREFIX
from pricekeeper.authority import DEPLOYMENT, Authority, KeyKind, of_org
from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    InvalidValueError,
    NotFoundError,
    PriceKeeperError,
    RateLimitExceededError,
)
from pricekeeper.http.limits import network_of
from pricekeeper.http.operation import Call, Route
from pricekeeper.http.problems import (
    AccessDeniedError,
    BearerDeniedError,
    KeyDeniedError,
)
from pricekeeper.tenants import Client
from pricekeeper.tokens import APP_USE, Principal
from pricekeeper.usecases.asking import WrongAudienceError
from pricekeeper.values import OrgId, parse_app_id, parse_org_id
from pricekeeper.wire.operation import BY_KEY, Access

_BEARER: Final = "bearer"


async def admit(call: Call, operation: Route) -> None:
    """Admit the call, or raise. Its headers state the rest of its rate limit."""
    call.operation, access = operation, operation.access
    if access is Access.PUBLIC:
        _check_path(call)
        if not operation.limits_itself:
            await _charge_limit(
                call, operation.limit, f"address/{network_of(call.request.client_host)}"
            )
        return
    if access in BY_KEY or _comes_with_key(call, operation):
        # A key that was deleted through another instance must not create keys here, so writes
        # ask the store.
        fresh = operation.method != "GET"
        call.authority, call.actor, caller = await _authenticate_key(call, fresh=fresh)
    else:
        call.principal = await _authenticate_client(call)
        caller = f"client/{call.principal.client_id}"
    if call.principal is None or not _names_caller(call.path, call.principal):
        _check_path(call)
    if call.principal is not None:
        _check_tenant(call, call.principal, access)
    elif call.authority is not None:
        _check_key(call, call.authority, operation)
    await _charge_limit(call, operation.limit, caller)


def admit_at_once(call: Call, operation: Route, token_digest: bytes) -> bool:
    """Admit a client to its own paths from memory; returns false if `admit` must decide."""
    principal = call.services.identity.recall_digest(token_digest)
    if principal is None or operation.access is not Access.APP:
        return False
    if APP_USE not in principal.scopes or not _names_caller(call.path, principal):
        return False
    client = Client(principal.org_id, principal.app_id)
    policy = call.services.tenants.recall_policy(client)
    if policy is None:
        return False
    now_ms, caller = call.services.clock.now_ms(), f"client/{principal.client_id}"
    headers = call.api_limits.admit_at_once(operation.limit, caller, now_ms)
    if headers is None:
        return False
    call.limit_headers, call.operation, call.principal = headers, operation, principal
    call.policy = policy
    return True


async def check_again(call: Call) -> None:
    """Check the credentials of an admitted call in the store; raises if they have ended."""
    if call.principal is not None:
        await call.services.identity.validate(bearer_of(call) or "", fresh=True)
        return
    authority, _, _ = await _authenticate_key(call, fresh=True)
    if authority != call.authority:
        raise KeyDeniedError("X-API-Key allows something else now")


def _comes_with_key(call: Call, operation: Route) -> bool:
    """Whether an administrator asks. A caller with a token is the client itself."""
    if operation.role is None or call.request.header(b"x-api-key") is None:
        return False
    return bearer_of(call) is None


async def limit_client(call: Call, client_id: str, *, variant: bool = False) -> None:
    """Charge a request to its authenticated client."""
    operation = call.operation
    if operation is not None:
        kind = operation.variant_limit if variant else operation.limit
        await _charge_limit(call, kind, f"client/{client_id}")


async def count_failure(call: Call, *, of_keys: bool = False) -> None:
    """Charge a failure to the caller's address.

    Raises `RateLimitExceededError` if the address had too many.
    """
    address, now_ms = call.request.client_host, call.services.clock.now_ms()
    try:
        headers = await call.api_limits.note_failure(address, now_ms, of_keys=of_keys)
        call.limit_headers = headers
    except RateLimitExceededError:
        call.limit_headers = call.api_limits.failure_headers(address, now_ms, of_keys=of_keys)
        raise


def is_guess(error: PriceKeeperError) -> bool:
    """Whether the refused credentials may be made up.

    A genuine token that has ended is no guess, nor is a request without credentials.
    """
    if isinstance(error, InvalidTokenError):
        return not error.genuine
    if isinstance(error, AccessDeniedError):
        return error.guess
    return isinstance(error, InvalidClientError)


def is_barred(call: Call) -> bool:
    """Whether the caller's address has failed too often."""
    now_ms = call.services.clock.now_ms()
    return call.api_limits.bar_of(call.request.client_host, now_ms) is not None


def bearer_of(call: Call) -> str | None:
    """The access token in the Authorization header, if any."""
    return bearer_in(call.request.headers)


def bearer_in(headers: Mapping[bytes, bytes]) -> str | None:
    """As `bearer_of`, from headers."""
    header = headers.get(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == _BEARER else None


async def _authenticate_key(call: Call, *, fresh: bool = False) -> tuple[Authority, str, str]:
    """The key's authority, its actor, and whom its requests are charged to.

    ``fresh`` always asks the store. Once an address has tried too many keys, none of its keys is
    compared: even a correct one would be revealed by the answer.
    """
    given = call.request.header(b"x-api-key")
    if given is None:
        raise KeyDeniedError("X-API-Key is needed")
    address, now_ms = call.request.client_host, call.services.clock.now_ms()
    if call.api_limits.bar_of(address, now_ms, of_keys=True) is not None:
        await count_failure(call, of_keys=True)
    wanted = call.services.settings.provisioning_key
    org_keys = call.services.provisioning_keys
    if wanted is not None and _same(given, wanted):
        caller = f"key/{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
        return DEPLOYMENT, f"deployment-key/{org_keys.fingerprint(given)}", caller
    if given.startswith(KEY_PREFIX):
        shown = await call.services.admin_keys.find(given, fresh=fresh)
        if shown is not None and shown.is_valid:
            return shown.key.authority, shown.key.actor, f"admin-key/{shown.key.key_id}"
        if shown is not None:
            raise KeyDeniedError("X-API-Key has expired, or was rotated away")
    elif (org_id := await org_keys.find_org(given, _org_in_path(call))) is not None:
        return of_org(org_id), f"org-key/{org_id}/{org_keys.fingerprint(given)}", f"key/{org_id}"
    await count_failure(call, of_keys=True)
    raise KeyDeniedError("X-API-Key is wrong", guess=True)


def _org_in_path(call: Call) -> OrgId | None:
    with suppress(InvalidValueError, KeyError):
        return parse_org_id(call.path["org_id"])
    return None


def _same(given: str, wanted: str) -> bool:
    """Compare two keys in constant time."""
    digests = [hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given, wanted)]
    return hmac.compare_digest(*digests)


async def _authenticate_client(call: Call) -> Principal:
    """The client of the token, which is remembered for a moment."""
    token = bearer_of(call)
    if not token:
        raise AccessDeniedError("an access token is needed")
    return call.services.identity.recall(token) or await find_principal(call, token)


async def find_principal(call: Call, token: str) -> Principal:
    """Find the client of the access token.

    An invalid token always gets 401, however many failures its address has, so that its holder
    logs in again.
    """
    try:
        return await call.services.identity.validate(token)
    except InvalidTokenError as error:
        if is_guess(error):
            now_ms = call.services.clock.now_ms()
            await call.api_limits.count_guess(call.request.client_host, now_ms)
        raise


def _names_caller(path: Mapping[str, str], principal: Principal) -> bool:
    return path.get("org_id") == principal.org_id and path.get("app_id") == principal.app_id


def _check_path(call: Call) -> None:
    """Refuse a malformed id in the path, before it becomes part of a key."""
    path = call.path
    if "org_id" in path and parse_org_id(path["org_id"]) != path["org_id"]:
        raise InvalidValueError("org_id", "must be in lower case")
    if "app_id" in path:
        parse_app_id(path["app_id"])


def _check_tenant(call: Call, principal: Principal, access: Access) -> None:
    """Refuse a path outside of the caller and the apps of the calling organisation."""
    if access is Access.ANY_CLIENT:
        return
    if call.org_id != principal.org_id:
        raise NotFoundError("org")
    if access is Access.ORG:
        if not principal.may_read_org(call.org_id):
            raise WrongAudienceError("an app's token does not read what is the organisation's")
    elif not principal.may_use_app(call.org_id, call.app_id):
        raise NotFoundError("app")


def _check_key(call: Call, authority: Authority, operation: Route) -> None:
    if "org_id" in call.path and call.org_id not in authority.coverage:
        raise NotFoundError("org")
    if operation.access is Access.DEPLOYMENT and authority.kind is KeyKind.ORG_KEY:
        raise WrongAudienceError("this takes another key than an organisation's own", by_key=True)
    needed = operation.role
    if needed is not None and not authority.role.includes(needed):
        message = f"this takes a key with the role {needed}; this one is a {authority.role}'s"
        raise WrongAudienceError(message, by_key=True)


async def _charge_limit(call: Call, kind: str | None, caller: str) -> None:
    """Charge from memory or prefetched tokens if possible, else in the store."""
    limits, now_ms = call.api_limits, call.services.clock.now_ms()
    headers = limits.admit_at_once(kind, caller, now_ms)
    try:
        call.limit_headers = (
            await limits.admit(kind, caller, now_ms) if headers is None else headers
        )
    except RateLimitExceededError:
        call.limit_headers = limits.refusal_headers(kind, caller, now_ms)
        raise


def require_metrics_token(authorization: str | None, token: str | None) -> None:
    """Raise unless an Authorization header carries the metrics token."""
    if authorization is None:
        raise AccessDeniedError("the metrics token is needed")
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != _BEARER or not given:
        raise AccessDeniedError("the metrics token is needed", guess=True)
    same = token is not None and hmac.compare_digest(
        given.strip().encode("utf-8", "replace"), token.encode()
    )
    if not same:
        raise BearerDeniedError("that is not the metrics token", guess=True)


def check_metrics_token(call: Call) -> None:
    """Raise unless the call carries the metrics token."""
    authorization = call.request.header(b"authorization")
    require_metrics_token(authorization, call.services.settings.metrics_token)
