"""What the gateway answers instead of Bedrock, in the form that each client knows.

A spent budget is a 400, because every client takes that as final; some try a hundred times after a
429. A rate limit is a 429, with the waiting time in both headers that clients read. Invalid
credentials get the status of the caller's API: 403 of AWS's, else 401.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from pricekeeper.errors import (
    AuthorizationDeniedError,
    ClockInDoubtError,
    DeadlineExceededError,
    FrozenError,
    InvalidClientError,
    InvalidTokenError,
    InvalidValueError,
    Obstacle,
    OverloadedError,
    PriceKeeperError,
    PricingError,
    RateLimitExceededError,
    StoreError,
)
from pricekeeper.gateway.routes import SERVED, Dialect

RETRY_SECS_MAX: Final = 30
"""Some clients sleep as long as the header says."""
PATH_BYTES_MAX: Final = 120
_encode: Final = msgspec.json.Encoder().encode


class Refusal(Exception):  # noqa: N818 - it is an answer
    """An answer of the gateway itself. ``code`` is the name of an AWS exception."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    def status_in(self, _dialect: Dialect) -> int:
        return self.status

    def headers(self, request_id: str, dialect: Dialect) -> list[tuple[bytes, bytes]]:
        found = [
            (b"content-type", b"application/json"),
            (b"x-amzn-errortype", self.code.encode()),
            (b"x-amzn-requestid", request_id.encode()),
            (b"cache-control", b"no-store"),
        ]
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            found.append((b"allow", b"POST"))
        if self.status_in(dialect) == HTTPStatus.UNAUTHORIZED:
            found.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_ms is not None:
            wait_ms = min(self.retry_after_ms, RETRY_SECS_MAX * 1000)
            found.append((b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))))
            found.append((b"x-amz-retry-after", b"%d" % wait_ms))
        return found

    def body(self, dialect: Dialect) -> bytes:
        openai, anthropic = _TYPES.get(self.status_in(dialect), _OTHER)
        if dialect is Dialect.OPENAI:
            error = {"message": self.message, "type": openai, "param": None, "code": self.code}
            return _encode({"error": error})
        if dialect is Dialect.ANTHROPIC:
            error = {"type": anthropic, "message": self.message}
            return _encode({"type": "error", "error": error})
        return _encode({"message": self.message})


class NotAuthenticatedRefusal(Refusal):
    """The caller has no valid credentials; ``code`` is AWS's.

    OpenAI's and Anthropic's SDKs raise `AuthenticationError` only for a 401.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(403, code, message)

    def status_in(self, dialect: Dialect) -> int:
        return self.status if dialect is Dialect.AWS else int(HTTPStatus.UNAUTHORIZED)


_OTHER: Final = ("api_error", "api_error")
_TYPES: Final = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_exceeded", "rate_limit_error"),
    503: ("api_error", "overloaded_error"),
}
"""OpenAI's and Anthropic's type of an error, by status."""


def unknown_path(raw_path: bytes, dialect: Dialect) -> Refusal:
    """The path is not served, nor passed on: it could not be metered."""
    message = f"unknown path {_shown(raw_path)}: send POST to {SERVED[dialect]}"
    return Refusal(404, "UnknownOperationException", message)


def wrong_method(raw_path: bytes) -> Refusal:
    """The path exists, but only for POST."""
    message = f"wrong method for {_shown(raw_path)}: use POST"
    return Refusal(405, "UnknownOperationException", message)


def _shown(raw_path: bytes) -> str:
    """A bounded path of a caller's choice, percent-encoded except for plain characters."""
    shown = quote(raw_path[:PATH_BYTES_MAX], safe="/%:-._~")
    return shown if len(raw_path) <= PATH_BYTES_MAX else f"{shown}..."


def reply_lost() -> Refusal:
    """Bedrock's answer was lost. It is not a 5xx: clients would repeat the call and pay twice."""
    message = (
        "Bedrock's answer was lost, so the cost of the call is unknown: it stays charged at the "
        "reserved maximum, and repeating it costs again"
    )
    return Refusal(424, "ModelErrorException", message)


def unavailable(message: str) -> Refusal:
    """Nothing was sent to Bedrock, and the same call may work in a moment."""
    return Refusal(503, "ServiceUnavailableException", message, 1000)


def failed() -> Refusal:
    """Our own code failed before anything was reserved."""
    message = "internal error of Price Keeper: nothing was sent to Bedrock, nothing is charged"
    return Refusal(500, "InternalServerException", message)


def refusal_of(error: PriceKeeperError | Refusal, now_ms: int) -> Refusal:
    """The answer for one of our errors."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, AuthorizationDeniedError):
        return _denial(error, now_ms)
    if isinstance(error, RateLimitExceededError):
        return Refusal(429, "ThrottlingException", str(error), error.retry_after_ms or 1000)
    if isinstance(error, FrozenError):
        return Refusal(403, "AccessDeniedException", str(error))
    if isinstance(error, InvalidTokenError | InvalidClientError):
        message = (
            "invalid credentials: the key or token is wrong, expired or revoked; send "
            "client_id:client_secret or an access token of an app"
        )
        return NotAuthenticatedRefusal("AccessDeniedException", message)
    if isinstance(error, PricingError | InvalidValueError):
        return Refusal(400, "ValidationException", str(error))
    if isinstance(error, DeadlineExceededError | StoreError | OverloadedError | ClockInDoubtError):
        why = (
            "did not decide in time"
            if isinstance(error, DeadlineExceededError)
            else "is unavailable"
        )
        return unavailable(f"Price Keeper {why}: try again in a moment")
    return failed()


def _denial(error: AuthorizationDeniedError, now_ms: int) -> Refusal:
    frozen = [one for one in error.denied_by if one.kind is Obstacle.FROZEN]
    if frozen:
        why = "; ".join(f"{one.text}: {one.name}" for one in frozen)
        return Refusal(403, "AccessDeniedException", why)
    if error.by_speed:
        wait_ms = error.retry_after_ms(now_ms)
        if wait_ms is None:
            return Refusal(400, "ValidationException", f"{error}; the limit never has that much")
        return Refusal(429, "ThrottlingException", str(error), wait_ms)
    return Refusal(400, "ServiceQuotaExceededException", _explained(error, now_ms))


def _explained(error: AuthorizationDeniedError, now_ms: int) -> str:
    """The denial for a person: each blocking budget or quota, and the reset time."""
    waits: Sequence[int] = [
        one.resets_at_ms for one in error.denied_by if one.resets_at_ms is not None
    ]
    if any(one.never for one in error.denied_by):
        return f"{error}; the call needs more than the whole budget"
    if not waits:
        return f"{error}; temporary: other calls hold the rest, try again when they have ended"
    minutes = -(-max(0, max(waits) - now_ms) // 60_000)
    return f"{error}; resets in {minutes // 60} h {minutes % 60} min"
