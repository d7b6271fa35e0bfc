"""The form of requests and errors at the token endpoints (RFC 6749).

Parameters come as a form or as JSON, the client by HTTP Basic or among the parameters, never both.
Errors have the RFC's two fields and those of our problems.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_plus

from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    PriceKeeperError,
    RequestRefusedError,
    SessionLimitRaceError,
    StoreError,
)
from pricekeeper.http.operation import Answer, Call
from pricekeeper.http.problems import REALM, BearerDeniedError, Problem, problem_of

NO_STORE: Final = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))


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
    status, name = problem.status, _name(error, problem)
    headers = problem.headers
    if isinstance(error, InvalidTokenError):
        status, headers = 400, ()
    elif isinstance(error, InvalidClientError):
        headers = ((b"www-authenticate", b"Basic " + REALM),)
    own = {**problem.fields(call.request_id), "status": status}
    body = {"error": name, "error_description": problem.detail, **own}
    return Answer(status, body, (*headers, *NO_STORE))


def _name(error: PriceKeeperError, problem: Problem) -> str:
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
