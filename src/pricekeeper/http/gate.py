"""The gate in front of every operation: who is it, does the path fit, how often.

The order matters. Credentials come first, so that nothing is told to who has none. Then the path
must name the caller itself: another tenant's resource and an absent one are both simply not
there, and the store is not even asked. Then the caller's rate limit; where the body says who is
calling, the handler asks for it, with `limit_claimant`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    InvalidValueError,
    NotFoundError,
    RateLimitExceededError,
)
from pricekeeper.http.limits import FAILURES
from pricekeeper.http.operation import Access, Call, Operation
from pricekeeper.http.problems import AccessDeniedError, WrongAudienceError
from pricekeeper.tenants import parse_client_id
from pricekeeper.tokens import Principal
from pricekeeper.values import parse_app_id, parse_org_id

_BEARER: Final = "bearer"
_NOBODY: Final = "unknown"
_NO_ADDRESS: Final = re.compile(r"[^A-Za-z0-9.:_-]")
"""What is in no address; a proxy may forward anything."""


async def admit(call: Call, operation: Operation) -> None:
    """Let the call in, or raise; its headers are to tell what is left of its rate limit."""
    access = operation.access
    if access is Access.PUBLIC:
        _check_path(call)
        if not operation.oauth:
            await _limit(call, operation.limit, f"address/{address_of(call)}")
        return
    try:
        if access is Access.PROVISIONING:
            caller = _provisioner(call)
        else:
            call.principal = await _principal(call)
            caller = f"client/{call.principal.client_id}"
    except (AccessDeniedError, InvalidTokenError):
        await count_failure(call)
        raise
    _check_path(call)
    if call.principal is not None:
        _check_tenant(call, call.principal, access)
    await _limit(call, operation.limit, caller)


async def limit_client(call: Call, kind: str) -> None:
    """Count the request of a client that was let in against a further limit."""
    if call.principal is not None:
        await _limit(call, kind, f"client/{call.principal.client_id}")


async def limit_claimant(call: Call, kind: str, client_id: str | None) -> None:
    """Count a request by the client that it claims to be from, if that could be one."""
    try:
        claimed = None if client_id is None else parse_client_id(client_id).client_id
    except InvalidValueError:
        claimed = None
    now_ms = call.services.clock.now_ms()
    await _limit(call, kind, call.api_limits.claimant(claimed, address_of(call), now_ms))


async def count_failure(call: Call) -> None:
    """Note refused credentials; raises `RateLimitExceededError` if an address has too many."""
    address, now_ms = address_of(call), call.services.clock.now_ms()
    try:
        await call.api_limits.note_failure(address, now_ms)
    except RateLimitExceededError:
        call.limit_headers = call.api_limits.told(FAILURES, f"address/{address}", now_ms)
        raise


def address_of(call: Call) -> str:
    """Where the request came from, in a form that can be part of a key."""
    host = call.request.client_host
    return _NO_ADDRESS.sub("_", host)[:64] if host else _NOBODY


def bearer_of(call: Call) -> str | None:
    """The access token in the Authorization header, if there is one."""
    header = call.request.header(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == _BEARER else None


def _provisioner(call: Call) -> str:
    wanted = call.services.settings.provisioning_key
    given = call.request.header(b"x-api-key")
    if wanted is None or given is None:
        raise AccessDeniedError("X-API-Key is needed")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
        raise AccessDeniedError("X-API-Key is wrong")
    return f"key/{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"


async def _principal(call: Call) -> Principal:
    token = bearer_of(call)
    if not token:
        raise AccessDeniedError("an access token is needed")
    return await call.services.identity.validate(token)


def _check_path(call: Call) -> None:
    """Every id in the path must be one, before it comes near a key."""
    path = call.path
    if "org_id" in path and parse_org_id(path["org_id"]) != path["org_id"]:
        raise InvalidValueError("org_id", "must be in lower case")
    if "app_id" in path:
        parse_app_id(path["app_id"])


def _check_tenant(call: Call, principal: Principal, access: Access) -> None:
    """The path must name the caller, or an app of the organisation that is calling."""
    if access is Access.ANY_CLIENT:
        return
    if call.org_id != principal.org_id:
        raise NotFoundError("org")
    if access is Access.ORG:
        if not principal.may_read_org(call.org_id):
            raise WrongAudienceError("an app's token does not read what is the organisation's")
    elif not principal.may_use_app(call.org_id, call.app_id):
        raise NotFoundError("app")


async def _limit(call: Call, kind: str | None, caller: str) -> None:
    limits, now_ms = call.api_limits, call.services.clock.now_ms()
    headers = limits.admit_at_once(kind, caller, now_ms)
    if headers is None:
        try:
            headers = await limits.admit(kind, caller, now_ms)
        except RateLimitExceededError:
            call.limit_headers = limits.told(kind, caller, now_ms)
            raise
    call.limit_headers = headers


REFUSALS: Final = (AccessDeniedError, InvalidClientError, InvalidTokenError)
"""What counts as refused credentials."""
